#include "checkpoint/manifest.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "base/error.h"
#include "formats/json.h"
#include "formats/sha256.h"

namespace graft {
namespace {

using Json = nlohmann::ordered_json;

Json evaluation_json(const std::optional<Evaluation>& e) {
  if (!e) return nullptr;
  return {{"step", e->step}, {"eval_loss", e->loss}, {"eval_tokens", e->tokens}};
}

std::optional<Evaluation> read_evaluation(const JsonObject& parent, std::string_view key) {
  const std::optional<JsonObject> j = parent.optional_object(key);
  if (!j) return std::nullopt;
  return Evaluation{j->required<int64_t>("step"), j->required<double>("eval_loss"),
                    j->required<int64_t>("eval_tokens")};
}

Json interval_json(const MetricsInterval& i) {
  return {{"loss", i.loss},     {"seconds", i.seconds},
          {"flops", i.flops},   {"trained_tokens", i.trained_tokens},
          {"tokens", i.tokens}, {"steps", i.steps}};
}

MetricsInterval read_interval(const JsonObject& j) {
  return {j.required<double>("loss"),    j.required<double>("seconds"),
          j.required<double>("flops"),   j.required<int64_t>("trained_tokens"),
          j.required<int64_t>("tokens"), j.required<int64_t>("steps")};
}

// The root keys of progress, except those that other sections hold.
void read_progress(const JsonObject& root, RunProgress& p) {
  p.step = root.required<int64_t>("step");
  p.tokens = root.required<int64_t>("tokens");
  p.trained_tokens = root.required<int64_t>("trained_tokens");
  p.loss = root.required<double>("loss");
  if (p.step < 0) root.fail("step", fmt::format("is {}", p.step));
  p.interval = read_interval(root.required_object("metrics_interval"));
  p.first_evaluation = read_evaluation(root, "first_evaluation");
  p.best_evaluation = read_evaluation(root, "best_evaluation");
  p.last_evaluation = read_evaluation(root, "last_evaluation");
}

void read_data(const JsonObject& j, Manifest& m) {
  m.progress.position = {j.required<int64_t>("epoch"), j.required<int64_t>("sequence")};
  m.data.sha256 = j.required<std::string>("sha256");
  m.data.rows = j.required<int64_t>("rows");
  m.data.sequences_per_epoch = j.required<int64_t>("sequences_per_epoch");
  m.data.packing = j.required<bool>("packing");
  m.data.shuffle = j.required<bool>("shuffle");
}

bool is_file_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos && name != kManifestName;
}

void read_files(const JsonObject& root, const std::string& where, Manifest& m) {
  const nlohmann::json* list = root.find("files");
  if (list == nullptr || !list->is_array()) root.fail("files", "is no list");
  for (const nlohmann::json& element : *list) {
    const JsonObject j(element, where, "files");
    CheckpointFile file{j.required<std::string>("name"), j.required<std::string>("part"),
                        j.required<int64_t>("shard"), 0, j.required<std::string>("sha256")};
    const auto bytes = j.required<int64_t>("bytes");
    if (bytes < 0) j.fail("bytes", "is negative");
    file.bytes = static_cast<uint64_t>(bytes);
    if (!is_file_name(file.name)) j.fail("name", "is not the name of a file in this folder");
    if (m.find(file.name) != nullptr) j.fail("name", fmt::format("\"{}\" twice", file.name));
    m.files.push_back(std::move(file));
  }
}

// The manifest's own checksum is of its text with zeros in the checksum's place.
const std::string kNoChecksum(64, '0');
constexpr std::string_view kChecksumKey = "\"checksum\": \"";

size_t checksum_place(std::string_view text) {
  const size_t at = text.rfind(kChecksumKey);
  if (at == std::string_view::npos) return at;
  const size_t digits = at + kChecksumKey.size();
  return digits + kNoChecksum.size() <= text.size() ? digits : std::string_view::npos;
}

void require_checksum(std::string text, const std::string& name) {
  const size_t at = checksum_place(text);
  if (at != std::string::npos) {
    const std::string said = text.substr(at, kNoChecksum.size());
    text.replace(at, kNoChecksum.size(), kNoChecksum);
    if (sha256_hex(std::as_bytes(std::span(text))) == said) return;
  }
  throw Error(fmt::format("{} is damaged: its own checksum does not hold", kManifestName), name);
}

}  // namespace

const CheckpointFile* Manifest::find(std::string_view name) const {
  for (const CheckpointFile& file : files) {
    if (file.name == name) return &file;
  }
  return nullptr;
}

std::string format_manifest(const Manifest& m) {
  const RunProgress& p = m.progress;
  Json files = Json::array();
  int64_t shards = 1;
  for (const CheckpointFile& f : m.files) {
    files.push_back({{"name", f.name},
                     {"part", f.part},
                     {"shard", f.shard},
                     {"bytes", f.bytes},
                     {"sha256", f.sha256}});
    shards = std::max(shards, f.shard + 1);
  }
  const Json document = {
      {"format_version", kCheckpointFormatVersion},
      {"graft_version", m.graft_version},
      {"recipe_sha256", m.recipe_sha256},
      {"step", p.step},
      {"tokens", p.tokens},
      {"trained_tokens", p.trained_tokens},
      {"loss", p.loss},
      {"first_evaluation", evaluation_json(p.first_evaluation)},
      {"best_evaluation", evaluation_json(p.best_evaluation)},
      {"last_evaluation", evaluation_json(p.last_evaluation)},
      {"metrics_interval", interval_json(p.interval)},
      {"data",
       {{"epoch", p.position.epoch},
        {"sequence", p.position.sequence},
        {"sequences_per_epoch", m.data.sequences_per_epoch},
        {"rows", m.data.rows},
        {"packing", m.data.packing},
        {"shuffle", m.data.shuffle},
        {"sha256", m.data.sha256}}},
      {"schedule",
       {{"type", m.schedule.type},
        {"learning_rate", m.schedule.learning_rate},
        {"warmup_steps", m.schedule.warmup_steps},
        {"total_steps", m.schedule.total_steps}}},
      {"seed", m.seed},
      {"compute",
       {{"executor", m.compute.executor},
        {"instruction_set", m.compute.instruction_set},
        {"dtype", m.compute.dtype}}},
      {"base", {{"path", m.base_path}, {"header_sha256", m.base_header_sha256}}},
      {"shards", shards},
      {"files", std::move(files)},
      {"checksum", kNoChecksum},
  };
  std::string text = document.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
  const size_t at = checksum_place(text);
  text.replace(at, kNoChecksum.size(), sha256_hex(std::as_bytes(std::span(text))));
  return text;
}

Manifest parse_manifest(std::string_view text, const std::string& name) {
  require_checksum(std::string(text), name);
  const nlohmann::json document = parse_json(text, name);
  const JsonObject root(document, name);
  if (const auto version = root.required<int64_t>("format_version");
      version != kCheckpointFormatVersion) {
    root.fail("format_version",
              fmt::format("is {}; this graft reads {}", version, kCheckpointFormatVersion),
              "use the graft that wrote it");
  }
  Manifest m;
  m.graft_version = root.required<std::string>("graft_version");
  m.recipe_sha256 = root.required<std::string>("recipe_sha256");
  read_progress(root, m.progress);
  read_data(root.required_object("data"), m);
  const JsonObject schedule = root.required_object("schedule");
  m.schedule = {schedule.required<std::string>("type"), schedule.required<double>("learning_rate"),
                schedule.required<int64_t>("warmup_steps"),
                schedule.required<int64_t>("total_steps")};
  m.seed = static_cast<uint64_t>(root.required<int64_t>("seed"));
  const JsonObject compute = root.required_object("compute");
  m.compute = {compute.required<std::string>("executor"),
               compute.required<std::string>("instruction_set"),
               compute.required<std::string>("dtype")};
  const JsonObject base = root.required_object("base");
  m.base_path = base.required<std::string>("path");
  m.base_header_sha256 = base.required<std::string>("header_sha256");
  read_files(root, name, m);
  return m;
}

std::string graft_version() { return GRAFT_VERSION; }

}  // namespace graft
