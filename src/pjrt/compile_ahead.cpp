#include "pjrt/compile_ahead.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <regex>
#include <span>

#include "base/file.h"
#include "formats/json.h"
#include "formats/sha256.h"
#include "pjrt/wheels.h"

namespace graft::pjrt {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kJobFile = "job.json";
constexpr const char* kTextFile = "program.mlir";
constexpr const char* kResultFile = "result.json";
constexpr const char* kOutputFile = "output.txt";
constexpr const char* kProgramFile = "executable";
constexpr const char* kSavedFormat = "graft compiled program 1";

class WorkFolder {
 public:
  WorkFolder() {
    std::string name = (fs::temp_directory_path() / "graft-compile-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) {
      throw Error(fmt::format("no folder can be made: {}", std::strerror(errno)), name);
    }
    path_ = name;
  }
  ~WorkFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

Json to_json(const Options& options) {
  Json object = Json::object();
  for (const auto& [name, value] : options) {
    std::visit([&, key = name](const auto& v) { object[key] = v; }, value);
  }
  return object;
}

// Texts and integers, all that topologies take.
Options options_from(const Json& object) {
  Options options;
  for (const auto& [name, value] : object.items()) {
    if (value.is_string()) options[name] = value.get<std::string>();
    else options[name] = value.get<int64_t>();
  }
  return options;
}

// Where NVIDIA's assembler and device library lie beside the CUDA plugin.
fs::path find_below(const fs::path& folder, const std::string& name) {
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    if (it->path().filename() == name) return it->path();
  }
  return "";
}

std::vector<std::string> child_environment(const Target& target) {
  std::vector<std::string> environment;
  std::string path = "/usr/bin:/bin";
  for (char** item = environ; *item != nullptr; ++item) {
    const std::string_view text = *item;
    if (text.starts_with("PATH=")) path = text.substr(5);
    else if (!text.starts_with("XLA_FLAGS=")) environment.emplace_back(text);
  }
  if (target.plugin == "tpu") {
    environment.emplace_back("TPU_SKIP_MDS_QUERY=1");  // there is no TPU to ask about
  } else if (target.plugin == "cuda") {
    const fs::path folder = plugin_folder(plugin_kind("cuda"));
    const fs::path assembler = find_below(folder, "ptxas");
    if (assembler.empty()) {
      throw Error("the CUDA plugin's ptxas is missing", folder.string(),
                  "run graft plugins install cuda13");
    }
    path = assembler.parent_path().string() + ":" + path;
    environment.emplace_back("XLA_FLAGS=--xla_gpu_cuda_data_dir=" +
                             assembler.parent_path().parent_path().string());
  }
  environment.emplace_back("TF_CPP_MIN_LOG_LEVEL=2");
  environment.emplace_back("PATH=" + path);
  return environment;
}

// Runs the child with its output in a file; returns waitpid's status.
int run_child(const fs::path& program, const fs::path& folder, const Target& target) {
  std::vector<std::string> arguments = {program.string(), kCompileAheadCommand, folder.string()};
  std::vector<std::string> environment = child_environment(target);
  const auto pointers = [](std::vector<std::string>& texts) {
    std::vector<char*> result;
    for (std::string& text : texts) result.push_back(text.data());
    result.push_back(nullptr);
    return result;
  };
  const std::string output = folder / kOutputFile;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, output.c_str(),
                                   O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  pid_t child = 0;
  const int failed = ::posix_spawn(&child, program.c_str(), &actions, nullptr,
                                   pointers(arguments).data(), pointers(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) {
    throw Error(fmt::format("the compiler's process does not start: {}", std::strerror(failed)),
                program.string());
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

std::string last_lines(const fs::path& file, size_t most) {
  std::string text;
  try {
    text = read_text_file(file);
  } catch (const Error&) {
    return "";
  }
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.size() <= most ? text : "... " + text.substr(text.size() - most);
}

std::string why_it_failed(int status, const fs::path& folder) {
  const std::string output = last_lines(folder / kOutputFile, 2000);
  if (WIFSIGNALED(status)) {
    const int signal = WTERMSIG(status);
    const std::string reason = signal == SIGKILL
                                   ? "it was killed, as when the machine's memory is used up"
                                   : fmt::format("{} (signal {})", ::strsignal(signal), signal);
    return fmt::format("the compiler's process ended: {}{}{}", reason,
                       output.empty() ? "" : "; it said: ", output);
  }
  return output.empty() ? "the compiler failed without a word" : output;
}

std::string identity(const Target& target, const std::string& text, int64_t partitions) {
  return fmt::format("{}\n{}\n{}\n{}\n", kSavedFormat, target.name, partitions,
                     sha256_hex(std::as_bytes(std::span(text))));
}

void read_result(const fs::path& file, AheadResult& result) {
  const Json json = read_json_file(file);
  MemoryStatistics memory;
  const Json& m = json.at("memory");
  memory.argument_bytes = m.at("argument_bytes");
  memory.output_bytes = m.at("output_bytes");
  memory.alias_bytes = m.at("alias_bytes");
  memory.temporary_bytes = m.at("temporary_bytes");
  memory.code_bytes = m.at("code_bytes");
  memory.peak_bytes = m.at("peak_bytes");
  result.memory = memory;
  result.device_kind = json.at("device_kind");
  result.seconds = json.at("seconds");
  result.flops = json.at("flops");
  if (!json.contains("collectives")) return;
  Collectives collectives;
  for (const auto& [kind, counted] : json.at("collectives").items()) {
    collectives[kind] = {counted.at("count"), counted.at("bytes")};
  }
  result.collectives = std::move(collectives);
}

}  // namespace

std::optional<std::pair<int64_t, int64_t>> memory_of_refusal(const std::string& message) {
  static const std::regex pattern("[Uu]sed ([0-9.]+)([KMGT]?) of ([0-9.]+)([KMGT]?) hbm");
  std::smatch match;
  if (!std::regex_search(message, match, pattern)) return std::nullopt;
  const auto bytes = [&](size_t number) {
    const std::string unit = match[number + 1];
    const size_t power = unit.empty() ? 0 : std::string("KMGT").find(unit[0]) + 1;
    return static_cast<int64_t>(std::strtod(match[number].str().c_str(), nullptr) *
                                std::pow(1024.0, static_cast<double>(power)));
  };
  return std::pair(bytes(1), bytes(3));
}

AheadResult compile_ahead(const AheadJob& job) {
  const WorkFolder work;
  const Json description = {{"plugin", find_plugin(job.target.plugin).string()},
                            {"target", job.target.name},
                            {"topology", job.target.topology},
                            {"options", to_json(job.target.options)},
                            {"partitions", job.partitions},
                            {"save", !job.save.empty()}};
  write_file_atomically(work.path() / kJobFile, description.dump());
  write_file_atomically(work.path() / kTextFile, job.text);
  const fs::path program = job.program.empty() ? fs::read_symlink("/proc/self/exe") : job.program;
  const auto start = std::chrono::steady_clock::now();
  const int status = run_child(program, work.path(), job.target);
  AheadResult result;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
    read_result(work.path() / kResultFile, result);
    if (!job.save.empty()) {
      write_file_atomically(job.save, identity(job.target, job.text, job.partitions) +
                                          read_text_file(work.path() / kProgramFile));
    }
    return result;
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  result.failure = why_it_failed(status, work.path());
  if (const auto memory = memory_of_refusal(result.failure)) {
    result.out_of_memory = true;
    result.needed_bytes = memory->first;
    result.capacity_bytes = memory->second;
  }
  return result;
}

void run_compile_ahead_child(const fs::path& folder) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // nobody waits for the result of an orphan
  const Json job = read_json_file(folder / kJobFile);
  const std::string text = read_text_file(folder / kTextFile);
  const auto start = std::chrono::steady_clock::now();
  auto plugin = Plugin::load(job.at("plugin").get<std::string>());
  CompileSettings settings;
  settings.partitions = job.at("partitions");
  const std::string topology_name = job.at("topology");
  std::optional<Topology> topology;
  std::optional<Client> client;
  std::unique_ptr<LoadedProgram> loaded;
  std::optional<CompiledProgram> ahead;
  std::string device_kind;
  if (topology_name.empty()) {
    client.emplace(plugin, Options{{"cpu_device_count", settings.partitions}});
    device_kind = client->device_kind();
    loaded = client->compile(text, settings);
  } else {
    topology.emplace(plugin, topology_name, options_from(job.at("options")));
    const int64_t devices = topology->device_count();
    if (devices != settings.partitions) {
      throw Error(fmt::format("the topology {} has {} devices, the mesh {}", topology_name, devices,
                              settings.partitions),
                  "mesh");
    }
    device_kind = topology->device_kind();
    ahead.emplace(topology->compile(text, settings));
  }
  const CompiledProgram& compiled = loaded ? loaded->compiled() : *ahead;
  const std::optional<MemoryStatistics> memory = compiled.memory();
  if (!memory) throw Error("the compiler tells no memory statistics", topology_name);
  Json result = {{"memory",
                  {{"argument_bytes", memory->argument_bytes},
                   {"output_bytes", memory->output_bytes},
                   {"alias_bytes", memory->alias_bytes},
                   {"temporary_bytes", memory->temporary_bytes},
                   {"code_bytes", memory->code_bytes},
                   {"peak_bytes", memory->peak_bytes}}},
                 {"device_kind", device_kind},
                 {"flops", 0.0}};
  result["seconds"] =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const Options costs = compiled.cost_analysis();
  if (const auto flops = costs.find("flops"); flops != costs.end()) {
    if (const auto* value = std::get_if<float>(&flops->second)) result["flops"] = *value;
  }
  try {
    const CompiledProgram::Program optimized = compiled.optimized_program();
    Json collectives = Json::object();
    for (const auto& [kind, counted] : count_collectives(optimized.format, optimized.code)) {
      collectives[kind] = {{"count", counted.count}, {"bytes", counted.bytes}};
    }
    result["collectives"] = std::move(collectives);
  } catch (const Error&) {
    // The plan says that they are not known.
  }
  if (job.at("save").get<bool>()) {
    write_file_atomically(folder / kProgramFile, compiled.serialize());
  }
  write_file_atomically(folder / kResultFile, result.dump());
}

std::string load_saved_program(const fs::path& file, const Target& target, const std::string& text,
                               int64_t partitions) {
  const std::string bytes = read_text_file(file);
  const std::string expected = identity(target, text, partitions);
  if (bytes.starts_with(expected)) return bytes.substr(expected.size());
  if (!bytes.starts_with(kSavedFormat)) {
    throw Error("this is no program that graft plan saved", file.string());
  }
  throw Error(
      "the saved program is of another target, mesh, recipe, model or "
      "version of graft",
      file.string(), "save it again with graft plan --save");
}

}  // namespace graft::pjrt
