// Dropout by Philox4x32-10 (see base/random.h), as many counters at a time as a vector has lanes.

#include "ops/dropout.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/random.h"
#include "cpu/kernels/simd.h"
#include "cpu/kernels/table.h"
#include "cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kernels/dropout.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/kernels/vector-inl.h"

#ifndef GRAFT_CPU_KERNELS_DROPOUT_RANGE_
#define GRAFT_CPU_KERNELS_DROPOUT_RANGE_
namespace graft::cpu {

// Elements [begin, begin + count) of one row of the batch, begin a multiple of 4.
struct DropoutRange {
  const void* x;
  void* y;
  size_t begin, count;
  std::array<uint32_t, 2> seed;
  uint32_t row, step, name_hash;
  uint32_t threshold;  // kept from here on
  float scale;
};

}  // namespace graft::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace graft::cpu::HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR

using WordTag = hn::ScalableTag<uint32_t>;
using WordVec = hn::Vec<WordTag>;

struct WideProduct {
  WordVec high, low;
};

HWY_INLINE WideProduct multiply_words(WordVec a, WordVec b) {
  const WordTag d;
  const hn::RepartitionToWide<WordTag> wide;
  const auto shift = [&](WordVec v) HWY_ATTR {  // odd lanes to where MulEven looks
    return hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(wide, v)));
  };
  const auto even = hn::MulEven(a, b), odd = hn::MulEven(shift(a), shift(b));
  const auto even_high = hn::BitCast(d, hn::ShiftRight<32>(even));
  const auto odd_low = hn::BitCast(d, hn::ShiftLeft<32>(odd));
  return {hn::OddEven(hn::BitCast(d, odd), even_high), hn::OddEven(odd_low, hn::BitCast(d, even))};
}

// The words of blocks first, first + 1, ..., a vector's worth, in order of elements.
HWY_INLINE void random_words(uint32_t first, const DropoutRange& a, uint32_t* words) {
  const WordTag d;
  auto c0 = hn::Iota(d, first), c1 = hn::Set(d, a.row);
  auto c2 = hn::Set(d, a.step), c3 = hn::Set(d, a.name_hash);
  auto key0 = hn::Set(d, a.seed[0]), key1 = hn::Set(d, a.seed[1]);
  for (int round = 0; round < 10; ++round) {
    const WideProduct p0 = multiply_words(c0, hn::Set(d, 0xD2511F53U));
    const WideProduct p1 = multiply_words(c2, hn::Set(d, 0xCD9E8D57U));
    c0 = hn::Xor(hn::Xor(p1.high, c1), key0);
    c1 = p1.low;
    c2 = hn::Xor(hn::Xor(p0.high, c3), key1);
    c3 = p0.low;
    key0 = hn::Add(key0, hn::Set(d, 0x9E3779B9U));
    key1 = hn::Add(key1, hn::Set(d, 0xBB67AE85U));
  }
  hn::StoreInterleaved4(c0, c1, c2, c3, d, words);
}

HWY_INLINE size_t blocks_at_once() { return hn::Lanes(WordTag()); }
constexpr size_t kMostWords = 4 * hn::MaxLanes(WordTag());

#else

HWY_INLINE void random_words(uint32_t first, const DropoutRange& a, uint32_t* words) {
  const std::array<uint32_t, 4> block = philox4x32({first, a.row, a.step, a.name_hash}, a.seed);
  std::copy(block.begin(), block.end(), words);
}

HWY_INLINE size_t blocks_at_once() { return 1; }
constexpr size_t kMostWords = 4;

#endif

template <typename T>
void drop_as(const DropoutRange& a) {
  const FloatTag d;
  const hn::Rebind<uint32_t, FloatTag> du;
  const T* x = static_cast<const T*>(a.x);
  T* y = static_cast<T*>(a.y);
  const auto scale = hn::Set(d, a.scale);
  const size_t at_once = 4 * blocks_at_once();
  HWY_ALIGN uint32_t words[kMostWords];
  for (size_t i = 0; i < a.count; i += at_once) {
    random_words(static_cast<uint32_t>((a.begin + i) / 4), a, words);
    for_lanes(d, std::min(at_once, a.count - i), [&](size_t j, auto part) HWY_ATTR {
      const auto bits = hn::LoadU(du, words + j);
      // u >= threshold, unsigned, as max(u, threshold) == u.
      const auto keep = hn::Eq(hn::Max(bits, hn::Set(du, a.threshold)), bits);
      const auto scaled = hn::Mul(load(d, x + i + j, part), scale);
      store(d, hn::IfThenElseZero(hn::RebindMask(d, keep), scaled), y + i + j, part);
    });
  }
}

void drop_range(const DropoutRange& a, bool bf16) {
  bf16 ? drop_as<BFloat16>(a) : drop_as<float>(a);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace graft::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace graft::cpu {
namespace {

HWY_EXPORT(drop_range);

void run_dropout(const KernelCall& call) {
  constexpr int64_t kGrain = 16 * 1024;
  const Buffer& x = call.in[0];
  const int64_t batch = x.shape()[0];
  const int64_t row_elements = x.shape()[1] * x.shape()[2];
  const int64_t pieces = ceil_divide(row_elements, kGrain);
  const double p = call.attributes().f64("p");
  const auto word = [&](size_t operand, size_t i = 0) {
    return call.in[operand].as<uint32_t>()[i];
  };
  const bool bf16 = x.dtype() == DType::kBF16;
  parallel_for(call.threads, batch * pieces, [&](int64_t unit, int) {
    const int64_t row = unit / pieces, begin = unit % pieces * kGrain;
    const size_t offset = dtype_bytes(x.dtype(), static_cast<size_t>(row * row_elements + begin));
    const DropoutRange range{.x = x.as<std::byte>() + offset,
                             .y = call.out[0].as<std::byte>() + offset,
                             .begin = static_cast<size_t>(begin),
                             .count = static_cast<size_t>(std::min(kGrain, row_elements - begin)),
                             .seed = {word(1, 0), word(1, 1)},
                             .row = word(2) + static_cast<uint32_t>(row),
                             .step = word(3),
                             .name_hash = word(4),
                             .threshold = static_cast<uint32_t>(std::floor(p * 0x1p32)),
                             .scale = static_cast<float>(1 / (1 - p))};
    HWY_DYNAMIC_DISPATCH(drop_range)(range, bf16);
  });
}

bool supports(const Node&, std::span<const Type> in, std::span<const Type>) {
  return in[0].dtype == DType::kF32 || in[0].dtype == DType::kBF16;
}

}  // namespace

std::span<const KernelEntry> dropout_kernels() {
  static const KernelEntry kTable[] = {
      {&kDropout, {.run = run_dropout, .in_place = true, .in_place_operands = 1}, supports},
  };
  return kTable;
}

}  // namespace graft::cpu
#endif  // HWY_ONCE
