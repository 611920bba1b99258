// kLinear and kLinearInputGrad: first the product with the narrow factor (u = x A^T, v = scale dy
// B), whole, then base product and low-rank term together, unit by unit
// (kernels/blocked_product.h).

#include "ops/linear.h"

#include <algorithm>

#include "cpu/kernels/blocked_product.h"
#include "cpu/kernels/table.h"

namespace graft::cpu {
namespace {

bool is_supported_float(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16; }

// Where each operand of kLinear is; 0: absent.
struct LinearOperands {
  size_t bias = 0, a = 0, lora_input = 0;

  explicit LinearOperands(const Attributes& attributes) {
    size_t next = 2;
    if (attributes.flag("has_bias")) bias = next++;
    if (attributes.flag("has_lora")) {
      a = next;
      next += 3;
    }
    if (attributes.flag("has_lora_input")) lora_input = next;
  }
};

int64_t rows_of(const Type& x) {
  const int64_t width = x.shape.back();
  return width == 0 ? 0 : x.elements() / width;
}

// The products of a node, in the order in which they run.
struct LinearProducts {
  ProductShape narrow, wide, separate;  // u or v; y or dx; dx_lora
  bool has_lora = false, has_separate = false;

  size_t scratch_bytes(int threads) const {
    size_t bytes = ProductPlan(wide, threads).bytes();
    if (has_lora) bytes = std::max(bytes, ProductPlan(narrow, threads).bytes());
    if (has_separate) bytes = std::max(bytes, ProductPlan(separate, threads).bytes());
    return bytes;
  }
};

LinearProducts forward_products(const Attributes& attributes, const Type& x, const Type& stored,
                                int64_t rank) {
  const Type w = weight_type(stored, attributes);
  LinearProducts products;
  products.has_lora = attributes.flag("has_lora");
  const int64_t rows = rows_of(x), out = w.shape[0], in = w.shape[1];
  products.wide = {.rows = rows,
                   .columns = out,
                   .depth = in,
                   .rank = products.has_lora ? rank : 0,
                   .x = x.dtype,
                   .w = w.dtype,
                   .y = x.dtype,
                   .w_transposed = true,
                   .q_transposed = true,
                   .packed = packed_layout(attributes)};
  products.narrow = {
      .rows = rows, .columns = rank, .depth = in, .x = x.dtype, .w_transposed = true};
  return products;
}

LinearProducts gradient_products(const Attributes& attributes, const Type& dy, const Type& stored,
                                 int64_t rank) {
  const Type w = weight_type(stored, attributes);
  LinearProducts products;
  products.has_lora = attributes.flag("has_lora");
  products.has_separate = attributes.flag("separate_lora");
  const int64_t rows = rows_of(dy), out = w.shape[0], in = w.shape[1];
  products.wide = {.rows = rows,
                   .columns = in,
                   .depth = out,
                   .rank = products.has_lora && !products.has_separate ? rank : 0,
                   .x = dy.dtype,
                   .w = w.dtype,
                   .y = dy.dtype,
                   .packed = packed_layout(attributes)};
  products.narrow = {.rows = rows, .columns = rank, .depth = out, .x = dy.dtype};
  products.separate = {.rows = rows, .columns = in, .depth = rank, .y = dy.dtype};
  return products;
}

void run_linear(const KernelCall& call) {
  const LinearOperands at(call.attributes());
  const auto in = call.in;
  const bool lora = at.a != 0;
  const LinearProducts products =
      forward_products(call.attributes(), *in[0].type, *in[1].type, lora ? in[at.a].shape()[0] : 0);
  ProductOperands wide{.x = in[0].data, .w = in[1].data, .y = call.out[0].data};
  if (at.bias != 0) {
    wide.bias = in[at.bias].data;
    wide.bias_dtype = in[at.bias].dtype();
  }
  if (lora) {
    auto* u = call.out[1].as<float>();
    multiply(ProductPlan(products.narrow, call.threads),
             {.x = in[at.lora_input].data, .w = in[at.a].data, .y = u}, call.scratch.data());
    wide.low = u;
    wide.q = in[at.a + 1].as<float>();
    wide.q_scale = *in[at.a + 2].as<float>();
  }
  multiply(ProductPlan(products.wide, call.threads), wide, call.scratch.data());
}

size_t linear_scratch(const Node& node, std::span<const Type> in, std::span<const Type> out,
                      int threads) {
  const int64_t rank = node.attributes.flag("has_lora") ? out[1].shape.back() : 0;
  return forward_products(node.attributes, in[0], in[1], rank).scratch_bytes(threads);
}

void run_linear_input_grad(const KernelCall& call) {
  const auto in = call.in;
  const bool lora = call.attributes().flag("has_lora");
  const LinearProducts products =
      gradient_products(call.attributes(), *in[0].type, *in[1].type, lora ? in[2].shape()[0] : 0);
  ProductOperands wide{.x = in[0].data, .w = in[1].data, .y = call.out[0].data};
  if (lora) {
    auto* v = call.out[1].as<float>();
    multiply(ProductPlan(products.narrow, call.threads),
             {.x = in[0].data, .w = in[3].data, .y_scale = *in[4].as<float>(), .y = v},
             call.scratch.data());
    wide.low = v;
    wide.q = in[2].as<float>();
  }
  multiply(ProductPlan(products.wide, call.threads), wide, call.scratch.data());
  if (products.has_separate) {
    multiply(ProductPlan(products.separate, call.threads),
             {.x = wide.low, .w = wide.q, .y = call.out[2].data}, call.scratch.data());
  }
}

size_t linear_input_grad_scratch(const Node& node, std::span<const Type> in,
                                 std::span<const Type> out, int threads) {
  const int64_t rank = node.attributes.flag("has_lora") ? out[1].shape.back() : 0;
  return gradient_products(node.attributes, in[0], in[1], rank).scratch_bytes(threads);
}

bool supports(const Node& node, std::span<const Type> in, std::span<const Type>) {
  return is_supported_float(in[0].dtype) &&
         is_supported_float(weight_type(in[1], node.attributes).dtype);
}

bool supports_linear(const Node& node, std::span<const Type> in, std::span<const Type> out) {
  const LinearOperands at(node.attributes);
  return supports(node, in, out) && (at.bias == 0 || is_supported_float(in[at.bias].dtype));
}

}  // namespace

std::span<const KernelEntry> linear_kernels() {
  static const KernelEntry kTable[] = {
      {&kLinear, {.run = run_linear, .scratch_bytes = linear_scratch}, supports_linear},
      {&kLinearInputGrad,
       {.run = run_linear_input_grad, .scratch_bytes = linear_input_grad_scratch},
       supports},
  };
  return kTable;
}

}  // namespace graft::cpu
