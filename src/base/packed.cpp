#include "base/packed.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace graft {
namespace {

struct KindInfo {
  PackedKind kind;
  std::string_view name;
  int64_t block, bytes;  // of a ggml block; 0 for the others
};

constexpr KindInfo kKinds[] = {
    {PackedKind::kNf4, "nf4", 0, 0},           {PackedKind::kNf4Double, "nf4_double", 0, 0},
    {PackedKind::kInt4, "int4", 0, 0},         {PackedKind::kInt8, "int8", 0, 0},
    {PackedKind::kFp8, "fp8", 0, 0},           {PackedKind::kF16, "F16", 1, 2},
    {PackedKind::kBF16, "BF16", 1, 2},         {PackedKind::kQ4_0, "Q4_0", 32, 18},
    {PackedKind::kQ4_1, "Q4_1", 32, 20},       {PackedKind::kQ5_0, "Q5_0", 32, 22},
    {PackedKind::kQ5_1, "Q5_1", 32, 24},       {PackedKind::kQ8_0, "Q8_0", 32, 34},
    {PackedKind::kQ2_K, "Q2_K", 256, 84},      {PackedKind::kQ3_K, "Q3_K", 256, 110},
    {PackedKind::kQ4_K, "Q4_K", 256, 144},     {PackedKind::kQ5_K, "Q5_K", 256, 176},
    {PackedKind::kQ6_K, "Q6_K", 256, 210},     {PackedKind::kIQ4_NL, "IQ4_NL", 32, 18},
    {PackedKind::kIQ4_XS, "IQ4_XS", 256, 136}, {PackedKind::kMXFP4, "MXFP4", 32, 17},
};

const KindInfo& info(PackedKind kind) {
  const auto& found = kKinds[static_cast<size_t>(kind)];
  GRAFT_CHECK(found.kind == kind);
  return found;
}

// bitsandbytes' map: seven decades, each cut finer than the one below, with both signs, 0 and 1.
// The arithmetic is PyTorch's (a fused linspace in f32), to the bit.
std::array<float, 256> make_dynamic_map() {
  std::array<float, 256> map{};
  size_t count = 0;
  for (int decade = 0; decade < 7; ++decade) {
    const int items = 1 << decade;  // between items + 1 boundaries from 0.1 to 1
    const float step = (1.0F - 0.1F) / static_cast<float>(items);
    const auto boundary = [=](int i) {
      return i < (items + 1) / 2 ? std::fma(step, static_cast<float>(i), 0.1F)
                                 : std::fma(-step, static_cast<float>(items - i), 1.0F);
    };
    const auto power = static_cast<float>(std::pow(10.0, decade - 6));
    for (int i = 0; i < items; ++i) {
      const float value = power * ((boundary(i) + boundary(i + 1)) / 2.0F);
      map[count++] = value;
      map[count++] = -value;
    }
  }
  map[count++] = 0.0F;
  map[count++] = 1.0F;
  GRAFT_CHECK(count == map.size());
  std::sort(map.begin(), map.end());
  return map;
}

}  // namespace

const std::array<float, 16> kNf4Levels = {-1.0F,
                                          -0.6961928009986877F,
                                          -0.5250730514526367F,
                                          -0.39491748809814453F,
                                          -0.28444138169288635F,
                                          -0.18477343022823334F,
                                          -0.09105003625154495F,
                                          0.0F,
                                          0.07958029955625534F,
                                          0.16093020141124725F,
                                          0.24611230194568634F,
                                          0.33791524171829224F,
                                          0.44070982933044434F,
                                          0.5626170039176941F,
                                          0.7229568362236023F,
                                          1.0F};

const std::array<int8_t, 16> kNonLinearLevels = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                 1,    13,   25,  38,  53,  69,  89,  113};
const std::array<int8_t, 16> kMxfp4Levels = {0, 1,  2,  3,  4,  6,  8,  12,
                                             0, -1, -2, -3, -4, -6, -8, -12};

const std::array<float, 256>& dynamic_map() {
  static const std::array<float, 256> map = make_dynamic_map();
  return map;
}

std::string_view packed_kind_name(PackedKind kind) { return info(kind).name; }
bool is_ggml(PackedKind kind) { return info(kind).block != 0; }
std::optional<PackedKind> ggml_kind(std::string_view name) {
  for (const KindInfo& each : kKinds) {
    if (each.name == name && each.block != 0) return each.kind;
  }
  return std::nullopt;
}
int64_t ggml_block(PackedKind kind) { return info(kind).block; }

int64_t PackedLayout::block_bytes() const {
  switch (kind) {
    case PackedKind::kNf4:
    case PackedKind::kInt4: return 4 + block / 2;
    case PackedKind::kNf4Double: return 1 + block / 2;
    case PackedKind::kInt8:
    case PackedKind::kFp8: return 4 + block;
    default: return info(kind).bytes;
  }
}

int64_t PackedLayout::header_bytes() const {
  if (kind != PackedKind::kNf4Double) return 0;
  return 4 * (1 + (blocks() + kNestedBlock - 1) / kNestedBlock);
}

Shape PackedLayout::stored_shape() const {
  if (!by_rows()) return {bytes()};
  return {rows, columns / block * block_bytes()};
}

std::string PackedLayout::scheme() const {
  if (is_ggml(kind)) return std::string(packed_kind_name(kind));
  const std::string name(kind == PackedKind::kNf4Double ? "nf4" : packed_kind_name(kind));
  if (block == columns && (kind == PackedKind::kInt8 || kind == PackedKind::kFp8)) {
    return name + " by rows";
  }
  return fmt::format("{} block {}{}", name, block,
                     kind == PackedKind::kNf4Double ? " double quantised" : "");
}

std::string PackedLayout::text() const {
  return fmt::format("{}/{}[{},{}]", packed_kind_name(kind), block, rows, columns);
}

PackedLayout PackedLayout::parse(std::string_view text) {
  PackedLayout layout;
  const size_t slash = text.find('/');
  GRAFT_CHECK(slash != text.npos, "\"{}\" is no packed layout", text);
  const auto* found = std::find_if(std::begin(kKinds), std::end(kKinds), [&](const KindInfo& each) {
    return each.name == text.substr(0, slash);
  });
  GRAFT_CHECK(found != std::end(kKinds), "\"{}\" is no packed layout", text);
  layout.kind = found->kind;
  const char* at = text.data() + slash + 1;
  const char* end = text.data() + text.size();
  for (int64_t* number : {&layout.block, &layout.rows, &layout.columns}) {
    const auto [next, error] = std::from_chars(at, end, *number);
    GRAFT_CHECK(error == std::errc() && next < end, "\"{}\" is no packed layout", text);
    at = next + 1;
  }
  return layout;
}

}  // namespace graft
