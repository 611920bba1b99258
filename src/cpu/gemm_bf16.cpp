#include "cpu/gemm_bf16.h"

#include <oneapi/dnnl/dnnl.hpp>

#include <array>
#include <bit>
#include <memory>
#include <unordered_map>

namespace graft::cpu {
namespace {

// m, n, k, the strides of a, b and c, which are transposed, alpha and beta.
using Key = std::array<int64_t, 9>;

struct KeyHash {
  size_t operator()(const Key& key) const {
    uint64_t hash = 0xCBF29CE484222325U;
    for (const int64_t word : key) {
      hash = (hash ^ static_cast<uint64_t>(word)) * 0x100000001B3U;
      hash ^= hash >> 29;
    }
    return hash;
  }
};

const dnnl::engine& engine() {
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

dnnl::memory::desc describe(int64_t rows, int64_t columns, int64_t stride, bool transposed,
                            dnnl::memory::data_type type) {
  const dnnl::memory::dims strides =
      transposed ? dnnl::memory::dims{1, stride} : dnnl::memory::dims{stride, 1};
  return {{rows, columns}, type, strides};
}

// A primitive with the arguments it is run on; only their addresses change from call to call.
struct Product {
  dnnl::matmul primitive;
  dnnl::memory a, b, c;

  Product(const Key& key, float alpha, float beta) {
    using Type = dnnl::memory::data_type;
    const auto a_desc = describe(key[0], key[2], key[3], (key[6] & 1) != 0, Type::bf16);
    const auto b_desc = describe(key[2], key[1], key[4], (key[6] & 2) != 0, Type::bf16);
    const auto c_desc = describe(key[0], key[1], key[5], false, Type::f32);
    dnnl::primitive_attr attributes;
    if (alpha != 1.0F) attributes.set_output_scales(0, {alpha});
    if (beta != 0.0F) {
      dnnl::post_ops operations;
      operations.append_sum(beta);
      attributes.set_post_ops(operations);
    }
    const dnnl::matmul::desc operation(a_desc, b_desc, c_desc);
    primitive = dnnl::matmul(dnnl::matmul::primitive_desc(operation, attributes, engine()));
    a = dnnl::memory(a_desc, engine(), nullptr);
    b = dnnl::memory(b_desc, engine(), nullptr);
    c = dnnl::memory(c_desc, engine(), nullptr);
  }
};

std::unique_ptr<Product> make_product(const Key& key, float alpha, float beta) {
  try {
    return std::make_unique<Product>(key, alpha, beta);
  } catch (const dnnl::error&) {
    return nullptr;
  }
}

}  // namespace

bool gemm_bf16(int64_t m, int64_t n, int64_t k, const MatrixRef& a, const MatrixRef& b, float* c,
               int64_t c_stride, float alpha, float beta) {
  constexpr size_t kMostProducts = 4096;
  thread_local std::unordered_map<Key, std::unique_ptr<Product>, KeyHash> products;
  thread_local dnnl::stream stream(engine());

  const Key key{m,
                n,
                k,
                a.stride,
                b.stride,
                c_stride,
                (a.transposed ? 1 : 0) | (b.transposed ? 2 : 0),
                std::bit_cast<int32_t>(alpha),
                std::bit_cast<int32_t>(beta)};
  if (products.size() > kMostProducts) products.clear();
  const auto [at, is_new] = products.try_emplace(key);
  if (is_new) at->second = make_product(key, alpha, beta);
  if (at->second == nullptr) return false;

  Product& product = *at->second;
  product.a.set_data_handle(const_cast<void*>(a.data));
  product.b.set_data_handle(const_cast<void*>(b.data));
  product.c.set_data_handle(c);
  const std::array<dnnl_exec_arg_t, 3> arguments{{{DNNL_ARG_SRC, product.a.get()},
                                                  {DNNL_ARG_WEIGHTS, product.b.get()},
                                                  {DNNL_ARG_DST, product.c.get()}}};
  dnnl::error::wrap_c_api(
      dnnl_primitive_execute(product.primitive.get(), stream.get(),
                             static_cast<int>(arguments.size()), arguments.data()),
      "a bf16 matrix product failed");
  return true;
}

}  // namespace graft::cpu
