#include "train/export_gguf.h"

#include <map>

#include "formats/gguf_writer.h"
#include "models/gguf_layout.h"
#include "models/layout.h"
#include "text/gguf_tokenizer_writer.h"

namespace graft {
namespace {

constexpr const char* kRopeDivisors = "rope_freqs.weight";

// The numbers of llama.cpp's general.file_type.
uint32_t file_type(DType dtype) {
  constexpr uint32_t kAllF32 = 0, kMostlyF16 = 1, kMostlyBF16 = 32;
  return dtype == DType::kF16 ? kMostlyF16 : dtype == DType::kBF16 ? kMostlyBF16 : kAllF32;
}

DType most_common_type(const std::vector<VariableSpec>& parameters) {
  std::map<DType, int64_t> counts;
  for (const VariableSpec& v : parameters) {
    if (v.shape.size() > 1) counts[v.dtype] += element_count(v.shape);
  }
  DType best = DType::kF32;
  int64_t most = 0;
  for (const auto& [dtype, count] : counts) {
    if (count > most) best = dtype;
    most = std::max(most, count);
  }
  return best;
}

// What a base's file says of its own blocks, shards and layout says nothing about the new file.
bool describes_the_old_file(const std::string& key) {
  return key == "general.file_type" || key == "general.quantization_version" ||
         key == "general.alignment" || key.starts_with("split.") || key.starts_with("quantize.");
}

GgufMetadata metadata_of_gguf(const GgufFile& file) {
  GgufMetadata metadata;
  for (const std::string& key : file.keys()) {
    if (!describes_the_old_file(key)) metadata.copy(file, key);
  }
  return metadata;
}

GgufMetadata metadata_of_folder(const GgufExport& what) {
  GgufMetadata metadata;
  write_gguf_config(what.config, metadata);
  metadata.set_string("general.name", what.name);
  if (has_tokenizer(what.base)) {
    const TextModel text = load_text_model(what.base);
    write_gguf_tokenizer(describe_tokenizer(what.base, text, what.config.vocab_size), metadata);
  } else {
    metadata.set_string("tokenizer.ggml.model", "none");  // how files say that they have none
  }
  return metadata;
}

// The model's tensors in the order of the file to be written.
std::vector<GgufDeclaration> declare(const GgufExport& what, const GgufFile* base,
                                     const std::vector<VariableSpec>& parameters, DType dtype) {
  std::map<std::string, GgufDeclaration> by_name;
  std::vector<GgufDeclaration> tensors;
  if (const auto divisors = gguf_rope_divisors(what.config); divisors && base == nullptr) {
    tensors.push_back({kRopeDivisors, GgmlType::kF32, divisors->shape()});
  }
  for (const VariableSpec& v : parameters) {
    const GgmlType type = v.shape.size() > 1 ? ggml_type_of(dtype) : GgmlType::kF32;
    GgufDeclaration tensor{gguf_tensor_name(v.name), type, v.shape};
    if (base == nullptr) tensors.push_back(tensor);
    by_name.emplace(tensor.name, std::move(tensor));
  }
  if (base == nullptr) return tensors;
  for (const GgufTensor& t : base->tensors()) {
    const auto found = by_name.find(t.name);
    tensors.push_back(found != by_name.end() ? found->second
                                             : GgufDeclaration{t.name, t.type, t.shape});
  }
  return tensors;
}

}  // namespace

void write_gguf_model(const std::filesystem::path& path, const GgufExport& what,
                      MergedWeights& weights) {
  std::optional<GgufFile> base;
  if (is_gguf(what.base)) base = GgufFile::open(what.base);
  const DType dtype = what.dtype.value_or(most_common_type(weights.parameters()));
  GgufMetadata metadata = base ? metadata_of_gguf(*base) : metadata_of_folder(what);
  metadata.set_u32("general.file_type", file_type(dtype));
  const std::vector<GgufDeclaration> tensors =
      declare(what, base ? &*base : nullptr, weights.parameters(), dtype);
  std::map<std::string, const VariableSpec*> by_name;
  for (const VariableSpec& v : weights.parameters()) by_name[gguf_tensor_name(v.name)] = &v;

  GgufWriter writer(path, metadata, tensors);
  for (const GgufDeclaration& t : tensors) {
    const auto found = by_name.find(t.name);
    if (found != by_name.end()) {
      const std::string& name = found->second->name;
      const DType type = t.shape.size() > 1 ? dtype : DType::kF32;
      writer.add(t.name, to_gguf_rows(what.config, name, weights.load(name, type)));
    } else if (base) {
      writer.add_bytes(t.name, base->bytes(base->tensor(t.name)));
    } else {
      writer.add(t.name, *gguf_rope_divisors(what.config));
    }
  }
  writer.commit();
}

}  // namespace graft
