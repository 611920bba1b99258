#pragma once
// Weights of Hugging Face folders that are stored quantised, brought into packed matrices
// (base/packed.h); and bitsandbytes' layout written.
//
//   bitsandbytes, 4 bits: <weight> holds codes, beside it <weight>.absmax, .quant_map,
//   .quant_state,
//     and with double quantisation .nested_absmax, .nested_quant_map;
//   fp8 with block scales (as DeepSeek releases them): <weight> f8, <weight>_scale_inv f32 or bf16,
//     one number for each block of 128 x 128;
//   MXFP4 (as gpt-oss is released): <tensor>_blocks and <tensor>_scales.
//
// Readers never trust a byte: shapes, types and scales are checked, errors name file and tensor.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/packed.h"
#include "formats/json.h"
#include "formats/safetensors.h"

namespace graft {

struct StoredQuantization {
  enum class Method : uint8_t { kNone, kBitsAndBytes, kFp8 };
  Method method = Method::kNone;
  int64_t block_rows = 128, block_columns = 128;  // kFp8
};

// Of config.json's `quantization_config`; methods that are not read are refused by name.
StoredQuantization read_stored_quantization(const JsonObject& config);

struct PackedTensor {
  PackedLayout layout;
  Tensor packed;
};

// The layout of a weight [rows, columns], from names, types and shapes alone; nothing if it is not
// stored quantised (a module that was left out). Raises Error where what belongs to it is missing
// or does not fit.
std::optional<PackedLayout> find_stored_layout(const SafetensorsFile& file,
                                               const std::string& weight, int64_t rows,
                                               int64_t columns, const StoredQuantization& method);
// The weight itself; scales that are not finite are refused too.
PackedTensor read_stored_weight(const SafetensorsFile& file, const std::string& weight,
                                int64_t rows, int64_t columns, const StoredQuantization& method);
// Whether a tensor's name is that of a part of a quantised weight ("....weight.absmax").
bool is_part_of_quantized(const std::string& name);

// The tensors in which bitsandbytes keeps a packed NF4 weight, by name. `dtype`: what it computes
// in, "float32", "bfloat16" or "float16".
std::vector<std::pair<std::string, Tensor>> bitsandbytes_tensors(const std::string& weight,
                                                                 const PackedTensor& packed,
                                                                 const std::string& dtype);

// MXFP4 as gpt-oss stores it: blocks u8 [..., n, 16] (two codes to a byte, the earlier in the low
// nibble) and exponents u8 [..., n]. The values, f32 [..., n * 32].
Tensor expand_mxfp4(const Tensor& blocks, const Tensor& scales, const std::string& where);

}  // namespace graft
