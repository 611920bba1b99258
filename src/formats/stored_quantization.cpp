#include "formats/stored_quantization.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>

#include "formats/packed_blocks.h"

namespace graft {
namespace {

constexpr const char* kStateName = ".quant_state.bitsandbytes__nf4";
constexpr const char* kDamaged = "the file is damaged: download or quantise the model again";

void store_float(std::byte* to, float value) { std::memcpy(to, &value, sizeof(value)); }
float load_float(const std::byte* from) {
  float value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

// ---- bitsandbytes -------------------------------------------------------------------------------

class BitsAndBytesWeight {
 public:
  BitsAndBytesWeight(const SafetensorsFile& file, std::string weight, int64_t rows, int64_t columns)
      : file_(file), weight_(std::move(weight)) {
    layout_ = {PackedKind::kNf4, 64, rows, columns};
    read_state();
    check_part("", DType::kU8, (layout_.elements() + 1) / 2);
    const int64_t blocks = layout_.blocks();
    if (has_nested_) {
      check_part(".absmax", DType::kU8, blocks);
      check_part(".nested_absmax", DType::kF32, (blocks + nested_block_ - 1) / nested_block_);
      check_part(".nested_quant_map", DType::kF32, 256);
    } else {
      check_part(".absmax", DType::kF32, blocks);
    }
    check_part(".quant_map", DType::kF32, 16);
    const Tensor map = part(".quant_map");
    if (!std::equal(kNf4Levels.begin(), kNf4Levels.end(), map.data<float>())) {
      refuse(".quant_map", "holds other levels than those of nf4", "quantise the model with nf4");
    }
    if (has_nested_ && nested_block_ == kNestedBlock) {
      const Tensor nested_map = part(".nested_quant_map");
      const auto& standard = dynamic_map();
      // A map of one's own: scales are then expanded, which loses nothing but memory.
      if (std::equal(standard.begin(), standard.end(), nested_map.data<float>())) {
        layout_.kind = PackedKind::kNf4Double;
      }
    }
  }

  const PackedLayout& layout() const { return layout_; }

  Tensor read() const {
    Tensor packed = Tensor::zeros(DType::kU8, layout_.stored_shape());
    std::byte* to = packed.mutable_bytes();
    const Tensor codes = part(""), magnitudes = part(".absmax");
    const bool nested = layout_.kind == PackedKind::kNf4Double;
    if (nested) write_header(to);
    const std::vector<float> scales = nested ? std::vector<float>() : expanded_scales();
    const int64_t block_codes = layout_.block / 2, total = codes.elements();
    for (int64_t b = 0; b < layout_.blocks(); ++b) {
      std::byte* at = to + layout_.header_bytes() + b * layout_.block_bytes();
      if (nested) {
        *at++ = magnitudes.bytes()[b];
      } else {
        store_float(at, scales[static_cast<size_t>(b)]);
        at += sizeof(float);
      }
      const int64_t first = b * block_codes;
      std::memcpy(at, codes.bytes() + first,
                  static_cast<size_t>(std::min(block_codes, total - first)));
    }
    check_scales(layout_, packed, where(""));
    return packed;
  }

 private:
  std::string where(const std::string& suffix) const {
    return fmt::format("{}: {}{}", file_.files().empty() ? "" : file_.files()[0].string(), weight_,
                       suffix);
  }
  [[noreturn]] void refuse(const std::string& suffix, const std::string& problem,
                           const std::string& remedy = kDamaged) const {
    throw Error(problem, where(suffix), remedy);
  }

  void check_part(const std::string& suffix, DType dtype, int64_t elements) const {
    const SafetensorsEntry* entry = file_.find(weight_ + suffix);
    if (entry == nullptr) refuse(suffix, "is missing beside the quantised weight");
    if (entry->dtype != dtype) {
      refuse(suffix,
             fmt::format("is stored as {}, not as {}", entry->type, safetensors_type_name(dtype)));
    }
    if (element_count(entry->shape) != elements) {
      refuse(suffix, fmt::format("has {} elements, a weight of [{}, {}] in blocks of {} needs {}",
                                 element_count(entry->shape), layout_.rows, layout_.columns,
                                 layout_.block, elements));
    }
  }
  Tensor part(const std::string& suffix) const { return file_.tensor(weight_ + suffix); }

  void read_state() {
    const std::string name = weight_ + kStateName;
    const SafetensorsEntry* entry = file_.find(name);
    if (entry == nullptr) {
      if (file_.contains(weight_ + ".quant_state.bitsandbytes__fp4")) {
        refuse("", "is quantised as fp4, which is not supported", "quantise the model with nf4");
      }
      refuse(kStateName, "is missing beside the quantised weight");
    }
    const auto bytes = file_.bytes(name);
    const std::string place = where(kStateName);
    const nlohmann::json document =
        parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, place);
    const JsonObject state(document, place);
    if (state.required<std::string>("quant_type") != "nf4") {
      state.fail("quant_type", "only nf4 is supported", "quantise the model with nf4");
    }
    layout_.block = state.required<int64_t>("blocksize");
    if (layout_.block < 16 || layout_.block > 4096 ||
        !std::has_single_bit(static_cast<uint64_t>(layout_.block))) {
      state.fail("blocksize", "is no power of two from 16 to 4096");
    }
    const auto shape = state.required<std::vector<int64_t>>("shape");
    if (shape != std::vector<int64_t>{layout_.rows, layout_.columns}) {
      state.fail("shape", fmt::format("is {}, the configuration asks for [{}, {}]",
                                      to_string(Shape(shape)), layout_.rows, layout_.columns));
    }
    has_nested_ = state.has("nested_blocksize");
    if (!has_nested_) return;
    nested_block_ = state.required<int64_t>("nested_blocksize");
    if (nested_block_ < 1 || nested_block_ > (1 << 20)) {
      state.fail("nested_blocksize", "is out of range");
    }
    offset_ = static_cast<float>(state.required<double>("nested_offset"));
    if (!std::isfinite(offset_)) state.fail("nested_offset", "is not finite");
  }

  void write_header(std::byte* to) const {
    store_float(to, offset_);
    const Tensor nested = part(".nested_absmax");
    std::memcpy(to + sizeof(float), nested.bytes(), nested.size_bytes());
  }

  std::vector<float> expanded_scales() const {
    const Tensor magnitudes = part(".absmax");
    std::vector<float> scales(static_cast<size_t>(layout_.blocks()));
    if (!has_nested_) {
      std::copy_n(magnitudes.data<float>(), scales.size(), scales.begin());
      return scales;
    }
    const Tensor map = part(".nested_quant_map"), nested = part(".nested_absmax");
    for (size_t b = 0; b < scales.size(); ++b) {
      const float level = map.data<float>()[magnitudes.data<uint8_t>()[b]];
      scales[b] = level * nested.data<float>()[b / static_cast<size_t>(nested_block_)] + offset_;
    }
    return scales;
  }

  const SafetensorsFile& file_;
  std::string weight_;
  PackedLayout layout_;
  bool has_nested_ = false;
  int64_t nested_block_ = kNestedBlock;
  float offset_ = 0;
};

// ---- fp8 with block scales ----------------------------------------------------------------------

class Fp8Weight {
 public:
  Fp8Weight(const SafetensorsFile& file, std::string weight, int64_t rows, int64_t columns,
            const StoredQuantization& method)
      : file_(file), weight_(std::move(weight)), method_(method) {
    // Where the blocks do not divide the row, smaller ones that repeat a scale.
    layout_ = {PackedKind::kFp8, std::gcd(columns, method.block_columns), rows, columns};
    const SafetensorsEntry& codes = *file_.find(weight_);
    if (codes.shape != Shape{rows, columns}) {
      throw Error(fmt::format("has shape {}, the configuration asks for [{}, {}]",
                              to_string(codes.shape), rows, columns),
                  where());
    }
    const SafetensorsEntry* scales = file_.find(scale_name());
    if (scales == nullptr) {
      throw Error("is stored in fp8, and its scales are missing", where(),
                  fmt::format("it needs the tensor {}", scale_name()));
    }
    const Shape expected{(rows + method.block_rows - 1) / method.block_rows,
                         (columns + method.block_columns - 1) / method.block_columns};
    if (scales->shape != expected) {
      throw Error(fmt::format("its scales have shape {}, blocks of {} x {} need {}",
                              to_string(scales->shape), method.block_rows, method.block_columns,
                              to_string(expected)),
                  where(), kDamaged);
    }
    if (scales->dtype != DType::kF32 && scales->dtype != DType::kBF16) {
      throw Error(fmt::format("its scales are stored as {}, not F32", scales->type), where());
    }
  }

  const PackedLayout& layout() const { return layout_; }

  Tensor read() const {
    const Tensor codes = file_.tensor(weight_);
    const Tensor scales = file_.tensor(scale_name()).as(DType::kF32);
    Tensor packed = Tensor::empty(DType::kU8, layout_.stored_shape());
    std::byte* to = packed.mutable_bytes();
    const int64_t blocks = layout_.columns / layout_.block, scale_columns = scales.shape()[1];
    for (int64_t r = 0; r < layout_.rows; ++r) {
      const float* row_scales = scales.data<float>() + r / method_.block_rows * scale_columns;
      for (int64_t b = 0; b < blocks; ++b) {
        store_float(to, row_scales[b * layout_.block / method_.block_columns]);
        const std::byte* from = codes.bytes() + r * layout_.columns + b * layout_.block;
        for (int64_t i = 0; i < layout_.block; ++i) {
          if ((from[i] & std::byte{0x7F}) == std::byte{0x7F}) {
            throw Error(fmt::format("element [{}, {}] is not finite", r, b * layout_.block + i),
                        where(), kDamaged);
          }
        }
        std::memcpy(to + sizeof(float), from, static_cast<size_t>(layout_.block));
        to += layout_.block_bytes();
      }
    }
    check_scales(layout_, packed, where());
    return packed;
  }

 private:
  std::string where() const {
    return fmt::format("{}: {}", file_.files().empty() ? "" : file_.files()[0].string(), weight_);
  }
  std::string scale_name() const { return weight_ + "_scale_inv"; }

  const SafetensorsFile& file_;
  std::string weight_;
  const StoredQuantization& method_;
  PackedLayout layout_;
};

bool is_fp8(const SafetensorsEntry& entry) { return entry.dtype == DType::kF8E4M3FN; }

template <typename F>
auto with_reader(const SafetensorsFile& file, const std::string& weight, int64_t rows,
                 int64_t columns, const StoredQuantization& method, const F& f) {
  if (method.method == StoredQuantization::Method::kFp8) {
    return f(Fp8Weight(file, weight, rows, columns, method));
  }
  return f(BitsAndBytesWeight(file, weight, rows, columns));
}

Tensor u8_text(const std::string& text) {
  return Tensor::of<uint8_t>({static_cast<int64_t>(text.size())}, {text.begin(), text.end()});
}

}  // namespace

StoredQuantization read_stored_quantization(const JsonObject& config) {
  StoredQuantization result;
  const auto quantization = config.optional_object("quantization_config");
  if (!quantization) return result;
  const auto method = quantization->optional<std::string>("quant_method").value_or("");
  if (method == "bitsandbytes") {
    if (!quantization->optional<bool>("load_in_4bit").value_or(false)) {
      quantization->fail("load_in_4bit", "bitsandbytes' 8-bit checkpoints are not supported",
                         "use the unquantised model with quantization: int8");
    }
    if (quantization->optional<std::string>("bnb_4bit_quant_type").value_or("fp4") != "nf4") {
      quantization->fail("bnb_4bit_quant_type", "only nf4 is supported",
                         "use the unquantised model with quantization: nf4");
    }
    const auto storage = quantization->optional<std::string>("bnb_4bit_quant_storage");
    if (storage.value_or("uint8") != "uint8") {
      quantization->fail("bnb_4bit_quant_storage", "only uint8 is supported",
                         "save the model with bnb_4bit_quant_storage uint8");
    }
    result.method = StoredQuantization::Method::kBitsAndBytes;
  } else if (method == "fp8") {
    const auto block = quantization->optional<std::vector<int64_t>>("weight_block_size");
    if (!block || block->size() != 2 || (*block)[0] < 1 || (*block)[1] < 1 || (*block)[0] > 65536 ||
        (*block)[1] > 65536) {
      quantization->fail("weight_block_size", "two extents are needed, as in [128, 128]",
                         "fp8 checkpoints are read with block scales alone");
    }
    result.method = StoredQuantization::Method::kFp8;
    result.block_rows = (*block)[0];
    result.block_columns = (*block)[1];
  } else {
    quantization->fail("quant_method", fmt::format("\"{}\" is not supported", method),
                       "bitsandbytes (nf4) and fp8 with block scales are read; or use the "
                       "unquantised model with quantization: nf4");
  }
  return result;
}

std::optional<PackedLayout> find_stored_layout(const SafetensorsFile& file,
                                               const std::string& weight, int64_t rows,
                                               int64_t columns, const StoredQuantization& method) {
  const SafetensorsEntry* entry = file.find(weight);
  if (entry == nullptr || method.method == StoredQuantization::Method::kNone) return std::nullopt;
  const bool packed = method.method == StoredQuantization::Method::kFp8
                          ? is_fp8(*entry)
                          : entry->dtype == DType::kU8;
  if (!packed) return std::nullopt;
  return with_reader(file, weight, rows, columns, method,
                     [](const auto& reader) { return reader.layout(); });
}

PackedTensor read_stored_weight(const SafetensorsFile& file, const std::string& weight,
                                int64_t rows, int64_t columns, const StoredQuantization& method) {
  return with_reader(file, weight, rows, columns, method, [](const auto& reader) {
    return PackedTensor{reader.layout(), reader.read()};
  });
}

bool is_part_of_quantized(const std::string& name) {
  for (const char* part : {".weight.absmax", ".weight.quant_map", ".weight.nested_absmax",
                           ".weight.nested_quant_map", ".weight_scale_inv"}) {
    if (name.ends_with(part)) return true;
  }
  return name.find(".weight.quant_state.") != std::string::npos;
}

std::vector<std::pair<std::string, Tensor>> bitsandbytes_tensors(const std::string& weight,
                                                                 const PackedTensor& packed,
                                                                 const std::string& dtype) {
  const PackedLayout& layout = packed.layout;
  const bool nested = layout.kind == PackedKind::kNf4Double;
  GRAFT_CHECK(nested || layout.kind == PackedKind::kNf4);
  const int64_t blocks = layout.blocks(), code_bytes = (layout.elements() + 1) / 2;
  const std::byte* from = packed.packed.bytes();
  Tensor codes = Tensor::empty(DType::kU8, {code_bytes, 1});
  Tensor magnitudes = Tensor::empty(nested ? DType::kU8 : DType::kF32, {blocks});
  const size_t scale_bytes = nested ? 1 : sizeof(float);
  for (int64_t b = 0; b < blocks; ++b) {
    const std::byte* at = from + layout.header_bytes() + b * layout.block_bytes();
    std::memcpy(magnitudes.mutable_bytes() + static_cast<size_t>(b) * scale_bytes, at, scale_bytes);
    const int64_t first = b * layout.block / 2;
    std::memcpy(codes.mutable_bytes() + first, at + scale_bytes,
                static_cast<size_t>(std::min(layout.block / 2, code_bytes - first)));
  }
  nlohmann::ordered_json state = {{"quant_type", "nf4"},
                                  {"blocksize", layout.block},
                                  {"dtype", dtype},
                                  {"shape", {layout.rows, layout.columns}}};
  std::vector<std::pair<std::string, Tensor>> tensors{
      {weight, codes},
      {weight + ".absmax", magnitudes},
      {weight + ".quant_map", Tensor::of<float>({16}, {kNf4Levels.begin(), kNf4Levels.end()})}};
  if (nested) {
    const int64_t groups = layout.header_bytes() / 4 - 1;
    Tensor scales = Tensor::empty(DType::kF32, {groups});
    std::memcpy(scales.mutable_bytes(), from + sizeof(float), scales.size_bytes());
    tensors.emplace_back(weight + ".nested_absmax", scales);
    const auto& map = dynamic_map();
    tensors.emplace_back(weight + ".nested_quant_map",
                         Tensor::of<float>({256}, {map.begin(), map.end()}));
    state["nested_blocksize"] = kNestedBlock;
    state["nested_dtype"] = "float32";
    state["nested_offset"] = static_cast<double>(load_float(from));
  }
  tensors.emplace_back(weight + kStateName, u8_text(state.dump()));
  return tensors;
}

Tensor expand_mxfp4(const Tensor& blocks, const Tensor& scales, const std::string& where) {
  constexpr int64_t kCodes = 16, kValues = 32;
  const Shape& shape = blocks.shape();
  if (blocks.dtype() != DType::kU8 || scales.dtype() != DType::kU8 || shape.size() < 2 ||
      shape.back() != kCodes || scales.shape() != Shape(shape.begin(), shape.end() - 1)) {
    throw Error(
        fmt::format("MXFP4 blocks are u8 [..., n, 16] with scales u8 [..., n], not {} and {}",
                    to_string(shape), to_string(scales.shape())),
        where, kDamaged);
  }
  Shape result(shape.begin(), shape.end() - 1);
  result.back() *= kValues;
  Tensor values = Tensor::empty(DType::kF32, result);
  for (int64_t b = 0; b < scales.elements(); ++b) {
    const int exponent = scales.data<uint8_t>()[b];
    if (exponent == 255) {
      throw Error(fmt::format("the scale of block {} is not finite", b), where, kDamaged);
    }
    const auto scale = static_cast<float>(std::ldexp(1.0, exponent - 128));  // levels are doubled
    const uint8_t* codes = blocks.data<uint8_t>() + b * kCodes;
    float* to = values.data<float>() + b * kValues;
    for (int64_t i = 0; i < kCodes; ++i) {
      to[2 * i] = static_cast<float>(kMxfp4Levels[codes[i] & 15]) * scale;
      to[2 * i + 1] = static_cast<float>(kMxfp4Levels[codes[i] >> 4]) * scale;
    }
  }
  return values;
}

}  // namespace graft
