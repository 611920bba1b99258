#include "formats/ggml_blocks.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/dtype.h"
#include "base/error.h"
#include "base/packed.h"

namespace graft {
namespace {

constexpr std::array kTypes = {
    GgmlTypeInfo{GgmlType::kF32, "F32", 1, 4, true},
    GgmlTypeInfo{GgmlType::kF16, "F16", 1, 2, true},
    GgmlTypeInfo{GgmlType::kQ4_0, "Q4_0", 32, 18, true},
    GgmlTypeInfo{GgmlType::kQ4_1, "Q4_1", 32, 20, true},
    GgmlTypeInfo{GgmlType::kQ5_0, "Q5_0", 32, 22, true},
    GgmlTypeInfo{GgmlType::kQ5_1, "Q5_1", 32, 24, true},
    GgmlTypeInfo{GgmlType::kQ8_0, "Q8_0", 32, 34, true},
    GgmlTypeInfo{GgmlType::kQ8_1, "Q8_1", 32, 36, false},
    GgmlTypeInfo{GgmlType::kQ2_K, "Q2_K", 256, 84, true},
    GgmlTypeInfo{GgmlType::kQ3_K, "Q3_K", 256, 110, true},
    GgmlTypeInfo{GgmlType::kQ4_K, "Q4_K", 256, 144, true},
    GgmlTypeInfo{GgmlType::kQ5_K, "Q5_K", 256, 176, true},
    GgmlTypeInfo{GgmlType::kQ6_K, "Q6_K", 256, 210, true},
    GgmlTypeInfo{GgmlType::kQ8_K, "Q8_K", 256, 292, false},
    GgmlTypeInfo{GgmlType::kIQ2_XXS, "IQ2_XXS", 256, 66, false},
    GgmlTypeInfo{GgmlType::kIQ2_XS, "IQ2_XS", 256, 74, false},
    GgmlTypeInfo{GgmlType::kIQ3_XXS, "IQ3_XXS", 256, 98, false},
    GgmlTypeInfo{GgmlType::kIQ1_S, "IQ1_S", 256, 50, false},
    GgmlTypeInfo{GgmlType::kIQ4_NL, "IQ4_NL", 32, 18, true},
    GgmlTypeInfo{GgmlType::kIQ3_S, "IQ3_S", 256, 110, false},
    GgmlTypeInfo{GgmlType::kIQ2_S, "IQ2_S", 256, 82, false},
    GgmlTypeInfo{GgmlType::kIQ4_XS, "IQ4_XS", 256, 136, true},
    GgmlTypeInfo{GgmlType::kI8, "I8", 1, 1, false},
    GgmlTypeInfo{GgmlType::kI16, "I16", 1, 2, false},
    GgmlTypeInfo{GgmlType::kI32, "I32", 1, 4, false},
    GgmlTypeInfo{GgmlType::kI64, "I64", 1, 8, false},
    GgmlTypeInfo{GgmlType::kF64, "F64", 1, 8, false},
    GgmlTypeInfo{GgmlType::kIQ1_M, "IQ1_M", 256, 56, false},
    GgmlTypeInfo{GgmlType::kBF16, "BF16", 1, 2, true},
    GgmlTypeInfo{GgmlType::kTQ1_0, "TQ1_0", 256, 54, false},
    GgmlTypeInfo{GgmlType::kTQ2_0, "TQ2_0", 256, 66, false},
    GgmlTypeInfo{GgmlType::kMXFP4, "MXFP4", 32, 17, true},
    GgmlTypeInfo{GgmlType::kNVFP4, "NVFP4", 64, 36, false},
};

float half_at(const uint8_t* bytes) {
  uint16_t bits;
  std::memcpy(&bits, bytes, sizeof(bits));
  return f16_to_f32(bits);
}

uint32_t word_at(const uint8_t* bytes) {
  uint32_t word;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}

// In all 32-value formats the low nibbles are the first half of a block, the high ones the second.
template <typename Value>
void expand_nibbles(const uint8_t* codes, float* out, Value value) {
  for (size_t i = 0; i < 16; ++i) {
    out[i] = value(codes[i] & 15, i);
    out[i + 16] = value(codes[i] >> 4, i + 16);
  }
}

void expand_q4_0(const uint8_t* block, float* out) {
  const float scale = half_at(block);
  expand_nibbles(block + 2, out,
                 [=](int code, size_t) { return static_cast<float>(code - 8) * scale; });
}

void expand_q4_1(const uint8_t* block, float* out) {
  const float scale = half_at(block);
  const float offset = half_at(block + 2);
  expand_nibbles(block + 4, out,
                 [=](int code, size_t) { return static_cast<float>(code) * scale + offset; });
}

void expand_q5_0(const uint8_t* block, float* out) {
  const float scale = half_at(block);
  const uint32_t fifth_bits = word_at(block + 2);
  expand_nibbles(block + 6, out, [=](int code, size_t i) {
    const int high = static_cast<int>((fifth_bits >> i) & 1) << 4;
    return static_cast<float>((code | high) - 16) * scale;
  });
}

void expand_q5_1(const uint8_t* block, float* out) {
  const float scale = half_at(block);
  const float offset = half_at(block + 2);
  const uint32_t fifth_bits = word_at(block + 4);
  expand_nibbles(block + 8, out, [=](int code, size_t i) {
    const int high = static_cast<int>((fifth_bits >> i) & 1) << 4;
    return static_cast<float>(code | high) * scale + offset;
  });
}

void expand_q8_0(const uint8_t* block, float* out) {
  const float scale = half_at(block);
  for (size_t i = 0; i < 32; ++i) {
    out[i] = static_cast<float>(static_cast<int8_t>(block[2 + i])) * scale;
  }
}

// 16 groups of 16 values of 2 bits; scale and offset of a group are 4 bits each.
void expand_q2_k(const uint8_t* block, float* out) {
  const uint8_t* groups = block;
  const uint8_t* codes = block + 16;
  const float scale = half_at(block + 80);
  const float offset = half_at(block + 82);
  for (size_t group = 0; group < 16; ++group) {
    const float group_scale = scale * static_cast<float>(groups[group] & 15);
    const float group_offset = offset * static_cast<float>(groups[group] >> 4);
    const uint8_t* from = codes + 32 * (group / 8) + 16 * (group % 2);
    const int shift = 2 * static_cast<int>(group % 8 / 2);
    for (size_t i = 0; i < 16; ++i) {
      out[16 * group + i] = group_scale * static_cast<float>((from[i] >> shift) & 3) - group_offset;
    }
  }
}

// 16 groups of 16 values of 2 bits, a third bit apart; scales of 6 bits, minus 32, packed in 12
// bytes: four low bits in the first eight, two high bits in the last four.
void expand_q3_k(const uint8_t* block, float* out) {
  const uint8_t* third_bits = block;
  const uint8_t* codes = block + 32;
  const uint8_t* packed = block + 96;
  const float scale = half_at(block + 108);
  for (size_t group = 0; group < 16; ++group) {
    const int low = group < 8 ? packed[group] & 15 : packed[group - 8] >> 4;
    const int high = (packed[8 + group % 4] >> (2 * (group / 4))) & 3;
    const float group_scale = scale * static_cast<float>((low | high << 4) - 32);
    const size_t start = 16 * (group % 2);
    const uint8_t* from = codes + 32 * (group / 8) + start;
    const int shift = 2 * static_cast<int>(group % 8 / 2);
    const int bit = static_cast<int>(group / 2);
    for (size_t i = 0; i < 16; ++i) {
      const int third = (third_bits[start + i] >> bit) & 1;
      const int code = ((from[i] >> shift) & 3) - (third != 0 ? 0 : 4);
      out[16 * group + i] = group_scale * static_cast<float>(code);
    }
  }
}

struct ScaleAndOffset {
  float scale, offset;
};

ScaleAndOffset scaled_group_of_k(const uint8_t* block, size_t group) {
  const GroupOfK of = group_of_k(block, group);
  return {half_at(block) * static_cast<float>(of.scale),
          half_at(block + 2) * static_cast<float>(of.offset)};
}

void expand_q4_k(const uint8_t* block, float* out) {
  for (size_t group = 0; group < 8; ++group) {
    const auto [scale, offset] = scaled_group_of_k(block, group);
    const uint8_t* codes = block + 16 + 32 * (group / 2);
    const int shift = group % 2 == 0 ? 0 : 4;
    for (size_t i = 0; i < 32; ++i) {
      out[32 * group + i] = scale * static_cast<float>((codes[i] >> shift) & 15) - offset;
    }
  }
}

void expand_q5_k(const uint8_t* block, float* out) {
  const uint8_t* fifth_bits = block + 16;
  for (size_t group = 0; group < 8; ++group) {
    const auto [scale, offset] = scaled_group_of_k(block, group);
    const uint8_t* codes = block + 48 + 32 * (group / 2);
    const int shift = group % 2 == 0 ? 0 : 4;
    for (size_t i = 0; i < 32; ++i) {
      const int high = ((fifth_bits[i] >> group) & 1) << 4;
      out[32 * group + i] = scale * static_cast<float>(((codes[i] >> shift) & 15) | high) - offset;
    }
  }
}

// 16 groups of 16 values of 6 bits, minus 32: four low bits, two high bits apart; 8-bit scales.
void expand_q6_k(const uint8_t* block, float* out) {
  const float scale = half_at(block + 208);
  for (size_t group = 0; group < 16; ++group) {
    const auto factor = static_cast<int8_t>(block[192 + group]);
    const float group_scale = scale * static_cast<float>(factor);
    const size_t half = group / 8;         // 128 values
    const size_t quarter = group % 8 / 2;  // 32 values
    const size_t start = 16 * (group % 2);
    const uint8_t* low = block + 64 * half + 32 * (quarter % 2) + start;
    const uint8_t* high = block + 128 + 32 * half + start;
    const int low_shift = quarter < 2 ? 0 : 4;
    const int high_shift = 2 * static_cast<int>(quarter);
    for (size_t i = 0; i < 16; ++i) {
      const int code = ((low[i] >> low_shift) & 15) | ((high[i] >> high_shift) & 3) << 4;
      out[16 * group + i] = group_scale * static_cast<float>(code - 32);
    }
  }
}

void expand_iq4_nl(const uint8_t* block, float* out) {
  const float scale = half_at(block);
  expand_nibbles(block + 2, out, [=](int code, size_t) {
    return scale * static_cast<float>(kNonLinearLevels[static_cast<size_t>(code)]);
  });
}

// Eight groups of 32 values; 6-bit scales, minus 32: four low bits in bytes 4-7, two high bits in
// 2-3.
void expand_iq4_xs(const uint8_t* block, float* out) {
  const float scale = half_at(block);
  const int high_bits = block[2] | block[3] << 8;
  for (size_t group = 0; group < 8; ++group) {
    const int low = (block[4 + group / 2] >> (4 * (group % 2))) & 15;
    const int high = (high_bits >> (2 * group)) & 3;
    const float group_scale = scale * static_cast<float>((low | high << 4) - 32);
    expand_nibbles(block + 8 + 16 * group, out + 32 * group, [=](int code, size_t) {
      return group_scale * static_cast<float>(kNonLinearLevels[static_cast<size_t>(code)]);
    });
  }
}

// The scale is a power of two, E8M0, halved because the levels are doubled: 2^(e - 128).
void expand_mxfp4(const uint8_t* block, float* out) {
  const uint32_t exponent = block[0];
  const float scale =
      std::bit_cast<float>(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23);
  expand_nibbles(block + 1, out, [=](int code, size_t) {
    return scale * static_cast<float>(kMxfp4Levels[static_cast<size_t>(code)]);
  });
}

template <void (*Expand)(const uint8_t*, float*)>
void expand_all(const GgmlTypeInfo& info, std::span<const std::byte> blocks, float* values) {
  const auto* block = reinterpret_cast<const uint8_t*>(blocks.data());
  for (size_t i = 0; i < blocks.size() / info.block_bytes; ++i) {
    Expand(block + i * info.block_bytes, values + i * info.block_values);
  }
}

}  // namespace

const GgmlTypeInfo* ggml_type_info(uint32_t type) {
  const auto* found = std::find_if(kTypes.begin(), kTypes.end(), [=](const GgmlTypeInfo& each) {
    return static_cast<uint32_t>(each.type) == type;
  });
  return found == kTypes.end() ? nullptr : found;
}

void dequantize_blocks(GgmlType type, std::span<const std::byte> blocks, std::span<float> values) {
  const GgmlTypeInfo* info = ggml_type_info(static_cast<uint32_t>(type));
  GRAFT_CHECK(info != nullptr && info->expandable);
  GRAFT_CHECK(blocks.size() % info->block_bytes == 0 &&
              blocks.size() / info->block_bytes * info->block_values == values.size());
  float* out = values.data();
  switch (type) {
    case GgmlType::kF32:
      if (!blocks.empty()) std::memcpy(out, blocks.data(), blocks.size());
      return;
    case GgmlType::kF16:
      return convert_elements(blocks.data(), DType::kF16, out, DType::kF32, values.size());
    case GgmlType::kBF16:
      return convert_elements(blocks.data(), DType::kBF16, out, DType::kF32, values.size());
    case GgmlType::kQ4_0: return expand_all<expand_q4_0>(*info, blocks, out);
    case GgmlType::kQ4_1: return expand_all<expand_q4_1>(*info, blocks, out);
    case GgmlType::kQ5_0: return expand_all<expand_q5_0>(*info, blocks, out);
    case GgmlType::kQ5_1: return expand_all<expand_q5_1>(*info, blocks, out);
    case GgmlType::kQ8_0: return expand_all<expand_q8_0>(*info, blocks, out);
    case GgmlType::kQ2_K: return expand_all<expand_q2_k>(*info, blocks, out);
    case GgmlType::kQ3_K: return expand_all<expand_q3_k>(*info, blocks, out);
    case GgmlType::kQ4_K: return expand_all<expand_q4_k>(*info, blocks, out);
    case GgmlType::kQ5_K: return expand_all<expand_q5_k>(*info, blocks, out);
    case GgmlType::kQ6_K: return expand_all<expand_q6_k>(*info, blocks, out);
    case GgmlType::kIQ4_NL: return expand_all<expand_iq4_nl>(*info, blocks, out);
    case GgmlType::kIQ4_XS: return expand_all<expand_iq4_xs>(*info, blocks, out);
    case GgmlType::kMXFP4: return expand_all<expand_mxfp4>(*info, blocks, out);
    default: break;
  }
  GRAFT_CHECK(false, "{} has no expansion", info->name);
}

}  // namespace graft
