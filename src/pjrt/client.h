#pragma once
// A PJRT client (the devices of a plugin), a topology (devices that are only described), and what
// they compile.
//
//   Client client(Plugin::load(path), {{"cpu_device_count", int64_t{8}}});
//   std::unique_ptr<LoadedProgram> program = client.compile(text, {.partitions = 8});
//
//   Topology tpu(Plugin::load(libtpu), "v5e:2x4", {});     // no TPU needed
//   CompiledProgram compiled = tpu.compile(text, {.partitions = 8});
//   compiled.memory()->temporary_bytes;

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pjrt/plugin.h"

struct PJRT_Client;
struct PJRT_Device;
struct PJRT_Executable;
struct PJRT_LoadedExecutable;
struct PJRT_TopologyDescription;

namespace graft::pjrt {

struct CompileSettings {
  int64_t partitions = 1;                    // devices that one program is split over
  std::vector<int64_t> device_ids = {};      // of each partition; empty: 0, 1, ...
  std::map<std::string, Option> flags = {};  // XLA's debug options by name: "xla_..."
};
// What makes a platform compute as the graph says, where its default is to be a little faster.
std::map<std::string, Option> exactness_flags(std::string_view platform);
std::string compile_options(const CompileSettings& settings);  // a serialised CompileOptionsProto

// Bytes of one device, as the compiler planned them.
struct MemoryStatistics {
  int64_t argument_bytes = 0, output_bytes = 0, alias_bytes = 0, temporary_bytes = 0;
  int64_t code_bytes = 0, peak_bytes = 0;  // peak: 0 where the plugin does not tell
  int64_t total_bytes() const {
    return argument_bytes + output_bytes - alias_bytes + temporary_bytes + code_bytes;
  }
};

// A compiled program, whether or not it can run here.
class CompiledProgram {
 public:
  CompiledProgram(std::shared_ptr<const Plugin> plugin, PJRT_Executable* executable);
  CompiledProgram(CompiledProgram&& other) noexcept;
  ~CompiledProgram();

  std::optional<MemoryStatistics> memory() const;  // nothing where the plugin does not tell
  std::string serialize() const;                   // raises Error where the plugin cannot
  struct Program {
    std::string format, code;  // "hlo", "hlo_with_config", "mlir"
  };
  Program optimized_program() const;
  Options cost_analysis() const;  // "flops", "bytes accessed"; empty where not told

 private:
  std::shared_ptr<const Plugin> plugin_;
  PJRT_Executable* executable_;
};

class Client;

// One that devices of a client run.
class LoadedProgram {
 public:
  LoadedProgram(std::shared_ptr<const Plugin> plugin, PJRT_LoadedExecutable* executable);
  ~LoadedProgram();
  LoadedProgram(const LoadedProgram&) = delete;
  LoadedProgram& operator=(const LoadedProgram&) = delete;

  const CompiledProgram& compiled() const { return compiled_; }
  PJRT_LoadedExecutable* handle() const { return executable_; }

 private:
  std::shared_ptr<const Plugin> plugin_;
  PJRT_LoadedExecutable* executable_;
  CompiledProgram compiled_;
};

class Client {
 public:
  Client(std::shared_ptr<const Plugin> plugin, const Options& options);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  const Plugin& plugin() const { return *plugin_; }
  PJRT_Client* handle() const { return client_; }
  std::string platform() const;  // "cpu", "cuda", "tpu"
  std::string platform_version() const;
  std::string device_kind() const;  // of the first device
  // Those of this process, by id; the order of a mesh.
  const std::vector<PJRT_Device*>& devices() const { return devices_; }

  // StableHLO text.
  std::unique_ptr<LoadedProgram> compile(std::string_view text,
                                         const CompileSettings& settings) const;
  std::unique_ptr<LoadedProgram> load(std::string_view serialized,
                                      const CompileSettings& settings) const;

 private:
  std::shared_ptr<const Plugin> plugin_;
  PJRT_Client* client_ = nullptr;
  std::vector<PJRT_Device*> devices_;
};

class Topology {
 public:
  Topology(std::shared_ptr<const Plugin> plugin, const std::string& name, const Options& options);
  ~Topology();
  Topology(const Topology&) = delete;
  Topology& operator=(const Topology&) = delete;

  std::string platform() const;
  int64_t device_count() const;
  std::string device_kind() const;
  CompiledProgram compile(std::string_view text, const CompileSettings& settings) const;

 private:
  std::shared_ptr<const Plugin> plugin_;
  PJRT_TopologyDescription* topology_ = nullptr;
};

}  // namespace graft::pjrt
