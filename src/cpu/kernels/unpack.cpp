#include "cpu/kernels/unpack.h"

#include <algorithm>
#include <cstring>

#include "cpu/kernels/pack.h"
#include "cpu/kernels/simd.h"
#include "formats/ggml_blocks.h"
#include "formats/packed_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kernels/unpack.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace graft::cpu::HWY_NAMESPACE {

// What a block holds is expanded in units of kUnit neighbouring values, whole vectors of every
// instruction set; unit(first, to) writes one. Values at the ends of a run that are no whole unit
// go by way of a buffer.
constexpr size_t kUnit = 16;

#undef GRAFT_HAS_UNITS
#define GRAFT_HAS_UNITS (HWY_TARGET != HWY_SCALAR)

#if GRAFT_HAS_UNITS

template <class Unit>
HWY_INLINE void over_units(size_t begin, size_t count, float* out, const Unit& unit) {
  const size_t end = begin + count;
  for (size_t i = begin; i < end;) {
    const size_t first = i / kUnit * kUnit, next = first + kUnit;
    if (first == i && next <= end) {
      unit(first, out + (i - begin));
      i = next;
      continue;
    }
    HWY_ALIGN float whole[kUnit];
    unit(first, whole);
    const size_t stop = next < end ? next : end;
    std::memcpy(out + (i - begin), whole + (i - first), (stop - i) * sizeof(float));
    i = stop;
  }
}

using Bytes = hn::Full128<uint8_t>;  // a unit's codes
using ByteVector = hn::Vec<Bytes>;

HWY_INLINE ByteVector load_bytes(const uint8_t* p) { return hn::LoadU(Bytes(), p); }
HWY_INLINE ByteVector low_nibble(ByteVector v) { return hn::And(v, hn::Set(Bytes(), 15)); }
// Bytes have no shift of their own in x86.
template <int kBits>
HWY_INLINE ByteVector shifted_right(ByteVector v) {
  const hn::Full128<uint16_t> pairs;
  const auto moved = hn::BitCast(Bytes(), hn::ShiftRight<kBits>(hn::BitCast(pairs, v)));
  return hn::And(moved, hn::Set(Bytes(), static_cast<uint8_t>(0xFF >> kBits)));
}
template <int kBits>
HWY_INLINE ByteVector shifted_left(ByteVector v) {
  const hn::Full128<uint16_t> pairs;
  const auto moved = hn::BitCast(Bytes(), hn::ShiftLeft<kBits>(hn::BitCast(pairs, v)));
  return hn::And(moved, hn::Set(Bytes(), static_cast<uint8_t>(0xFF << kBits)));
}
// Eight bytes of two codes, the earlier in the high nibble, to sixteen codes in order.
HWY_INLINE ByteVector codes_of_pairs(const uint8_t* p) {
  const hn::Half<Bytes> half;
  const auto pairs = hn::ZeroExtendVector(Bytes(), hn::LoadU(half, p));
  return hn::InterleaveLower(Bytes(), shifted_right<4>(pairs), low_nibble(pairs));
}

// body(d, codes as s32, offset) for each vector of the unit's sixteen codes.
template <class D, class Codes, class Body>
HWY_INLINE void each_vector_of(D d, Codes codes, const Body& body) {
  const hn::Rebind<int32_t, D> wide;
  constexpr size_t kLanes = hn::MaxLanes(D());
  if constexpr (kLanes == kUnit) {
    body(d, hn::PromoteTo(wide, codes), size_t{0});
  } else {
    const hn::Rebind<uint8_t, D> narrow;
    HWY_ALIGN uint8_t bytes[kUnit];
    hn::Store(codes, Bytes(), bytes);
    for (size_t i = 0; i < kUnit; i += kLanes) {
      body(d, hn::PromoteTo(wide, hn::LoadU(narrow, bytes + i)), i);
    }
  }
}
template <class Body>
HWY_INLINE void each_vector(ByteVector codes, const Body& body) {
  each_vector_of(hn::CappedTag<float, kUnit>(), codes, body);
}

// Sixteen values looked up by a code of four bits.
class LevelTable {
 public:
  explicit LevelTable(const float* levels) : levels_(levels) {}

  HWY_INLINE void write(ByteVector codes, float scale, float* to) const {
    const float* levels = levels_;
    each_vector(codes, [=](auto d, auto code, size_t i) HWY_ATTR {
      constexpr size_t kLanes = hn::MaxLanes(decltype(d)());
      const hn::Rebind<int32_t, decltype(d)> wide;
      if constexpr (kLanes >= 16) {
        const auto level = hn::TableLookupLanes(hn::LoadU(d, levels), hn::IndicesFromVec(d, code));
        hn::StoreU(hn::Mul(level, hn::Set(d, scale)), d, to + i);
      } else if constexpr (kLanes == 8) {
        const auto index = hn::IndicesFromVec(d, hn::And(code, hn::Set(wide, 7)));
        const auto low = hn::TableLookupLanes(hn::LoadU(d, levels), index);
        const auto high = hn::TableLookupLanes(hn::LoadU(d, levels + 8), index);
        const auto is_high = hn::RebindMask(d, hn::Gt(code, hn::Set(wide, 7)));
        hn::StoreU(hn::Mul(hn::IfThenElse(is_high, high, low), hn::Set(d, scale)), d, to + i);
      } else {
        HWY_ALIGN int32_t index[kLanes];
        hn::Store(code, wide, index);
        for (size_t lane = 0; lane < kLanes; ++lane) to[i + lane] = levels[index[lane]] * scale;
      }
    });
  }

 private:
  const float* levels_;
};

// (code - middle) * scale, and + offset: each operation rounded by itself.
HWY_INLINE void write_scaled(ByteVector codes, float middle, float scale, float* to) {
  each_vector(codes, [=](auto d, auto code, size_t i) HWY_ATTR {
    const auto centred = hn::Sub(hn::ConvertTo(d, code), hn::Set(d, middle));
    hn::StoreU(hn::Mul(centred, hn::Set(d, scale)), d, to + i);
  });
}
HWY_INLINE void write_affine(ByteVector codes, float scale, float offset, float* to) {
  each_vector(codes, [=](auto d, auto code, size_t i) HWY_ATTR {
    const auto scaled = hn::Mul(hn::ConvertTo(d, code), hn::Set(d, scale));
    hn::StoreU(hn::Add(scaled, hn::Set(d, offset)), d, to + i);
  });
}

// Signed bytes times a scale.
HWY_INLINE void write_signed(const uint8_t* codes, size_t count, float scale, float* to) {
  const FloatTag d;
  const hn::Rebind<int32_t, FloatTag> wide;
  const hn::Rebind<int8_t, FloatTag> narrow;
  const auto* from = reinterpret_cast<const int8_t*>(codes);
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto value = hn::ConvertTo(d, hn::PromoteTo(wide, hn::LoadU(narrow, from + i)));
    hn::StoreU(hn::Mul(value, hn::Set(d, scale)), d, to + i);
  }
  for (; i < count; ++i) to[i] = static_cast<float>(from[i]) * scale;
}

// f8 (e4m3fn) times a scale: the bits as an f32 of too small an exponent, brought back by 2^120;
// exact, subnormals included.
HWY_INLINE void write_f8(const uint8_t* codes, size_t count, float scale, float* to) {
  const FloatTag d;
  const hn::Rebind<uint32_t, FloatTag> wide;
  const hn::Rebind<uint8_t, FloatTag> narrow;
  const size_t lanes = hn::Lanes(d);
  const auto back = hn::Set(d, 0x1p120F);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto bits = hn::PromoteTo(wide, hn::LoadU(narrow, codes + i));
    const auto sign = hn::ShiftLeft<24>(hn::And(bits, hn::Set(wide, 0x80)));
    const auto rest = hn::ShiftLeft<20>(hn::And(bits, hn::Set(wide, 0x7F)));
    const auto magnitude = hn::Mul(hn::BitCast(d, rest), back);
    const auto value = hn::Or(magnitude, hn::BitCast(d, sign));
    hn::StoreU(hn::Mul(value, hn::Set(d, scale)), d, to + i);
  }
  for (; i < count; ++i) to[i] = f8_to_f32(DType::kF8E4M3FN, codes[i]) * scale;
}

HWY_INLINE float float_at(const uint8_t* p) {
  float value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}
HWY_INLINE float half_at(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, sizeof(bits));
  return f16_to_f32(bits);
}

// The codes of unit `first` of a ggml block of 32: low nibbles are its first half, high ones the
// second.
HWY_INLINE ByteVector half_codes(const uint8_t* codes, size_t first) {
  const ByteVector bytes = load_bytes(codes);
  return first == 0 ? low_nibble(bytes) : shifted_right<4>(bytes);
}

// 16 where bit (first + i) of the word is set.
HWY_INLINE ByteVector fifth_bits(const uint8_t* word, size_t first) {
  const hn::Full128<uint8_t> d;
  HWY_ALIGN static constexpr uint8_t kSpread[16] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1};
  HWY_ALIGN static constexpr uint8_t kBits[16] = {1, 2, 4, 8, 16, 32, 64, 128,
                                                  1, 2, 4, 8, 16, 32, 64, 128};
  HWY_ALIGN uint8_t bytes[16] = {};
  std::memcpy(bytes, word + first / 8, 2);
  const auto spread = hn::TableLookupBytes(hn::Load(d, bytes), hn::Load(d, kSpread));
  const auto bit = hn::Load(d, kBits);
  return hn::IfThenElseZero(hn::Eq(hn::And(spread, bit), bit), hn::Set(d, 16));
}

// One unit of a block of Q4_K or Q5_K.
HWY_INLINE void write_k(const uint8_t* block, bool fifth, size_t first, float* to) {
  const size_t group = first / 32;
  const auto [scale, offset] = group_of_k(block, group);
  const uint8_t* codes = block + (fifth ? 48 : 16) + 32 * (group / 2) + first % 32;
  ByteVector code =
      group % 2 == 0 ? low_nibble(load_bytes(codes)) : shifted_right<4>(load_bytes(codes));
  if (fifth) {
    const auto mask = hn::Set(Bytes(), static_cast<uint8_t>(1U << group));
    const auto bits = hn::And(load_bytes(block + 16 + first % 32), mask);
    code = hn::Or(code, hn::IfThenElseZero(hn::Eq(bits, mask), hn::Set(Bytes(), 16)));
  }
  write_affine(code, half_at(block) * static_cast<float>(scale),
               -(half_at(block + 2) * static_cast<float>(offset)), to);
}

// One unit of a block of Q6_K.
HWY_INLINE void write_q6_k(const uint8_t* block, size_t first, float* to) {
  const size_t group = first / 16, half = group / 8, quarter = group % 8 / 2;
  const size_t start = 16 * (group % 2);
  const auto factor = static_cast<int8_t>(block[192 + group]);
  const ByteVector low = load_bytes(block + 64 * half + 32 * (quarter % 2) + start);
  const ByteVector high = load_bytes(block + 128 + 32 * half + start);
  ByteVector top = low;
  switch (quarter) {
    case 0: top = shifted_left<4>(high); break;
    case 1: top = shifted_left<2>(high); break;
    case 2: top = high; break;
    default: top = shifted_right<2>(high); break;
  }
  top = hn::And(top, hn::Set(Bytes(), 0x30));
  const ByteVector code = hn::Or(quarter < 2 ? low_nibble(low) : shifted_right<4>(low), top);
  write_scaled(code, 32.0F, half_at(block + 208) * static_cast<float>(factor), to);
}

float mxfp4_scale(uint32_t exponent) {
  const uint32_t bits = exponent < 2 ? 0x00200000U << exponent : (exponent - 1) << 23;
  float scale;
  std::memcpy(&scale, &bits, sizeof(scale));
  return scale;
}

// Values [begin, begin + count) of one block of a ggml format.
HWY_INLINE void expand_ggml(PackedKind kind, const uint8_t* block, size_t begin, size_t count,
                            const LevelTable& table, float* out) {
  switch (kind) {
    case PackedKind::kQ4_0: {
      const float scale = half_at(block);
      return over_units(begin, count, out, [=](size_t first, float* to) HWY_ATTR {
        write_scaled(half_codes(block + 2, first), 8.0F, scale, to);
      });
    }
    case PackedKind::kQ4_1: {
      const float scale = half_at(block), offset = half_at(block + 2);
      return over_units(begin, count, out, [=](size_t first, float* to) HWY_ATTR {
        write_affine(half_codes(block + 4, first), scale, offset, to);
      });
    }
    case PackedKind::kQ5_0: {
      const float scale = half_at(block);
      return over_units(begin, count, out, [=](size_t first, float* to) HWY_ATTR {
        const auto code = hn::Or(half_codes(block + 6, first), fifth_bits(block + 2, first));
        write_scaled(code, 16.0F, scale, to);
      });
    }
    case PackedKind::kQ5_1: {
      const float scale = half_at(block), offset = half_at(block + 2);
      return over_units(begin, count, out, [=](size_t first, float* to) HWY_ATTR {
        const auto code = hn::Or(half_codes(block + 8, first), fifth_bits(block + 4, first));
        write_affine(code, scale, offset, to);
      });
    }
    case PackedKind::kQ8_0: return write_signed(block + 2 + begin, count, half_at(block), out);
    case PackedKind::kIQ4_NL: {
      const float scale = half_at(block);
      return over_units(begin, count, out, [=, &table](size_t first, float* to) HWY_ATTR {
        table.write(half_codes(block + 2, first), scale, to);
      });
    }
    case PackedKind::kMXFP4: {
      const float scale = mxfp4_scale(block[0]);
      return over_units(begin, count, out, [=, &table](size_t first, float* to) HWY_ATTR {
        table.write(half_codes(block + 1, first), scale, to);
      });
    }
    case PackedKind::kQ4_K:
    case PackedKind::kQ5_K: {
      const bool fifth = kind == PackedKind::kQ5_K;
      return over_units(begin, count, out, [=](size_t first, float* to) HWY_ATTR {
        write_k(block, fifth, first, to);
      });
    }
    default:
      return over_units(begin, count, out,
                        [=](size_t first, float* to) HWY_ATTR { write_q6_k(block, first, to); });
  }
}

HWY_INLINE float nested_magnitude(const uint8_t* data, size_t block, uint8_t code,
                                  const float* map) {
  return map[code] * float_at(data + 4 * (1 + block / kNestedBlock)) + float_at(data);
}

// Values [begin, begin + count) of block `index` of a format with an f32 scale.
HWY_INLINE void expand_scaled(PackedKind kind, const uint8_t* data, const uint8_t* block,
                              size_t index, size_t begin, size_t count, const LevelTable& table,
                              const float* map, float* out) {
  const bool nested = kind == PackedKind::kNf4Double;
  const float scale = nested ? nested_magnitude(data, index, block[0], map) : float_at(block);
  const uint8_t* codes = block + (nested ? 1 : 4);
  switch (kind) {
    case PackedKind::kNf4:
    case PackedKind::kNf4Double:
      return over_units(begin, count, out, [=, &table](size_t first, float* to) HWY_ATTR {
        table.write(codes_of_pairs(codes + first / 2), scale, to);
      });
    case PackedKind::kInt4:
      return over_units(begin, count, out, [=](size_t first, float* to) HWY_ATTR {
        write_scaled(codes_of_pairs(codes + first / 2), 8.0F, scale, to);
      });
    case PackedKind::kInt8: return write_signed(codes + begin, count, scale, out);
    default: return write_f8(codes + begin, count, scale, out);
  }
}

#endif  // GRAFT_HAS_UNITS

bool has_vectors(const PackedLayout& layout) {
#if GRAFT_HAS_UNITS
  switch (layout.kind) {
    case PackedKind::kNf4:
    case PackedKind::kNf4Double:
    case PackedKind::kInt4: return layout.block % static_cast<int64_t>(kUnit) == 0;
    case PackedKind::kF16:
    case PackedKind::kBF16:
    case PackedKind::kQ2_K:
    case PackedKind::kQ3_K:
    case PackedKind::kIQ4_XS: return false;
    default: return true;
  }
#else
  static_cast<void>(layout);
  return false;
#endif
}

// Values from `first` on, counted row by row; by blocks.
void expand(const PackedLayout& layout, const uint8_t* data, size_t first, size_t count,
            const float* levels, const float* map, float* out) {
#if GRAFT_HAS_UNITS
  if (has_vectors(layout)) {
    const auto block = static_cast<size_t>(layout.block);
    const auto block_bytes = static_cast<size_t>(layout.block_bytes());
    const uint8_t* blocks = data + layout.header_bytes();
    const bool ggml = is_ggml(layout.kind);
    const LevelTable table(levels);
    size_t index = first / block, begin = first % block;
    while (count > 0) {
      const size_t n = count < block - begin ? count : block - begin;
      const uint8_t* at = blocks + index * block_bytes;
      if (ggml) {
        expand_ggml(layout.kind, at, begin, n, table, out);
      } else {
        expand_scaled(layout.kind, data, at, index, begin, n, table, map, out);
      }
      out += n;
      count -= n;
      ++index;
      begin = 0;
    }
    return;
  }
#endif
  static_cast<void>(levels);
  static_cast<void>(map);
  expand_packed(layout, reinterpret_cast<const std::byte*>(data), static_cast<int64_t>(first),
                {out, count});
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace graft::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace graft::cpu {
namespace {

HWY_EXPORT(expand);

std::array<float, 16> as_floats(const std::array<int8_t, 16>& levels) {
  std::array<float, 16> values{};
  for (size_t i = 0; i < levels.size(); ++i) values[i] = static_cast<float>(levels[i]);
  return values;
}

const float* levels_of(PackedKind kind) {
  static const std::array<float, 16> non_linear = as_floats(kNonLinearLevels);
  static const std::array<float, 16> mxfp4 = as_floats(kMxfp4Levels);
  if (kind == PackedKind::kIQ4_NL) return non_linear.data();
  return kind == PackedKind::kMXFP4 ? mxfp4.data() : kNf4Levels.data();
}

}  // namespace

void unpack_rows(const PackedMatrix& matrix, int64_t row, int64_t rows, int64_t column,
                 int64_t columns, float* tile, int64_t tile_stride) {
  const float* levels = levels_of(matrix.layout.kind);
  const float* map = dynamic_map().data();
  const auto* data = static_cast<const uint8_t*>(matrix.data);
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t first = (row + i) * matrix.layout.columns + column;
    HWY_DYNAMIC_DISPATCH(expand)
    (matrix.layout, data, static_cast<size_t>(first), static_cast<size_t>(columns), levels, map,
     tile + i * tile_stride);
  }
}

void unpack_transposed(const PackedMatrix& matrix, int64_t row, int64_t rows, float* strip,
                       float* tile, int64_t tile_stride) {
  constexpr int64_t kRows = 16, kColumns = kStripElements / kRows;
  for (int64_t i = 0; i < rows; i += kRows) {
    const int64_t height = std::min(kRows, rows - i);
    for (int64_t j = 0; j < matrix.layout.columns; j += kColumns) {
      const int64_t width = std::min(kColumns, matrix.layout.columns - j);
      unpack_rows(matrix, row + i, height, j, width, strip, kColumns);
      pack_transposed({strip, DType::kF32, kColumns}, height, width, tile + j * tile_stride + i,
                      tile_stride);
    }
  }
}

}  // namespace graft::cpu
#endif  // HWY_ONCE
