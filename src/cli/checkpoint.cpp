// graft checkpoint verify PATH: every byte of a checkpoint, or of all of a run's, against its
// manifest. graft checkpoint bench RUN: saving and restoring, timed against the disk's own speed.

#include "checkpoint/checkpoint.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/disk.h"
#include "base/file.h"
#include "base/log.h"
#include "checkpoint/checkpoint_folder.h"
#include "cli/commands.h"
#include "formats/safetensors.h"

namespace graft {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// ---- verify

Json verified(const Checkpoint& checkpoint) {
  uint64_t bytes = 0;
  for (const CheckpointFile& file : checkpoint.manifest.files) bytes += file.bytes;
  return {{"path", checkpoint.folder.string()},
          {"step", checkpoint.manifest.progress.step},
          {"files", checkpoint.manifest.files.size()},
          {"bytes", bytes}};
}

Json verify(const fs::path& path) {
  const CheckpointFolder of_run = CheckpointFolder::of_run(path);
  Json list = Json::array();
  if (of_run.steps().empty()) {
    list.push_back(verified(open_checkpoint_or_run(path)));
  } else {
    // From the newest, so that the one before a damaged one is offered.
    std::vector<int64_t> steps = of_run.steps();
    for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
      list.push_back(verified(of_run.open(*step)));
    }
  }
  return {{"ok", true}, {"checkpoints", std::move(list)}};
}

// ---- bench

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

template <typename Function>
double timed(Function function) {
  const auto start = std::chrono::steady_clock::now();
  function();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// What `dd bs=1M conv=fsync` does.
void write_plainly(const fs::path& path, uint64_t bytes) {
  const std::vector<std::byte> block(size_t{1} << 20);
  disk::Descriptor fd = disk::create(path);
  for (uint64_t left = bytes; left > 0;) {
    const size_t piece = std::min<uint64_t>(left, block.size());
    disk::write_all(fd.get(), std::span(block).first(piece), path);
    left -= piece;
  }
  disk::sync(fd.get(), path);
  disk::close(std::move(fd), path);
}

// The contents of a checkpoint in memory, as a run that saves has them.
CheckpointContents contents_of(const Checkpoint& checkpoint) {
  CheckpointContents contents;
  contents.manifest = checkpoint.manifest;
  for (const CheckpointFile& file : checkpoint.manifest.files) {
    if (!file.name.ends_with(".safetensors")) {
      contents.texts.push_back({file.name, checkpoint.text(file.name)});
      continue;
    }
    CheckpointTensorFile tensors{file.name, file.part, {}};
    const SafetensorsFile stored = SafetensorsFile::open(checkpoint.folder / file.name);
    for (const std::string& name : stored.names()) {
      tensors.tensors.emplace_back(name, stored.tensor(name).clone());
    }
    contents.tensors.push_back(std::move(tensors));
  }
  return contents;
}

// Reads and checks every byte, and holds the tensors.
void restore(const fs::path& folder) { contents_of(open_checkpoint(folder)); }

Json bench(const fs::path& run, int repeats) {
  const Checkpoint checkpoint = open_checkpoint_or_run(run);
  const CheckpointContents contents = contents_of(checkpoint);
  uint64_t bytes = 0;
  for (const CheckpointFile& file : checkpoint.manifest.files) bytes += file.bytes;
  const fs::path work = checkpoint.folder.parent_path() / (std::string(kTemporaryPrefix) + "bench");
  disk::remove_all(work);
  make_directories(work);
  std::vector<double> saves, restores, writes;
  try {
    fs::path saved;
    for (int i = 0; i < repeats; ++i) {
      writes.push_back(timed([&] { write_plainly(work / "plain", bytes); }));
      fs::remove(work / "plain");
      if (!saved.empty()) disk::remove_all(saved);
      saves.push_back(timed([&] { saved = write_checkpoint(work, contents); }));
      restores.push_back(timed([&] { restore(saved); }));
    }
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(work, ignored);
    throw;
  }
  disk::remove_all(work);
  const double save = median(saves), write = median(writes);
  return {{"path", checkpoint.folder.string()},
          {"bytes", bytes},
          {"repeats", repeats},
          {"save_seconds", save},
          {"restore_seconds", median(restores)},
          {"disk_write_seconds", write},
          {"save_over_disk_write", save / write}};
}

std::string for_a_person(const Json& j) {
  const double megabytes = j["bytes"].get<double>() / 1e6;
  const auto line = [&](const char* what, const char* key) {
    const double seconds = j[key].get<double>();
    return fmt::format("{:<34} {:8.4f} s  {:8.1f} MB/s\n", what, seconds, megabytes / seconds);
  };
  return fmt::format("{}: {:.1f} MB, medians of {}\n", j["path"].get<std::string>(), megabytes,
                     j["repeats"].get<int>()) +
         line("save, with checksums and fsync", "save_seconds") +
         line("restore, with checksums", "restore_seconds") +
         line("the same bytes written and fsync'd", "disk_write_seconds");
}

}  // namespace

void add_checkpoint_command(CLI::App& app) {
  struct Options {
    std::string path;
    int repeats = 9;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("checkpoint", "Verify checkpoints, or time saving them");
  command->require_subcommand(1);
  const auto add = [&](const char* name, const char* help, const char* path_help) {
    CLI::App* one = command->add_subcommand(name, help);
    one->add_option("PATH", options->path, path_help)->required();
    one->add_flag("--json", options->json, "One JSON object on stdout");
    return one;
  };
  add("verify", "Compare every byte with the manifest", "A checkpoint, or a run for all of its")
      ->callback([options] {
        const Json j = verify(options->path);
        if (options->json) return print_json(nlohmann::json(j));
        for (const Json& c : j["checkpoints"]) {
          print_text(fmt::format("{}: whole ({} files, {} bytes)\n", c["path"].get<std::string>(),
                                 c["files"].dump(), c["bytes"].dump()));
        }
      });
  CLI::App* timing = add("bench", "Time saving and restoring against the disk's own speed",
                         "A run, for its newest checkpoint, or a checkpoint");
  timing->add_option("--repeats", options->repeats, "How often each is done (default 9)")
      ->check(CLI::Range(1, 1000));
  timing->callback([options] {
    const Json j = bench(options->path, options->repeats);
    if (options->json) print_json(nlohmann::json(j));
    else print_text(for_a_person(j));
  });
}

}  // namespace graft
