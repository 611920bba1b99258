#include "formats/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>

#include "formats/packed_blocks.h"

namespace graft {
namespace {

// Between neighbouring levels: the greatest f32 that still belongs to the lower one.
std::array<float, 15> nf4_thresholds() {
  std::array<float, 15> thresholds{};
  for (size_t i = 0; i < thresholds.size(); ++i) {
    const double middle =
        (static_cast<double>(kNf4Levels[i]) + static_cast<double>(kNf4Levels[i + 1])) / 2;
    auto t = static_cast<float>(middle);
    if (static_cast<double>(t) > middle) t = std::nextafter(t, -1.0F);
    thresholds[i] = t;
  }
  return thresholds;
}

// The largest magnitude of n values, or NaN if one is not finite.
float largest_magnitude(const float* x, int64_t n) {
  constexpr int64_t kLanes = 16;  // independent maxima, which compilers turn into vectors
  float lanes[kLanes] = {}, sum[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) {
      const float magnitude = std::fabs(x[i + j]);
      lanes[j] = magnitude > lanes[j] ? magnitude : lanes[j];
      sum[j] += x[i + j] * 0.0F;  // NaN if x is not finite
    }
  }
  float greatest = 0, fault = 0;
  for (int64_t j = 0; j < kLanes; ++j) {
    greatest = std::max(greatest, lanes[j]);
    fault += sum[j];
  }
  for (; i < n; ++i) {
    greatest = std::max(greatest, std::fabs(x[i]));
    fault += x[i] * 0.0F;
  }
  return greatest + fault;
}

void store_float(std::byte* to, float value) { std::memcpy(to, &value, sizeof(value)); }

// Codes of up to `n` values, two to a byte, the earlier in the high nibble.
void store_pairs(const uint8_t* codes, int64_t n, std::byte* to) {
  for (int64_t i = 0; i < n; i += 2) {
    const int low = i + 1 < n ? codes[i + 1] : 0;
    to[i / 2] = static_cast<std::byte>(codes[i] << 4 | low);
  }
}

class BlockQuantizer {
 public:
  BlockQuantizer(const PackedLayout& layout, double bound, std::byte* packed)
      : layout_(layout),
        bound_(static_cast<float>(bound)),
        packed_(packed),
        thresholds_(nf4_thresholds()) {}

  bool nf4() const {
    return layout_.kind == PackedKind::kNf4 || layout_.kind == PackedKind::kNf4Double;
  }

  // Writes a block and gives its largest magnitude; NaN (and nothing written) if a value is not
  // finite. `codes` is room for a block.
  float write(int64_t block, const float* x, int64_t n, std::vector<uint8_t>& codes) const {
    const float magnitude = largest_magnitude(x, n);
    if (!std::isfinite(magnitude)) return std::numeric_limits<float>::quiet_NaN();
    std::byte* at = packed_ + layout_.header_bytes() + block * layout_.block_bytes();
    codes.resize(static_cast<size_t>(layout_.block));
    if (nf4()) {
      write_levels(x, n, magnitude, codes.data());
      const bool nested = layout_.kind == PackedKind::kNf4Double;
      const bool unit = magnitude == 0.0F && bound_ == 1.0F;
      if (!nested) store_float(at, unit ? 1.0F : magnitude);
      store_pairs(codes.data(), layout_.block, at + (nested ? 1 : 4));
      return magnitude;
    }
    float scale = magnitude / bound_;
    if (scale == 0.0F) scale = 1.0F;
    store_float(at, scale);
    if (layout_.kind == PackedKind::kFp8) {
      for (int64_t i = 0; i < n; ++i) {
        const float clipped = std::clamp(x[i] / scale, -448.0F, 448.0F);
        at[4 + i] = static_cast<std::byte>(f32_to_f8(DType::kF8E4M3FN, clipped));
      }
    } else if (layout_.kind == PackedKind::kInt8) {
      const float least = bound_ == 127.0F ? -127.0F : -128.0F;
      for (int64_t i = 0; i < n; ++i) {
        const float rounded = std::clamp(std::nearbyint(x[i] / scale), least, 127.0F);
        at[4 + i] = static_cast<std::byte>(static_cast<int8_t>(rounded));
      }
    } else {
      const float least = bound_ == 7.0F ? -7.0F : -8.0F;
      for (int64_t i = 0; i < n; ++i) {
        const float rounded = std::clamp(std::nearbyint(x[i] / scale), least, 7.0F);
        codes[static_cast<size_t>(i)] = static_cast<uint8_t>(static_cast<int>(rounded) + 8);
      }
      std::fill(codes.begin() + n, codes.end(), uint8_t{8});
      store_pairs(codes.data(), layout_.block, at + 4);
    }
    return magnitude;
  }

 private:
  void write_levels(const float* x, int64_t n, float magnitude, uint8_t* codes) const {
    const float divisor = magnitude == 0.0F ? 1.0F : magnitude;
    constexpr int64_t kStep = 16;
    float scaled[kStep] = {};
    for (int64_t i = 0; i < layout_.block; i += kStep) {
      const int64_t count = std::clamp<int64_t>(n - i, 0, kStep);
      for (int64_t j = 0; j < count; ++j) scaled[j] = x[i + j] / divisor;
      for (int64_t j = count; j < kStep; ++j) scaled[j] = 0.0F;
      int32_t code[kStep] = {};
      for (const float threshold : thresholds_) {
        for (int64_t j = 0; j < kStep; ++j) code[j] += scaled[j] > threshold ? 1 : 0;
      }
      const int64_t room = std::min(kStep, layout_.block - i);
      for (int64_t j = 0; j < room; ++j) codes[i + j] = static_cast<uint8_t>(code[j]);
    }
  }

  const PackedLayout& layout_;
  float bound_;
  std::byte* packed_;
  std::array<float, 15> thresholds_;
};

// The sum of PyTorch's reduction on one thread with vectors of eight: four rows of accumulators in
// a cascade of levels. bitsandbytes' offset is a mean taken so, and its last bit depends on it.
class CascadeSum {
 public:
  static float of(std::span<const float> x) {
    const auto n = static_cast<int64_t>(x.size());
    const int64_t vectors = n / kWidth, rows = vectors / kRows;
    Block level0 = cascade(x.data(), rows);
    for (int64_t v = rows * kRows; v < vectors; ++v) {
      for (int64_t j = 0; j < kWidth; ++j) level0[0][at(j)] += x[at(v * kWidth + j)];
    }
    for (size_t k = 1; k < kRows; ++k) {
      for (size_t j = 0; j < kWidth; ++j) level0[0][j] += level0[k][j];
    }
    float sum = 0;
    for (int64_t i = vectors * kWidth; i < n; ++i) sum += x[at(i)];
    for (size_t j = 0; j < kWidth; ++j) sum += level0[0][j];
    return sum;
  }

 private:
  static constexpr int64_t kWidth = 8, kRows = 4, kLevels = 4;
  using Block = std::array<std::array<float, kWidth>, kRows>;
  static size_t at(int64_t i) { return static_cast<size_t>(i); }

  static void add(Block& to, const Block& from) {
    for (size_t k = 0; k < kRows; ++k) {
      for (size_t j = 0; j < kWidth; ++j) to[k][j] += from[k][j];
    }
  }
  static void add(Block& to, const float* from) {
    for (size_t k = 0; k < kRows; ++k) {
      for (size_t j = 0; j < kWidth; ++j) to[k][j] += from[k * kWidth + j];
    }
  }

  static Block cascade(const float* x, int64_t rows) {
    int bits = 0;
    while ((int64_t{1} << bits) < rows) ++bits;
    const int power = std::max(4, bits / static_cast<int>(kLevels));
    const int64_t step = int64_t{1} << power;
    std::array<Block, kLevels> levels{};
    int64_t i = 0;
    while (i + step <= rows) {
      for (int64_t j = 0; j < step; ++j, ++i) add(levels[0], x + i * kRows * kWidth);
      for (int64_t level = 1; level < kLevels; ++level) {
        add(levels[at(level)], levels[at(level - 1)]);
        levels[at(level - 1)] = {};
        if ((i & ((step - 1) << (level * power))) != 0) break;
      }
    }
    for (; i < rows; ++i) add(levels[0], x + i * kRows * kWidth);
    for (size_t level = 1; level < kLevels; ++level) add(levels[0], levels[level]);
    return levels[0];
  }
};

uint8_t nearest_in_map(float x) {
  const auto& map = dynamic_map();
  const auto above = std::lower_bound(map.begin(), map.end(), x);
  if (above == map.begin()) return 0;
  const auto below = above - 1;
  const bool lower = above == map.end() || x - *below <= *above - x;
  return static_cast<uint8_t>((lower ? below : above) - map.begin());
}

// Errors in parts of fixed size, so that the sum does not depend on how many threads there are.
void measure_error(const Tensor& values, const PackedLayout& layout, Quantized& result) {
  constexpr int64_t kPart = 1 << 14;
  const int64_t parts = (layout.elements() + kPart - 1) / kPart;
  std::vector<double> errors(static_cast<size_t>(parts)), norms(errors.size());
  for_parts(parts, [&](int64_t begin, int64_t end) {
    std::vector<float> expanded(kPart), original(kPart);
    for (int64_t part = begin; part < end; ++part) {
      const int64_t first = part * kPart;
      const auto n = static_cast<size_t>(std::min(kPart, layout.elements() - first));
      expand_packed(layout, result.packed.bytes(), first, {expanded.data(), n});
      convert_elements(values.bytes() + dtype_bytes(values.dtype(), static_cast<size_t>(first)),
                       values.dtype(), original.data(), DType::kF32, n);
      double error = 0, norm = 0;
      for (size_t i = 0; i < n; ++i) {
        const auto x = static_cast<double>(original[i]);
        const double difference = static_cast<double>(expanded[i]) - x;
        error += difference * difference;
        norm += x * x;
      }
      errors[static_cast<size_t>(part)] = error;
      norms[static_cast<size_t>(part)] = norm;
    }
  });
  for (const double error : errors) result.squared_error += error;
  for (const double norm : norms) result.squared_norm += norm;
}

// The code of x in [-1, 1]: bitsandbytes looks it up by the nearest of 65536 evenly spaced numbers,
// not by x itself.
uint8_t dynamic_code(float x) {
  constexpr int kSteps = 65535;
  static const std::vector<uint8_t> table = [] {
    std::vector<uint8_t> codes;
    for (int i = 0; i <= kSteps; ++i) {
      codes.push_back(nearest_in_map(static_cast<float>(-1 + 2.0 * i / kSteps)));
    }
    return codes;
  }();
  const auto index = static_cast<int>((x + 1.0F) * (0.5F * kSteps) + 0.5F);
  return table[static_cast<size_t>(std::clamp(index, 0, kSteps))];
}

void write_nested(const PackedLayout& layout, const std::vector<float>& magnitudes,
                  std::byte* packed) {
  const NestedScales nested = quantize_magnitudes(magnitudes);
  store_float(packed, nested.offset);
  for (size_t g = 0; g < nested.scales.size(); ++g) {
    store_float(packed + 4 * (g + 1), nested.scales[g]);
  }
  for (int64_t b = 0; b < layout.blocks(); ++b) {
    packed[layout.header_bytes() + b * layout.block_bytes()] =
        static_cast<std::byte>(nested.codes[static_cast<size_t>(b)]);
  }
}

}  // namespace

double Quantized::relative_error() const {
  return squared_norm > 0 ? std::sqrt(squared_error / squared_norm) : 0;
}

double scale_bound(PackedKind kind, bool whole_range) {
  switch (kind) {
    case PackedKind::kInt8: return whole_range ? 127.5 : 127;
    case PackedKind::kInt4: return whole_range ? 7.5 : 7;
    case PackedKind::kFp8: return 448;
    case PackedKind::kNf4: return whole_range ? 1 : 0;
    default: return 0;
  }
}

NestedScales quantize_magnitudes(std::span<const float> magnitudes) {
  NestedScales nested;
  nested.offset = CascadeSum::of(magnitudes) / static_cast<float>(magnitudes.size());
  nested.codes.resize(magnitudes.size());
  for (size_t begin = 0; begin < magnitudes.size(); begin += kNestedBlock) {
    const size_t end = std::min(magnitudes.size(), begin + kNestedBlock);
    float scale = 0;
    for (size_t i = begin; i < end; ++i) {
      scale = std::max(scale, std::fabs(magnitudes[i] - nested.offset));
    }
    nested.scales.push_back(scale);
    for (size_t i = begin; i < end; ++i) {
      const float centred = magnitudes[i] - nested.offset;
      nested.codes[i] = dynamic_code(scale == 0.0F ? 0.0F : centred / scale);
    }
  }
  return nested;
}

Quantized quantize(const Tensor& values, const PackedLayout& layout, double bound,
                   const std::string& where) {
  GRAFT_CHECK(values.elements() == layout.elements() && !is_ggml(layout.kind));
  Quantized result;
  result.packed = Tensor::empty(DType::kU8, layout.stored_shape());
  std::byte* packed = result.packed.mutable_bytes();
  const BlockQuantizer quantizer(layout, bound, packed);
  std::vector<float> magnitudes(static_cast<size_t>(layout.blocks()));
  for_parts(layout.blocks(), [&](int64_t begin, int64_t end) {
    std::vector<float> block(static_cast<size_t>(layout.block));
    std::vector<uint8_t> codes;
    for (int64_t b = begin; b < end; ++b) {
      const int64_t first = b * layout.block;
      const int64_t n = std::min(layout.block, layout.elements() - first);
      const float* x = block.data();
      if (values.dtype() == DType::kF32) {
        x = values.data<float>() + first;
      } else {
        convert_elements(values.bytes() + dtype_bytes(values.dtype(), static_cast<size_t>(first)),
                         values.dtype(), block.data(), DType::kF32, static_cast<size_t>(n));
      }
      magnitudes[static_cast<size_t>(b)] = quantizer.write(b, x, n, codes);
    }
  });
  for (size_t b = 0; b < magnitudes.size(); ++b) {
    if (std::isfinite(magnitudes[b])) continue;
    throw Error(fmt::format("a weight among elements {} to {} is not finite",
                            static_cast<int64_t>(b) * layout.block,
                            (static_cast<int64_t>(b) + 1) * layout.block - 1),
                where, "it cannot be quantised: download the model again");
  }
  if (layout.kind == PackedKind::kNf4Double) write_nested(layout, magnitudes, packed);
  measure_error(values, layout, result);
  return result;
}

}  // namespace graft
