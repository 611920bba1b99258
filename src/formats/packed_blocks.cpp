#include "formats/packed_blocks.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "formats/ggml_blocks.h"

namespace graft {
namespace {

float float_at(const std::byte* bytes) {
  float value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

int code_of_pair(const std::byte* codes, int64_t i) {
  const auto pair = static_cast<int>(codes[i / 2]);
  return i % 2 == 0 ? pair >> 4 : pair & 15;
}

float block_scale(const PackedLayout& layout, const std::byte* data, int64_t block,
                  const std::byte* at) {
  if (layout.kind != PackedKind::kNf4Double) return float_at(at);
  const float code = dynamic_map()[static_cast<uint8_t>(*at)];
  return code * float_at(data + 4 * (1 + block / kNestedBlock)) + float_at(data);
}

GgmlType ggml_type(PackedKind kind) {
  for (uint32_t number = 0; number < 64; ++number) {
    const GgmlTypeInfo* info = ggml_type_info(number);
    if (info != nullptr && info->name == packed_kind_name(kind)) return info->type;
  }
  GRAFT_CHECK(false, "{} is no ggml type", packed_kind_name(kind));
  return GgmlType::kF32;
}

// Values [begin, begin + count) of one block.
void expand_block(const PackedLayout& layout, const std::byte* data, int64_t block, int64_t begin,
                  int64_t count, float* out) {
  const std::byte* at = data + layout.header_bytes() + block * layout.block_bytes();
  const float scale = block_scale(layout, data, block, at);
  const std::byte* codes = at + (layout.kind == PackedKind::kNf4Double ? 1 : 4);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t e = begin + i;
    switch (layout.kind) {
      case PackedKind::kNf4:
      case PackedKind::kNf4Double:
        out[i] = kNf4Levels[static_cast<size_t>(code_of_pair(codes, e))] * scale;
        break;
      case PackedKind::kInt4:
        out[i] = static_cast<float>(code_of_pair(codes, e) - 8) * scale;
        break;
      case PackedKind::kInt8:
        out[i] = static_cast<float>(static_cast<int8_t>(codes[e])) * scale;
        break;
      default: out[i] = f8_to_f32(DType::kF8E4M3FN, static_cast<uint8_t>(codes[e])) * scale; break;
    }
  }
}

}  // namespace

void expand_packed(const PackedLayout& layout, const std::byte* data, int64_t first,
                   std::span<float> values) {
  const auto total = static_cast<int64_t>(values.size());
  const bool ggml = is_ggml(layout.kind);
  const GgmlType type = ggml ? ggml_type(layout.kind) : GgmlType::kF32;
  std::vector<float> whole(ggml ? static_cast<size_t>(layout.block) : 0);
  for (int64_t done = 0; done < total;) {
    const int64_t block = (first + done) / layout.block, begin = (first + done) % layout.block;
    int64_t count = std::min(total - done, layout.block - begin);
    float* out = values.data() + done;
    if (ggml) {
      const std::byte* at = data + block * layout.block_bytes();
      if (begin == 0 && count == layout.block) {
        const int64_t blocks = (total - done) / layout.block;
        count = blocks * layout.block;
        dequantize_blocks(type, {at, static_cast<size_t>(blocks * layout.block_bytes())},
                          {out, static_cast<size_t>(count)});
      } else {
        dequantize_blocks(type, {at, static_cast<size_t>(layout.block_bytes())}, whole);
        std::copy_n(whole.data() + begin, count, out);
      }
    } else {
      expand_block(layout, data, block, begin, count, out);
    }
    done += count;
  }
}

Tensor expand_packed(const PackedLayout& layout, const Tensor& packed) {
  GRAFT_CHECK(static_cast<int64_t>(packed.size_bytes()) == layout.bytes());
  Tensor values = Tensor::empty(DType::kF32, {layout.rows, layout.columns});
  float* to = values.data<float>();
  for_parts(layout.rows, [&layout, &packed, to](int64_t begin, int64_t end) {
    expand_packed(
        layout, packed.bytes(), begin * layout.columns,
        {to + begin * layout.columns, static_cast<size_t>((end - begin) * layout.columns)});
  });
  return values;
}

void check_scales(const PackedLayout& layout, const Tensor& packed, const std::string& where) {
  const std::byte* data = packed.bytes();
  const auto refuse = [&](int64_t block, const char* what) {
    throw Error(fmt::format("the {} of block {} is not finite ({})", what, block, layout.scheme()),
                where, "the file is damaged: download or quantise the model again");
  };
  if (layout.kind == PackedKind::kNf4Double) {
    for (int64_t i = 0; i < layout.header_bytes() / 4; ++i) {
      if (!std::isfinite(float_at(data + 4 * i))) refuse(std::max<int64_t>(0, i - 1), "scale");
    }
    return;
  }
  // What of a block is a scale or an offset: f32 or f16, at which byte.
  std::vector<int64_t> halves;
  switch (layout.kind) {
    case PackedKind::kQ4_0:
    case PackedKind::kQ5_0:
    case PackedKind::kQ8_0:
    case PackedKind::kIQ4_NL:
    case PackedKind::kIQ4_XS: halves = {0}; break;
    case PackedKind::kQ4_1:
    case PackedKind::kQ5_1:
    case PackedKind::kQ4_K:
    case PackedKind::kQ5_K: halves = {0, 2}; break;
    case PackedKind::kQ2_K: halves = {80, 82}; break;
    case PackedKind::kQ3_K: halves = {108}; break;
    case PackedKind::kQ6_K: halves = {208}; break;
    case PackedKind::kF16:
    case PackedKind::kBF16:
    case PackedKind::kMXFP4: return;
    default: break;
  }
  for (int64_t block = 0; block < layout.blocks(); ++block) {
    const std::byte* at = data + block * layout.block_bytes();
    if (halves.empty() && !std::isfinite(float_at(at))) refuse(block, "scale");
    for (const int64_t half : halves) {
      uint16_t bits;
      std::memcpy(&bits, at + half, sizeof(bits));
      if (!std::isfinite(f16_to_f32(bits))) refuse(block, half == halves[0] ? "scale" : "offset");
    }
  }
}

void for_parts(int64_t count, const std::function<void(int64_t, int64_t)>& f) {
  const int64_t workers =
      std::clamp<int64_t>(std::thread::hardware_concurrency(), 1, std::max<int64_t>(count, 1));
  std::exception_ptr failure;
  std::mutex mutex;
  {
    std::vector<std::jthread> threads;
    for (int64_t w = 0; w < workers; ++w) {
      threads.emplace_back([&, w] {
        try {
          f(count * w / workers, count * (w + 1) / workers);
        } catch (...) {
          const std::scoped_lock lock(mutex);
          failure = std::current_exception();
        }
      });
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace graft
