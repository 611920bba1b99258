#include "ops/unpack.h"

#include <cmath>

#include "ir/primitives.h"
#include "ir/shape_rules.h"
#include "ops/common.h"

namespace graft {
namespace {

// The bytes of all blocks, u8 [blocks, block_bytes], and the fields cut out of them.
class Blocks {
 public:
  Blocks(Value bytes, int64_t blocks) : bytes_(bytes), blocks_(blocks) {}

  // Bytes [begin, begin + count) of each block: u8 [blocks, count].
  Value field(int64_t begin, int64_t count) const { return slice(bytes_, 1, begin, begin + count); }
  // The same in 32 bits.
  Value wide(int64_t begin, int64_t count) const {
    return convert(field(begin, count), DType::kU32);
  }
  int64_t count() const { return blocks_; }

 private:
  Value bytes_;
  int64_t blocks_;
};

Value constant_like(Value x, double value) { return splat(x.graph(), value, x.type()); }
Value masked(Value x, double mask) { return x & constant_like(x, mask); }
Value bit_set(Value x, int bit) { return not_equal(masked(shift_right(x, bit), 1), zeros_like(x)); }
Value as_float(Value x) { return convert(x, DType::kF32); }

// 2^e for the low `bits` bits of e: a product of powers of two, so exact.
Value power_of_two(Value e, int bits) {
  Value power;
  for (int bit = 0; bit < bits; ++bit) {
    const Type type{DType::kF32, e.shape()};
    const double step = std::ldexp(1.0, 1 << bit);
    const Value factor =
        select(bit_set(e, bit), splat(e.graph(), step, type), splat(e.graph(), 1, type));
    power = power.defined() ? power * factor : factor;
  }
  return power;
}

constexpr double kTwoToMinus64 = 0x1p-64;

// A float of `exponent_bits` and `mantissa_bits` (both below 8 and 10: f16, f8) from its bits.
Value small_float(Value bits, int exponent_bits, int mantissa_bits) {
  const int width = exponent_bits + mantissa_bits;
  const Value exponent =
      masked(shift_right(bits, mantissa_bits), static_cast<double>((1 << exponent_bits) - 1));
  const Value is_normal = not_equal(exponent, zeros_like(exponent));
  const Value mantissa = masked(bits, static_cast<double>((1 << mantissa_bits) - 1));
  const Value hidden = constant_like(bits, static_cast<double>(1 << mantissa_bits));
  const Value significand = as_float(select(is_normal, mantissa | hidden, mantissa));
  const Value at_least_one = maximum(exponent, constant_like(exponent, 1));
  const int bias = (1 << (exponent_bits - 1)) - 1 + mantissa_bits;
  const Value magnitude = significand * (1.0 / static_cast<double>(uint64_t{1} << bias)) *
                          power_of_two(at_least_one, exponent_bits);
  return select(bit_set(bits, width), -magnitude, magnitude);
}

// f32 from its bits: significand * 2^(e - 150), the power in steps that stay in range.
Value float_from_bits(Value bits) {
  const Value exponent = masked(shift_right(bits, 23), 255);
  const Value is_normal = not_equal(exponent, zeros_like(exponent));
  const Value mantissa = masked(bits, 0x7FFFFF);
  const Value significand =
      as_float(select(is_normal, mantissa | constant_like(bits, 0x800000), mantissa));
  const Value e = maximum(exponent, constant_like(exponent, 1));
  const Value scaled = significand * 0x1p-23 * power_of_two(e, 7);  // * 2^(e mod 128)
  const Value magnitude =
      select(bit_set(e, 7), scaled * 2.0, scaled * kTwoToMinus64 * (2.0 * kTwoToMinus64));
  return select(bit_set(bits, 31), -magnitude, magnitude);
}

// Little-endian words out of bytes [..., n * size]: u32 [..., n].
Value words(Value bytes, int size) {
  Shape split = bytes.shape();
  split.back() /= size;
  split.push_back(size);
  const Value parts = reshape(bytes, split);
  const int axis = parts.rank() - 1;
  Shape shape(split.begin(), split.end() - 1);
  Value word;
  for (int i = 0; i < size; ++i) {
    Value part = reshape(convert(slice(parts, axis, i, i + 1), DType::kU32), shape);
    if (i > 0) part = shift_left(part, 8 * i);
    word = word.defined() ? word | part : part;
  }
  return word;
}

Value floats(Value bytes) { return float_from_bits(words(bytes, 4)); }
Value halves(Value bytes) { return small_float(words(bytes, 2), 5, 10); }

// Signed bytes of u8.
Value signed_bytes(Value bytes) {
  const Value x = convert(bytes, DType::kS32);
  return as_float(select(greater(x, constant_like(x, 127)), x - constant_like(x, 256), x));
}

// levels[code] by a tree of selects over the four bits of a code.
template <typename T>
Value level_of(Value code, const std::array<T, 16>& levels) {
  const Type type{DType::kF32, code.shape()};
  std::vector<Value> choices;
  for (const T level : levels) {
    choices.push_back(splat(code.graph(), static_cast<double>(level), type));
  }
  for (int bit = 0; bit < 4; ++bit) {
    const Value odd = bit_set(code, bit);
    std::vector<Value> half;
    for (size_t i = 0; i < choices.size(); i += 2) {
      half.push_back(select(odd, choices[i + 1], choices[i]));
    }
    choices = std::move(half);
  }
  return choices[0];
}

// [..., n] and [..., n] -> [..., 2n], in turn or one behind the other.
Value interleaved(Value first, Value second) {
  Shape one = first.shape();
  one.push_back(1);
  Shape joined = first.shape();
  joined.back() *= 2;
  const std::vector<Value> parts{reshape(first, one), reshape(second, one)};
  return reshape(concatenate(parts, static_cast<int>(one.size()) - 1), joined);
}
Value appended(Value first, Value second) {
  return concatenate(std::vector<Value>{first, second}, first.rank() - 1);
}

Value low_nibbles(Value bytes) { return masked(bytes, 15); }
Value high_nibbles(Value bytes) { return shift_right(bytes, 4); }

// x [blocks, groups] against values [blocks, groups * n].
Value over_group(Value x, int64_t n) {
  Shape shape = x.shape();
  shape.push_back(n);
  const Value wide = broadcast_in_dim(x, shape, first_axes(x.rank()));
  return reshape(wide, {x.dim(0), x.dim(1) * n});
}

Value nested_magnitudes(const PackedLayout& layout, Value packed, Value codes) {
  Graph& graph = packed.graph();
  const Value header = floats(slice(packed, 0, 0, layout.header_bytes()));
  const int64_t groups = header.dim(0) - 1;
  const auto& map = dynamic_map();
  const Value table =
      literal(graph, Tensor::of<float>({256}, std::vector<float>(map.begin(), map.end())));
  const Value level = reshape(gather(table, convert(codes, DType::kS32)), {layout.blocks()});
  const Value scales =
      reshape(over_group(reshape(slice(header, 0, 1, groups + 1), {1, groups}), kNestedBlock),
              {groups * kNestedBlock});
  const Value offset = reshape(slice(header, 0, 0, 1), {});
  const Value magnitudes = level * slice(scales, 0, 0, layout.blocks()) + offset;
  return reshape(magnitudes, {layout.blocks(), 1});
}

// ---- A format at a time: values [blocks, block] -------------------------------------------------

Value unpack_pairs(const PackedLayout& layout, Value scales, Value codes) {
  const Value code = interleaved(high_nibbles(codes), low_nibbles(codes));
  const Value value = layout.kind == PackedKind::kInt4 ? as_float(convert(code, DType::kS32)) - 8.0
                                                       : level_of(code, kNf4Levels);
  return value * over_group(scales, layout.block);
}

Value unpack_32(PackedKind kind, const Blocks& b) {
  if (kind == PackedKind::kQ8_0) {
    return signed_bytes(b.field(2, 32)) * over_group(halves(b.field(0, 2)), 32);
  }
  if (kind == PackedKind::kMXFP4) {
    const Value e = b.wide(0, 1);
    const Value power = power_of_two(e, 7);
    // 2^(e - 128)
    const Value scale = select(bit_set(e, 7), power, power * kTwoToMinus64 * kTwoToMinus64);
    const Value codes = b.field(1, 16);
    return level_of(appended(low_nibbles(codes), high_nibbles(codes)), kMxfp4Levels) *
           over_group(scale, 32);
  }
  const bool has_offset = kind == PackedKind::kQ4_1 || kind == PackedKind::kQ5_1;
  const bool has_fifth = kind == PackedKind::kQ5_0 || kind == PackedKind::kQ5_1;
  const int64_t fifth_at = has_offset ? 4 : 2, codes_at = fifth_at + (has_fifth ? 4 : 0);
  const Value bytes = b.field(codes_at, 16);
  Value code = appended(low_nibbles(bytes), high_nibbles(bytes));
  const Value scale = over_group(halves(b.field(0, 2)), 32);
  if (kind == PackedKind::kIQ4_NL) return level_of(code, kNonLinearLevels) * scale;
  if (has_fifth) {
    const Type type{DType::kU32, {b.count(), 32}};
    const Value word = over_group(words(b.field(fifth_at, 4), 4), 32);
    const Value bit = b.field(0, 1).graph().add1(kShiftRight, {word, iota(word.graph(), type, 1)});
    code = convert(code, DType::kU32) | shift_left(masked(bit, 1), 4);
  }
  Value value = as_float(convert(code, DType::kS32));
  if (kind == PackedKind::kQ4_0) value = value - 8.0;
  if (kind == PackedKind::kQ5_0) value = value - 16.0;
  value = value * scale;
  return has_offset ? value + over_group(halves(b.field(2, 2)), 32) : value;
}

// Codes of `bits` bits out of bytes [blocks, n], 8 / bits planes behind each other:
// [blocks, 8 / bits, n].
Value planes(Value bytes, int bits) {
  std::vector<Value> parts;
  for (int shift = 0; shift < 8; shift += bits) {
    const Value plane = masked(shift == 0 ? bytes : shift_right(bytes, shift),
                               static_cast<double>((1 << bits) - 1));
    parts.push_back(reshape(plane, {bytes.dim(0), 1, bytes.dim(1)}));
  }
  return concatenate(parts, 1);
}

// The same for runs of `run` bytes: each run's planes before the next run's: [blocks, values].
Value planes_by_run(Value bytes, int64_t run, int bits) {
  const int64_t blocks = bytes.dim(0), runs = bytes.dim(1) / run;
  return reshape(planes(reshape(bytes, {blocks * runs, run}), bits), {blocks, -1});
}

Value number(Value code) { return as_float(convert(code, DType::kS32)); }

Value unpack_q2_k(const Blocks& b) {
  const Value groups = b.field(0, 16);
  const Value scale = halves(b.field(80, 2)), offset = halves(b.field(82, 2));
  const Value group_scale = over_group(scale, 16) * number(low_nibbles(groups));
  const Value group_offset = over_group(offset, 16) * number(high_nibbles(groups));
  return over_group(group_scale, 16) * number(planes_by_run(b.field(16, 64), 32, 2)) -
         over_group(group_offset, 16);
}

Value unpack_q3_k(const Blocks& b) {
  const Value packed = b.field(96, 12);
  const Value first = slice(packed, 1, 0, 8);
  const Value low = appended(low_nibbles(first), high_nibbles(first));
  const Value high = reshape(planes(slice(packed, 1, 8, 12), 2), {b.count(), 16});
  const Value factor = number(low | shift_left(high, 4)) - 32.0;
  const Value third = reshape(planes(b.field(0, 32), 1), {b.count(), 256});
  const Value code = number(planes_by_run(b.field(32, 64), 32, 2) | shift_left(third, 2)) - 4.0;
  return over_group(over_group(halves(b.field(108, 2)), 16) * factor, 16) * code;
}

// Q4_K and Q5_K: scales and offsets of eight groups, six bits each, in twelve bytes.
Value unpack_q45_k(const Blocks& b, bool fifth) {
  const Value p0 = b.field(4, 4), p1 = b.field(8, 4), p2 = b.field(12, 4);
  const auto join = [](Value low, Value top) { return low | shift_left(shift_right(top, 6), 4); };
  const Value scales = appended(masked(p0, 63), join(low_nibbles(p2), p0));
  const Value offsets = appended(masked(p1, 63), join(high_nibbles(p2), p1));
  const Value group_scale = over_group(halves(b.field(0, 2)), 8) * number(scales);
  const Value group_offset = over_group(halves(b.field(2, 2)), 8) * number(offsets);
  Value code = planes_by_run(b.field(fifth ? 48 : 16, 128), 32, 4);
  if (fifth) {
    code = code | shift_left(reshape(planes(b.field(16, 32), 1), {b.count(), 256}), 4);
  }
  return over_group(group_scale, 32) * number(code) - over_group(group_offset, 32);
}

Value unpack_q6_k(const Blocks& b) {
  const Value scale = over_group(halves(b.field(208, 2)), 16) * signed_bytes(b.field(192, 16));
  const Value low = planes_by_run(b.field(0, 128), 64, 4);
  const Value high = planes_by_run(b.field(128, 64), 32, 2);
  return over_group(scale, 16) * (number(low | shift_left(high, 4)) - 32.0);
}

Value unpack_iq4_xs(const Blocks& b) {
  const Value bytes = b.field(4, 4);
  const Value low = interleaved(low_nibbles(bytes), high_nibbles(bytes));
  const Value high_bits = b.field(2, 2);
  // Two bits a group, from the lowest of each byte on.
  const Value split = planes(reshape(high_bits, {b.count() * 2, 1}), 2);
  const Value high = reshape(split, {b.count(), 8});
  const Value factor = number(low | shift_left(high, 4)) - 32.0;
  const Value scale = over_group(halves(b.field(0, 2)), 8) * factor;
  const Value code = planes_by_run(b.field(8, 128), 16, 4);
  return over_group(scale, 32) * level_of(code, kNonLinearLevels);
}

Value unpack_blocks(const PackedLayout& layout, Value packed, const Blocks& b) {
  switch (layout.kind) {
    case PackedKind::kNf4:
    case PackedKind::kInt4:
      return unpack_pairs(layout, floats(b.field(0, 4)), b.field(4, layout.block / 2));
    case PackedKind::kNf4Double:
      return unpack_pairs(layout, nested_magnitudes(layout, packed, b.field(0, 1)),
                          b.field(1, layout.block / 2));
    case PackedKind::kInt8:
      return signed_bytes(b.field(4, layout.block)) *
             over_group(floats(b.field(0, 4)), layout.block);
    case PackedKind::kFp8:
      return small_float(b.wide(4, layout.block), 4, 3) *
             over_group(floats(b.field(0, 4)), layout.block);
    case PackedKind::kF16: return halves(b.field(0, 2));
    case PackedKind::kBF16: return float_from_bits(shift_left(words(b.field(0, 2), 2), 16));
    case PackedKind::kQ2_K: return unpack_q2_k(b);
    case PackedKind::kQ3_K: return unpack_q3_k(b);
    case PackedKind::kQ4_K: return unpack_q45_k(b, false);
    case PackedKind::kQ5_K: return unpack_q45_k(b, true);
    case PackedKind::kQ6_K: return unpack_q6_k(b);
    case PackedKind::kIQ4_XS: return unpack_iq4_xs(b);
    default: return unpack_32(layout.kind, b);
  }
}

}  // namespace

Value unpack(const PackedLayout& layout, Value packed, DType dtype) {
  const int64_t blocks = layout.blocks(), header = layout.header_bytes();
  Value flat = reshape(packed, {layout.bytes()});
  const Value body = header == 0 ? flat : slice(flat, 0, header, layout.bytes());
  const Blocks b(reshape(body, {blocks, layout.block_bytes()}), blocks);
  Value values = reshape(unpack_blocks(layout, flat, b), {blocks * layout.block});
  if (blocks * layout.block != layout.elements()) values = slice(values, 0, 0, layout.elements());
  return convert(reshape(values, {layout.rows, layout.columns}), dtype);
}

std::optional<PackedLayout> packed_layout(const Attributes& attributes) {
  if (!attributes.has(kPackedAttribute)) return std::nullopt;
  return PackedLayout::parse(attributes.text(kPackedAttribute));
}

void set_packed(Attributes& attributes, const Weight& weight) {
  if (weight.layout) attributes.set(kPackedAttribute, weight.layout->text());
}

Type weight_type(const Type& stored, const Attributes& attributes) {
  const auto layout = packed_layout(attributes);
  return layout ? Type{DType::kF32, {layout->rows, layout->columns}} : stored;
}

Value expanded_weight(Value stored, const Attributes& attributes, DType dtype) {
  const auto layout = packed_layout(attributes);
  return layout ? unpack(*layout, stored, dtype) : stored;
}

}  // namespace graft
