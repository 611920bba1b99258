#include "pjrt/client.h"

#include <pjrt_c_api.h>

#include <utility>

#include "pjrt/named_values.h"

namespace graft::pjrt {
namespace {

constexpr std::string_view kFormat = "mlir";

PJRT_Program program_of(std::string_view text) {
  GRAFT_PJRT_ARGS(PJRT_Program, program);
  program.code = const_cast<char*>(text.data());  // read only, in spite of its type
  program.code_size = text.size();
  program.format = kFormat.data();
  program.format_size = kFormat.size();
  return program;
}

PJRT_Executable* executable_of(const Plugin& plugin, PJRT_LoadedExecutable* loaded) {
  GRAFT_PJRT_ARGS(PJRT_LoadedExecutable_GetExecutable_Args, args);
  args.loaded_executable = loaded;
  plugin.call(plugin.api().PJRT_LoadedExecutable_GetExecutable, args, "describing a program");
  return args.executable;
}

std::string kind_of(const Plugin& plugin, PJRT_DeviceDescription* description) {
  GRAFT_PJRT_ARGS(PJRT_DeviceDescription_Kind_Args, args);
  args.device_description = description;
  plugin.call(plugin.api().PJRT_DeviceDescription_Kind, args, "asking for a device's kind");
  return {args.device_kind, args.device_kind_size};
}

}  // namespace

// ---- CompiledProgram

CompiledProgram::CompiledProgram(std::shared_ptr<const Plugin> plugin, PJRT_Executable* executable)
    : plugin_(std::move(plugin)), executable_(executable) {}

CompiledProgram::CompiledProgram(CompiledProgram&& other) noexcept
    : plugin_(std::move(other.plugin_)), executable_(std::exchange(other.executable_, nullptr)) {}

CompiledProgram::~CompiledProgram() {
  if (executable_ == nullptr) return;
  GRAFT_PJRT_ARGS(PJRT_Executable_Destroy_Args, args);
  args.executable = executable_;
  plugin_->api().PJRT_Executable_Destroy(&args);
}

std::optional<MemoryStatistics> CompiledProgram::memory() const {
  if (plugin_->api().PJRT_Executable_GetCompiledMemoryStats == nullptr) return std::nullopt;
  GRAFT_PJRT_ARGS(PJRT_Executable_GetCompiledMemoryStats_Args, args);
  args.executable = executable_;
  try {
    plugin_->call(plugin_->api().PJRT_Executable_GetCompiledMemoryStats, args,
                  "asking for memory statistics");
  } catch (const Error&) {
    return std::nullopt;
  }
  return MemoryStatistics{args.argument_size_in_bytes,       args.output_size_in_bytes,
                          args.alias_size_in_bytes,          args.temp_size_in_bytes,
                          args.generated_code_size_in_bytes, args.peak_memory_in_bytes};
}

std::string CompiledProgram::serialize() const {
  GRAFT_PJRT_ARGS(PJRT_Executable_Serialize_Args, args);
  args.executable = executable_;
  plugin_->call(plugin_->api().PJRT_Executable_Serialize, args, "saving a compiled program");
  std::string bytes(args.serialized_bytes, args.serialized_bytes_size);
  args.serialized_executable_deleter(args.serialized_executable);
  return bytes;
}

CompiledProgram::Program CompiledProgram::optimized_program() const {
  GRAFT_PJRT_ARGS(PJRT_Program, program);
  GRAFT_PJRT_ARGS(PJRT_Executable_OptimizedProgram_Args, args);
  args.executable = executable_;
  args.program = &program;
  const auto ask = [&] {
    plugin_->call(plugin_->api().PJRT_Executable_OptimizedProgram, args,
                  "asking for the compiled program");
  };
  ask();  // its size
  std::string code(program.code_size, '\0');
  program.code = code.data();
  ask();
  return {std::string(program.format, program.format_size), std::move(code)};
}

Options CompiledProgram::cost_analysis() const {
  GRAFT_PJRT_ARGS(PJRT_Executable_GetCostAnalysis_Args, args);
  args.executable = executable_;
  try {
    plugin_->call(plugin_->api().PJRT_Executable_GetCostAnalysis, args, "asking for costs");
  } catch (const Error&) {
    return {};
  }
  return read_named_values({args.properties, args.num_properties});
}

// ---- LoadedProgram

LoadedProgram::LoadedProgram(std::shared_ptr<const Plugin> plugin,
                             PJRT_LoadedExecutable* executable)
    : plugin_(plugin),
      executable_(executable),
      compiled_(plugin, executable_of(*plugin, executable)) {}

LoadedProgram::~LoadedProgram() {
  GRAFT_PJRT_ARGS(PJRT_LoadedExecutable_Destroy_Args, args);
  args.executable = executable_;
  plugin_->api().PJRT_LoadedExecutable_Destroy(&args);
}

// ---- Client

Client::Client(std::shared_ptr<const Plugin> plugin, const Options& options)
    : plugin_(std::move(plugin)) {
  const std::vector<PJRT_NamedValue> values = named_values(options);
  GRAFT_PJRT_ARGS(PJRT_Client_Create_Args, create);
  create.create_options = values.data();
  create.num_options = values.size();
  plugin_->call(plugin_->api().PJRT_Client_Create, create, "opening the devices");
  client_ = create.client;
  GRAFT_PJRT_ARGS(PJRT_Client_AddressableDevices_Args, devices);
  devices.client = client_;
  plugin_->call(plugin_->api().PJRT_Client_AddressableDevices, devices, "listing the devices");
  devices_.assign(devices.addressable_devices,
                  devices.addressable_devices + devices.num_addressable_devices);
  if (devices_.empty()) throw Error("the plugin has no device here", plugin_->path().string());
}

Client::~Client() {
  GRAFT_PJRT_ARGS(PJRT_Client_Destroy_Args, args);
  args.client = client_;
  // A destructor does not raise: an error of closing concerns nobody any more.
  if (PJRT_Error* error = plugin_->api().PJRT_Client_Destroy(&args); error != nullptr) {
    GRAFT_PJRT_ARGS(PJRT_Error_Destroy_Args, destroy);
    destroy.error = error;
    plugin_->api().PJRT_Error_Destroy(&destroy);
  }
}

std::string Client::platform() const {
  GRAFT_PJRT_ARGS(PJRT_Client_PlatformName_Args, args);
  args.client = client_;
  plugin_->call(plugin_->api().PJRT_Client_PlatformName, args, "asking for the platform");
  return {args.platform_name, args.platform_name_size};
}

std::string Client::platform_version() const {
  GRAFT_PJRT_ARGS(PJRT_Client_PlatformVersion_Args, args);
  args.client = client_;
  plugin_->call(plugin_->api().PJRT_Client_PlatformVersion, args, "asking for the platform");
  return {args.platform_version, args.platform_version_size};
}

std::string Client::device_kind() const {
  GRAFT_PJRT_ARGS(PJRT_Device_GetDescription_Args, args);
  args.device = devices_.front();
  plugin_->call(plugin_->api().PJRT_Device_GetDescription, args, "describing a device");
  return kind_of(*plugin_, args.device_description);
}

std::unique_ptr<LoadedProgram> Client::compile(std::string_view text,
                                               const CompileSettings& settings) const {
  const PJRT_Program program = program_of(text);
  const std::string options = compile_options(settings);
  GRAFT_PJRT_ARGS(PJRT_Client_Compile_Args, args);
  args.client = client_;
  args.program = &program;
  args.compile_options = options.data();
  args.compile_options_size = options.size();
  plugin_->call(plugin_->api().PJRT_Client_Compile, args, "compiling");
  return std::make_unique<LoadedProgram>(plugin_, args.executable);
}

std::unique_ptr<LoadedProgram> Client::load(std::string_view serialized,
                                            const CompileSettings& settings) const {
  const std::string options = compile_options(settings);
  GRAFT_PJRT_ARGS(PJRT_Executable_DeserializeAndLoad_Args, args);
  args.client = client_;
  args.serialized_executable = serialized.data();
  args.serialized_executable_size = serialized.size();
  args.overridden_serialized_compile_options = options.data();
  args.overridden_serialized_compile_options_size = options.size();
  plugin_->call(plugin_->api().PJRT_Executable_DeserializeAndLoad, args,
                "loading a compiled program");
  return std::make_unique<LoadedProgram>(plugin_, args.loaded_executable);
}

// ---- Topology

Topology::Topology(std::shared_ptr<const Plugin> plugin, const std::string& name,
                   const Options& options)
    : plugin_(std::move(plugin)) {
  const std::vector<PJRT_NamedValue> values = named_values(options);
  GRAFT_PJRT_ARGS(PJRT_TopologyDescription_Create_Args, args);
  args.topology_name = name.data();
  args.topology_name_size = name.size();
  args.create_options = values.data();
  args.num_options = values.size();
  plugin_->call(plugin_->api().PJRT_TopologyDescription_Create, args,
                fmt::format("describing the topology {}", name));
  topology_ = args.topology;
}

Topology::~Topology() {
  GRAFT_PJRT_ARGS(PJRT_TopologyDescription_Destroy_Args, args);
  args.topology = topology_;
  plugin_->api().PJRT_TopologyDescription_Destroy(&args);
}

std::string Topology::platform() const {
  GRAFT_PJRT_ARGS(PJRT_TopologyDescription_PlatformName_Args, args);
  args.topology = topology_;
  plugin_->call(plugin_->api().PJRT_TopologyDescription_PlatformName, args,
                "asking for the platform");
  return {args.platform_name, args.platform_name_size};
}

namespace {
PJRT_TopologyDescription_GetDeviceDescriptions_Args descriptions_of(
    const Plugin& plugin, PJRT_TopologyDescription* topology) {
  GRAFT_PJRT_ARGS(PJRT_TopologyDescription_GetDeviceDescriptions_Args, args);
  args.topology = topology;
  plugin.call(plugin.api().PJRT_TopologyDescription_GetDeviceDescriptions, args,
              "listing the devices");
  return args;
}
}  // namespace

int64_t Topology::device_count() const {
  return static_cast<int64_t>(descriptions_of(*plugin_, topology_).num_descriptions);
}

std::string Topology::device_kind() const {
  const auto devices = descriptions_of(*plugin_, topology_);
  return devices.num_descriptions == 0 ? "" : kind_of(*plugin_, devices.descriptions[0]);
}

CompiledProgram Topology::compile(std::string_view text, const CompileSettings& settings) const {
  const PJRT_Program program = program_of(text);
  const std::string options = compile_options(settings);
  GRAFT_PJRT_ARGS(PJRT_Compile_Args, args);
  args.topology = topology_;
  args.program = &program;
  args.compile_options = options.data();
  args.compile_options_size = options.size();
  plugin_->call(plugin_->api().PJRT_Compile, args, "compiling");
  return {plugin_, args.executable};
}

}  // namespace graft::pjrt
