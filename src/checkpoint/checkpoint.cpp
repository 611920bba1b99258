#include "checkpoint/checkpoint.h"

#include <fcntl.h>

#include <bit>
#include <future>
#include <memory>
#include <span>

#include "base/disk.h"
#include "base/file.h"
#include "formats/safetensors.h"
#include "formats/sha256.h"

namespace graft {
namespace {

namespace fs = std::filesystem;

using Bytes = std::span<const std::byte>;

// A file of a checkpoint in the making, out of pieces of memory. It is written and the disk told to
// begin; its checksum is taken from memory while the disk works.
class NewFile {
 public:
  NewFile(fs::path path, std::string part, int64_t shard, std::string beginning)
      : path_(std::move(path)), beginning_(std::move(beginning)) {
    file_.name = path_.filename().string();
    file_.part = std::move(part);
    file_.shard = shard;
    pieces_.push_back(std::as_bytes(std::span(beginning_)));
  }
  NewFile(const NewFile&) = delete;  // the first piece is of its own text
  NewFile& operator=(const NewFile&) = delete;

  void add(Bytes piece) { pieces_.push_back(piece); }

  void write() {
    fd_ = disk::create(path_);
    for (const Bytes piece : pieces_) disk::write_all(fd_.get(), piece, path_);
    // A hint: where it is not taken, the flush does all of the work.
    [[maybe_unused]] const int ignored = ::sync_file_range(fd_.get(), 0, 0, SYNC_FILE_RANGE_WRITE);
  }
  void take_checksum() {
    Sha256 hash;
    for (const Bytes piece : pieces_) {
      hash.update(piece);
      file_.bytes += piece.size();
    }
    file_.sha256 = hash.hex();
  }
  void flush() {
    disk::sync(fd_.get(), path_);
    disk::close(std::move(fd_), path_);
  }
  const CheckpointFile& file() const { return file_; }

 private:
  fs::path path_;
  std::string beginning_;
  std::vector<Bytes> pieces_;
  disk::Descriptor fd_;
  CheckpointFile file_;
};

bool is_finite(const Tensor& tensor) {
  if (tensor.dtype() != DType::kF32) return true;
  // All ones in the exponent: infinite or no number. Without a branch, so that it is vectorised.
  uint32_t found = 0;
  for (const float v : tensor.span<float>()) {
    found |= static_cast<uint32_t>((std::bit_cast<uint32_t>(v) & 0x7f800000U) == 0x7f800000U);
  }
  return found == 0;
}

void require_finite(const CheckpointTensorFile& file) {
  for (const auto& [name, tensor] : file.tensors) {
    if (is_finite(tensor)) continue;
    throw Error(fmt::format("{} holds a value that is not finite; this state is not saved", name),
                "checkpoint",
                "go on from the checkpoint before it, with a lower training.learning_rate");
  }
}

std::unique_ptr<NewFile> new_file(const fs::path& folder, const CheckpointTensorFile& file,
                                  int64_t shard) {
  std::vector<SafetensorsDeclaration> declarations;
  for (const auto& [name, tensor] : file.tensors) {
    declarations.push_back({name, tensor.dtype(), tensor.shape()});
  }
  const fs::path path = folder / file.name;
  auto made = std::make_unique<NewFile>(
      path, file.part, shard,
      safetensors_beginning(declarations, {{"format", "pt"}}, path.string()));
  for (const auto& [name, tensor] : file.tensors) made->add({tensor.bytes(), tensor.size_bytes()});
  return made;
}

void write_manifest(const fs::path& folder, const Manifest& manifest) {
  NewFile file(folder / kManifestName, "", 0, format_manifest(manifest));
  file.write();
  file.flush();
}

void add_file(std::vector<CheckpointTensorFile>& files, const char* name, const char* part,
              const NamedTensors& tensors) {
  if (!tensors.empty()) files.push_back({name, part, {tensors.begin(), tensors.end()}});
}

void verify(const fs::path& folder, const CheckpointFile& file) {
  const fs::path path = folder / file.name;
  std::error_code error;
  const uintmax_t bytes = fs::file_size(path, error);
  if (error) {
    throw Error(fmt::format("{} of this checkpoint is missing", file.name), path.string());
  }
  if (bytes != file.bytes) {
    throw Error(fmt::format("{} has {} bytes, the manifest says {}", file.name, bytes, file.bytes),
                path.string());
  }
  if (sha256_file(path) != file.sha256) {
    throw Error(fmt::format("{} is damaged: its checksum is not the manifest's", file.name),
                path.string());
  }
}

}  // namespace

std::string checkpoint_name(int64_t step) { return fmt::format("step-{:08}", step); }

std::vector<CheckpointTensorFile> checkpoint_tensor_files(const StateParts& parts,
                                                          const AdapterPlan& adapter) {
  std::vector<CheckpointTensorFile> files;
  if (!parts.adapters.empty()) {
    files.push_back(
        {"adapter_model.safetensors", "adapter", adapter_file_tensors(adapter, parts.adapters)});
  }
  add_file(files, "model.safetensors", "params", parts.params);
  add_file(files, "optimizer.safetensors", "optimizer", parts.optimizer);
  add_file(files, "random.safetensors", "random", parts.random);
  add_file(files, "batch_stats.safetensors", "batch_stats", parts.batch_stats);
  add_file(files, "base.safetensors", kBasePart, parts.base);
  return files;
}

std::vector<CheckpointFile> write_checkpoint_files(const fs::path& folder,
                                                   const CheckpointContents& contents,
                                                   int64_t shard) {
  for (const CheckpointTensorFile& file : contents.tensors) require_finite(file);
  std::vector<std::unique_ptr<NewFile>> made;
  for (const CheckpointTensorFile& file : contents.tensors) {
    made.push_back(new_file(folder, file, shard));
  }
  for (const CheckpointTextFile& file : contents.texts) {
    made.push_back(std::make_unique<NewFile>(folder / file.name, "description", shard, file.text));
  }
  for (const auto& file : made) file->write();
  // Flushed together, so that the file system's journal is written once for all of them.
  std::vector<std::future<void>> tasks;
  for (const auto& file : made) {
    tasks.push_back(std::async(std::launch::async, [&file] { file->flush(); }));
    tasks.push_back(std::async(std::launch::async, [&file] { file->take_checksum(); }));
  }
  for (std::future<void>& task : tasks) task.get();
  std::vector<CheckpointFile> files;
  for (const auto& file : made) files.push_back(file->file());
  return files;
}

fs::path write_checkpoint(const fs::path& checkpoints, CheckpointContents contents) {
  make_directories(checkpoints);
  const std::string name = checkpoint_name(contents.manifest.progress.step);
  const fs::path unfinished = checkpoints / (kTemporaryPrefix + name);
  disk::remove_all(unfinished);
  try {
    make_directories(unfinished);
    contents.manifest.files = write_checkpoint_files(unfinished, contents);
    write_manifest(unfinished, contents.manifest);
    disk::sync_folder(unfinished);
    disk::replace_folder(unfinished, checkpoints / name);
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(unfinished, ignored);
    throw;
  }
  return checkpoints / name;
}

NamedTensors Checkpoint::tensors(std::string_view part) const {
  NamedTensors result;
  for (const CheckpointFile& file : manifest.files) {
    if (file.part != part) continue;
    const SafetensorsFile stored = SafetensorsFile::open(folder / file.name);
    for (const std::string& name : stored.names()) {
      if (!result.emplace(name, stored.tensor(name)).second) {
        throw Error(fmt::format("tensor \"{}\" is in two files of the checkpoint", name),
                    (folder / file.name).string());
      }
    }
  }
  return result;
}

std::string Checkpoint::text(const std::string& name) const {
  if (manifest.find(name) == nullptr) {
    throw Error(fmt::format("the checkpoint has no {}", name), folder.string());
  }
  return read_text_file(folder / name);
}

BaseIdentity Checkpoint::base() const {
  return parse_base_identity(text("base.json"), (folder / "base.json").string());
}

Checkpoint open_checkpoint(const fs::path& folder) {
  const fs::path path = folder / kManifestName;
  if (!fs::exists(path)) {
    throw Error(fmt::format("{} of this checkpoint is missing", kManifestName), path.string());
  }
  Checkpoint checkpoint{folder, parse_manifest(read_text_file(path), path.string())};
  for (const CheckpointFile& file : checkpoint.manifest.files) verify(folder, file);
  return checkpoint;
}

}  // namespace graft
