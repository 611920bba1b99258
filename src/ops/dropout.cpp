#include "ops/dropout.h"

#include <array>
#include <cmath>

#include "ir/scan.h"
#include "ops/common.h"

namespace graft {
namespace {

constexpr double kRange = 4294967296.0;  // 2^32

Value constant_u32(Graph& graph, double value, const Shape& shape) {
  return splat(graph, value, {DType::kU32, shape});
}

// The high word of a * b for 32-bit words, from 16-bit limbs: no partial sum exceeds 32 bits.
Value high_word(Value a, uint32_t b) {
  const Value mask = constant_u32(a.graph(), 0xFFFF, a.shape());
  const Value low = a & mask, high = shift_right(a, 16);
  const double b_low = b & 0xFFFFU, b_high = b >> 16;
  const Value middle = high * b_low + shift_right(low * b_low, 16);
  const Value cross = low * b_high + (middle & mask);
  return high * b_high + shift_right(middle, 16) + shift_right(cross, 16);
}

// Ten rounds of Philox4x32 (see base/random.h) on counters, words of one shape; keys are scalar.
std::array<Value, 4> philox(Graph& graph, const std::array<Value, 4>& counter, Value key0,
                            Value key1) {
  constexpr uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  const ScanResults rounds =
      scan(graph, 10, {.carries = {counter[0], counter[1], counter[2], counter[3], key0, key1}},
           [](ScanBody& body) {
             const Value c0 = body.carry(0), c2 = body.carry(2);
             const Value k0 = body.carry(4), k1 = body.carry(5);
             body.carry_out(
                 0, high_word(c2, kMultiplier1) ^ body.carry(1) ^ broadcast_to(k0, c0.shape()));
             body.carry_out(1, c2 * static_cast<double>(kMultiplier1));
             body.carry_out(
                 2, high_word(c0, kMultiplier0) ^ body.carry(3) ^ broadcast_to(k1, c0.shape()));
             body.carry_out(3, c0 * static_cast<double>(kMultiplier0));
             body.carry_out(4, k0 + static_cast<double>(kWeyl0));
             body.carry_out(5, k1 + static_cast<double>(kWeyl1));
           });
  return {rounds.carries[0], rounds.carries[1], rounds.carries[2], rounds.carries[3]};
}

std::vector<Type> infer_dropout(const Call& call) {
  const OperandCheck check(kDropout, call);
  check.count(5);
  const Type& x = check.array(0, "x", 3);
  check.is(1, "seed", DType::kU32, {2});
  check.is(2, "first_row", DType::kU32, {});
  check.is(3, "step", DType::kU32, {});
  check.is(4, "name_hash", DType::kU32, {});
  const double p = call.attributes.f64("p");
  check.that(p >= 0 && p < 1, fmt::format("p must be in [0, 1), not {}", p));
  return {x};
}

std::vector<Value> decompose_dropout(Graph& graph, std::span<const Value> operands,
                                     const Call& call) {
  const Value x = operands[0], seed = operands[1];
  const double p = call.attributes.f64("p");
  const DType dtype = compute_dtype(x.dtype());
  const int64_t batch = x.dim(0), row = x.dim(1) * x.dim(2), blocks = ceil_div(row, 4);
  const Type words{DType::kU32, {batch, blocks}};
  const std::array<Value, 4> lanes =
      philox(graph,
             {iota(graph, words, 1), iota(graph, words, 0) + operands[2],
              broadcast_to(operands[3], words.shape), broadcast_to(operands[4], words.shape)},
             reshape(slice(seed, 0, 0, 1), {}), reshape(slice(seed, 0, 1, 2), {}));
  std::vector<Value> columns;
  for (const Value lane : lanes) columns.push_back(reshape(lane, {batch, blocks, 1}));
  const Value bits = reshape(concatenate(columns, 2), {batch, blocks * 4});
  const Value keep = greater_equal(reshape(slice(bits, 1, 0, row), x.shape()),
                                   constant_u32(graph, std::floor(p * kRange), x.shape()));
  const Value scaled = convert(convert(x, dtype) * (1 / (1 - p)), x.dtype());
  return {select(keep, scaled, zeros_like(x))};
}

void dropout_gradient(GradientContext& context) {
  context.set(0, context.graph().add1(kDropout,
                                      {context.cotangent(0), context.operand(1), context.operand(2),
                                       context.operand(3), context.operand(4)},
                                      context.attributes()));
}

}  // namespace

const Op kDropout{.name = "dropout",
                  .infer = infer_dropout,
                  .gradient = dropout_gradient,
                  .decompose = decompose_dropout};

Value dropout(Value x, double p, const DropoutCounters& counters) {
  return x.graph().add1(kDropout,
                        {x, counters.seed, counters.first_row, counters.step, counters.name_hash},
                        {{"p", p}});
}

}  // namespace graft
