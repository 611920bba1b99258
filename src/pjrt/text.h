#pragma once
// MLIR's spellings of types and literals.

#include <span>
#include <string>

#include "ir/graph.h"

namespace graft::pjrt {

std::string element_type(DType dtype);                    // "f32", "ui32", "i1", "f8E4M3FN"
std::string tensor_type(const Type& type);                // "tensor<2x3xf32>"
std::string integers(std::span<const int64_t> values);    // "1, 2"
std::string i64_array(std::span<const int64_t> values);   // "array<i64: 1, 2>"
std::string dense_splat(double value, const Type& type);  // "dense<0x3F800000> : tensor<2xf32>"
std::string dense_literal(const Tensor& value);           // every element

}  // namespace graft::pjrt
