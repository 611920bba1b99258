#include "models/weights.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <thread>
#include <unordered_map>

#include "formats/gguf.h"
#include "formats/packed_blocks.h"
#include "formats/safetensors.h"
#include "models/gguf_layout.h"
#include "models/layout.h"

namespace graft {

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  virtual Tensor load(const std::string& name, DType dtype) const = 0;
  virtual Tensor load_packed(const std::string& name) const = 0;
  virtual std::span<const std::byte> stored_bytes(const std::string& name) const = 0;

  std::vector<VariableSpec> parameters;
  std::map<std::string, PackedLayout> packed;  // of the parameters stored so
  std::vector<std::string> notes;
  std::string path;
};

namespace {

void check_shape(const VariableSpec& spec, const std::string& stored_name, const Shape& stored,
                 const std::string& path) {
  if (stored == spec.shape) return;
  throw Error(fmt::format("tensor \"{}\" has shape {}, the configuration asks for {}", stored_name,
                          to_string(stored), to_string(spec.shape)),
              path);
}

void note_unused(const std::vector<std::string>& unused, std::vector<std::string>& notes) {
  if (unused.empty()) return;
  std::string names;
  for (size_t i = 0; i < unused.size() && i < 4; ++i) names += (i ? ", " : "") + unused[i];
  if (unused.size() > 4) names += fmt::format(" and {} more", unused.size() - 4);
  notes.push_back(fmt::format("{} tensors of the file are not used: {}", unused.size(), names));
}

struct HuggingFaceSource : WeightSource {
  HuggingFaceSource(SafetensorsFile f, StoredQuantization q)
      : file(std::move(f)), quantization(q) {}

  Tensor load(const std::string& name, DType dtype) const override {
    const auto layout = packed.find(name);
    if (layout == packed.end()) return file.tensor(name).as(dtype);
    return expand_packed(layout->second, load_packed(name)).as(dtype);
  }
  Tensor load_packed(const std::string& name) const override {
    const PackedLayout& layout = packed.at(name);
    return read_stored_weight(file, name, layout.rows, layout.columns, quantization).packed;
  }
  std::span<const std::byte> stored_bytes(const std::string& name) const override {
    return file.bytes(name);
  }
  SafetensorsFile file;
  StoredQuantization quantization;
};

// Buffers that old checkpoints carry and no model reads.
bool is_harmless(const std::string& name) {
  return name.ends_with(".rotary_emb.inv_freq") || name.ends_with(".attn.masked_bias");
}

std::shared_ptr<WeightSource> open_hugging_face(const std::filesystem::path& path,
                                                const ModelConfig& config) {
  auto source =
      std::make_shared<HuggingFaceSource>(SafetensorsFile::open(path), config.quantization);
  source->path = path.string();
  std::unordered_map<std::string, bool> used;
  for (const std::string& name : source->file.names()) {
    used[name] = is_harmless(name) || is_part_of_quantized(name);
  }
  for (VariableSpec spec : base_parameters(config)) {
    const SafetensorsEntry* entry = source->file.find(spec.name);
    if (entry == nullptr) {
      throw Error(fmt::format("tensor \"{}\" is missing", spec.name), source->path,
                  spec.name == kHeadName
                      ? "or set tie_word_embeddings in config.json if the model ties its head"
                      : "download the model again");
    }
    if (spec.shape.size() == 2) {
      const auto layout = find_stored_layout(source->file, spec.name, spec.shape[0], spec.shape[1],
                                             config.quantization);
      if (layout) {
        source->packed[spec.name] = *layout;
        used[spec.name] = true;
        source->parameters.push_back(std::move(spec));
        continue;
      }
    }
    if (!entry->dtype || (*entry->dtype != DType::kF32 && *entry->dtype != DType::kBF16 &&
                          *entry->dtype != DType::kF16)) {
      throw Error(fmt::format("tensor \"{}\" is stored as {}", spec.name, entry->type),
                  source->path, "weights of F32, BF16 and F16 are read");
    }
    check_shape(spec, spec.name, entry->shape, source->path);
    spec.dtype = *entry->dtype;
    used[spec.name] = true;
    source->parameters.push_back(std::move(spec));
  }
  if (config.tie_word_embeddings && used.contains(kHeadName) && !used[kHeadName]) {
    used[kHeadName] = true;
    source->notes.push_back(
        "the file has an lm_head.weight, which is not used: the configuration ties the "
        "head to the embedding");
  }
  std::vector<std::string> unused;
  for (const std::string& name : source->file.names()) {
    if (!used[name]) unused.push_back(name);
  }
  note_unused(unused, source->notes);
  return source;
}

struct GgufSource : WeightSource {
  explicit GgufSource(GgufFile f) : file(std::move(f)) {}

  Tensor load(const std::string& name, DType dtype) const override {
    const GgufTensor& tensor = file.tensor(gguf_tensor_name(name));
    Tensor values = Tensor::empty(DType::kF32, tensor.shape);
    expand(tensor, values.data<float>());
    return from_gguf_rows(config, name, values).as(dtype);
  }

  Tensor load_packed(const std::string& name) const override {
    const PackedLayout& layout = packed.at(name);
    const std::string stored_name = gguf_tensor_name(name);
    const Tensor rows = from_gguf_rows(config, name, file.blocks(file.tensor(stored_name)));
    check_scales(layout, rows, fmt::format("{}: {}", path, stored_name));
    return rows;
  }

  std::span<const std::byte> stored_bytes(const std::string& name) const override {
    return file.bytes(file.tensor(gguf_tensor_name(name)));
  }

  // Rows in parallel: each is expanded by itself.
  void expand(const GgufTensor& tensor, float* values) const {
    const int64_t rows = tensor.rows();
    const int64_t workers = std::clamp<int64_t>(std::thread::hardware_concurrency(), 1, rows);
    if (tensor.size < (1U << 16)) {
      file.dequantize_rows(tensor, 0, rows, values);
      return;
    }
    std::vector<std::jthread> threads;
    for (int64_t w = 0; w < workers; ++w) {
      const int64_t begin = rows * w / workers, end = rows * (w + 1) / workers;
      threads.emplace_back([this, &tensor, values, begin, end] {
        file.dequantize_rows(tensor, begin, end, values + begin * tensor.columns());
      });
    }
  }

  GgufFile file;
  ModelConfig config;
};

std::shared_ptr<WeightSource> open_gguf(const std::filesystem::path& path,
                                        const ModelConfig& config) {
  auto source = std::make_shared<GgufSource>(GgufFile::open(path));
  source->path = path.string();
  source->config = config;
  std::unordered_map<std::string, bool> used{{"rope_freqs.weight", true}};
  for (VariableSpec spec : base_parameters(config)) {
    const std::string stored_name = gguf_tensor_name(spec.name);
    const GgufTensor* tensor = source->file.find(stored_name);
    if (tensor == nullptr) {
      throw Error(fmt::format("tensor \"{}\" is missing", stored_name), source->path,
                  "download the model again");
    }
    check_shape(spec, stored_name, tensor->shape, source->path);
    used[stored_name] = true;
    const auto kind = ggml_kind(tensor->info().name);
    if (kind && spec.shape.size() == 2) {
      source->packed[spec.name] = {*kind, ggml_block(*kind), spec.shape[0], spec.shape[1]};
    }
    source->parameters.push_back(std::move(spec));
  }
  std::vector<std::string> unused;
  for (const GgufTensor& tensor : source->file.tensors()) {
    if (!used.contains(tensor.name)) unused.push_back(tensor.name);
  }
  // A bias or norm that the model does not have would change what it computes.
  if (!unused.empty()) {
    throw Error(
        fmt::format("tensor \"{}\" is none that a {} model has", unused[0], config.model_type),
        source->path);
  }
  return source;
}

}  // namespace

BaseWeights BaseWeights::open(const std::filesystem::path& path, const ModelConfig& config) {
  return BaseWeights(is_gguf(path) ? open_gguf(path, config) : open_hugging_face(path, config));
}

Tensor BaseWeights::load(const std::string& name, DType dtype) const {
  return source_->load(name, dtype);
}
std::optional<PackedLayout> BaseWeights::packed(const std::string& name) const {
  const auto found = source_->packed.find(name);
  return found == source_->packed.end() ? std::nullopt : std::optional(found->second);
}
Tensor BaseWeights::load_packed(const std::string& name) const {
  return source_->load_packed(name);
}
void BaseWeights::release_pages(const std::string& name) const {
  const std::span<const std::byte> bytes = source_->stored_bytes(name);
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  // Whole pages of it alone: neighbours share the others.
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(bytes.data()) + page - 1) / page * page;
  const uintptr_t end = reinterpret_cast<uintptr_t>(bytes.data() + bytes.size()) / page * page;
  // Only advice: that it is not followed changes nothing but memory.
  if (end > begin) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}
const std::vector<VariableSpec>& BaseWeights::parameters() const { return source_->parameters; }
const std::vector<std::string>& BaseWeights::notes() const { return source_->notes; }

}  // namespace graft
