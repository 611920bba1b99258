#include "pjrt/executor.h"

#include <pjrt_c_api.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <thread>
#include <unordered_map>

#include "pjrt/client.h"
#include "pjrt/device_array.h"
#include "pjrt/executable_cache.h"
#include "pjrt/mesh_program.h"
#include "pjrt/variable_store.h"
#include "sharding/resolve.h"

namespace graft::pjrt {
namespace {

// What the programs of one executor share.
struct Shared {
  Client client;
  Mesh mesh;
  AxisRules rules;
  VariableStore variables;
  size_t arena_bytes = 0;
};

class PjrtProgram : public Program {
 public:
  PjrtProgram(Shared& shared, const Graph& graph) : shared_(shared), inputs_(graph.inputs()) {
    Shardings shardings;
    for (const Input& input : inputs_) {
      if (!shared.variables.contains(input.name)) continue;
      shardings.emplace(input.name, shared.variables.sharding(input.name));
    }
    MeshProgram emitted = emit_for_mesh(graph, shared.mesh, shared.rules, shardings);
    input_bundles_ = std::move(emitted.lowered.inputs);
    output_bundles_ = std::move(emitted.lowered.outputs);
    const Graph& g = *emitted.lowered.graph;
    for (size_t i = 0; i < input_bundles_.size(); ++i) {
      const std::vector<std::string>& names = input_bundles_[i].names;
      const bool is_variable = shared.variables.contains(names[0]);
      slots_.push_back({g.type(g.inputs()[i].value), emitted.inputs[i], is_variable});
      if (!is_variable) data_[names[0]];
      for (const std::string& name : names) {
        GRAFT_CHECK(shared.variables.contains(name) == is_variable,
                    "variables and data are stacked together: {}", name);
      }
    }
    for (size_t i = 0; i < g.outputs().size(); ++i) {
      const Output& output = g.outputs()[i];
      replaced_.push_back(output.donated_input);
      results_.push_back({g.type(output.value), emitted.outputs[i], false});
      for (size_t m = 0; m < output_bundles_[i].names.size(); ++m) {
        place_of_output_[output_bundles_[i].names[m]] = {i, m};
      }
    }
    CompileSettings settings;
    settings.partitions = shared.mesh.devices();
    settings.flags = exactness_flags(shared.client.platform());
    CompiledResult compiled = compile_cached(shared.client, emitted.text, settings);
    program_ = std::move(compiled.program);
    report_ = compiled.report;
    if (const auto memory = program_->compiled().memory()) {
      plan_.arena_bytes =
          static_cast<size_t>(memory->temporary_bytes + memory->output_bytes - memory->alias_bytes);
      plan_.argument_bytes = static_cast<size_t>(memory->argument_bytes);
    }
    shared.arena_bytes = std::max(shared.arena_bytes, plan_.arena_bytes);
  }

  const std::vector<Input>& inputs() const override { return inputs_; }
  const MemoryPlan& plan() const override { return plan_; }
  CompileReport compile_report() const override { return report_; }

  void bind(std::string_view input_name, Tensor tensor) override {
    const auto at = data_.find(std::string(input_name));
    GRAFT_CHECK(at != data_.end(), "\"{}\" is no data of this program", input_name);
    at->second.emplace(put_array(shared_.client, std::span(&tensor, 1), false, {shared_.mesh, {}}));
  }

  void run() override {
    outputs_.clear();
    fetched_.clear();
    const size_t devices = static_cast<size_t>(shared_.mesh.devices());
    std::vector<std::vector<PJRT_Buffer*>> arguments(devices), results(devices);
    for (size_t i = 0; i < slots_.size(); ++i) {
      const DeviceArray& array = argument(i);
      GRAFT_CHECK(array.type == slots_[i].type, "input \"{}\" is {}, not {}",
                  input_bundles_[i].names[0], to_string(array.type), to_string(slots_[i].type));
      for (size_t d = 0; d < devices; ++d) arguments[d].push_back(array.buffers[d].handle());
    }
    execute(arguments, results);
    for (size_t i = 0; i < results_.size(); ++i) {
      DeviceArray array{results_[i].type, results_[i].sharding, {}};
      for (size_t d = 0; d < devices; ++d) {
        array.buffers.emplace_back(shared_.client.plugin(), results[d][i]);
      }
      if (replaced_[i] >= 0) {
        shared_.variables.replace(input_bundles_[static_cast<size_t>(replaced_[i])],
                                  std::move(array));
      } else {
        outputs_.emplace(i, std::move(array));
      }
    }
    has_run_ = true;
  }

  Tensor output(std::string_view name) override {
    const auto at = place_of_output_.find(std::string(name));
    GRAFT_CHECK(at != place_of_output_.end(), "there is no output \"{}\"", name);
    GRAFT_CHECK(has_run_, "output \"{}\" is there once the program has run", name);
    const auto [i, member] = at->second;
    if (replaced_[i] >= 0) {
      const Bundle& bundle = input_bundles_[static_cast<size_t>(replaced_[i])];
      return shared_.variables.value(bundle.names[member]);
    }
    auto fetched = fetched_.find(i);
    if (fetched == fetched_.end()) fetched = fetched_.emplace(i, outputs_.at(i).fetch()).first;
    return output_bundles_[i].stacked ? member_of(fetched->second, member)
                                      : fetched->second.clone();
  }

 private:
  struct Slot {
    Type type;
    NamedSharding sharding;
    bool is_variable;
  };

  const DeviceArray& argument(size_t i) {
    const Bundle& bundle = input_bundles_[i];
    if (slots_[i].is_variable) {
      return shared_.variables.array(shared_.client, bundle, slots_[i].sharding);
    }
    const auto& data = data_.at(bundle.names[0]);
    GRAFT_CHECK(data.has_value(), "input \"{}\" is not bound", bundle.names[0]);
    return *data;
  }

  void execute(const std::vector<std::vector<PJRT_Buffer*>>& arguments,
               std::vector<std::vector<PJRT_Buffer*>>& results) const {
    std::vector<PJRT_Buffer* const*> argument_lists;
    std::vector<PJRT_Buffer**> result_lists;
    for (const auto& list : arguments) argument_lists.push_back(list.data());
    for (auto& list : results) {
      list.resize(results_.size());
      result_lists.push_back(list.data());
    }
    GRAFT_PJRT_ARGS(PJRT_ExecuteOptions, options);
    GRAFT_PJRT_ARGS(PJRT_LoadedExecutable_Execute_Args, args);
    args.executable = program_->handle();
    args.options = &options;
    args.argument_lists = argument_lists.data();
    args.num_devices = arguments.size();
    args.num_args = slots_.size();
    args.output_lists = result_lists.data();
    const Plugin& plugin = shared_.client.plugin();
    plugin.call(plugin.api().PJRT_LoadedExecutable_Execute, args, "starting the program");
  }

  Shared& shared_;
  std::vector<Input> inputs_;
  std::vector<Bundle> input_bundles_, output_bundles_;
  std::vector<Slot> slots_, results_;
  std::vector<int> replaced_;  // by output: the input whose place it takes, or -1
  std::unordered_map<std::string, std::pair<size_t, size_t>> place_of_output_;
  std::unordered_map<std::string, std::optional<DeviceArray>> data_;
  std::unique_ptr<LoadedProgram> program_;
  MemoryPlan plan_;
  CompileReport report_;
  bool has_run_ = false;
  std::map<size_t, DeviceArray> outputs_;  // of the last run, but for replaced variables
  std::map<size_t, Tensor> fetched_;
};

class PjrtExecutor : public Executor {
 public:
  PjrtExecutor(std::shared_ptr<const Plugin> plugin, const Options& client_options,
               const ExecutorOptions& options)
      : shared_{{std::move(plugin), client_options}, {}, options.rules, {}, 0} {
    const auto devices = static_cast<int64_t>(shared_.client.devices().size());
    if (!options.mesh.empty()) shared_.mesh = Mesh::resolve(options.mesh, devices);
    if (shared_.mesh.devices() > devices) {
      throw Error(fmt::format("the mesh {} needs {} devices; there are {}", to_string(shared_.mesh),
                              shared_.mesh.devices(), devices),
                  "mesh", "make it smaller, or set compute.virtual_devices on the CPU");
    }
    refuse_unsupported_axes(shared_.mesh);
    shared_.variables.set_layout(shared_.mesh, shared_.rules);
  }

  std::string description() const override {
    std::string text = fmt::format(
        "pjrt:{} ({}, PJRT {}.{})", shared_.client.platform(), shared_.client.device_kind(),
        shared_.client.plugin().api_major(), shared_.client.plugin().api_minor());
    if (device_count() > 1) {
      text += fmt::format(", {} devices: {}", device_count(), to_string(shared_.mesh));
    }
    return text;
  }
  int64_t device_count() const override { return shared_.mesh.devices(); }

  void set_variable(const VariableSpec& spec, Tensor value) override {
    shared_.variables.set(spec, std::move(value));
  }
  bool has_variable(const std::string& name) const override {
    return shared_.variables.contains(name);
  }
  Tensor variable(const std::string& name) override { return shared_.variables.value(name); }

  std::unique_ptr<Program> compile(const Graph& graph) override {
    return std::make_unique<PjrtProgram>(shared_, graph);
  }
  void reserve() override {}  // the plugin allocates as it runs
  size_t arena_bytes() const override { return shared_.arena_bytes; }

 private:
  Shared shared_;
};

// The CPU plugin runs every virtual device on a pool of as many threads as there are cores, where a
// device that waits for the others in a collective holds its thread: with fewer threads than
// devices they wait for ever. The plugin reads the pool's size from NPROC when a client is made.
void give_each_device_a_thread(int64_t devices) {
  const auto cores = static_cast<int64_t>(std::thread::hardware_concurrency());
  const char* set = std::getenv("NPROC");
  const int64_t asked = set == nullptr ? 0 : std::strtoll(set, nullptr, 10);
  const int64_t threads = std::max(asked, cores + 2 * devices);
  setenv("NPROC", std::to_string(threads).c_str(), 1);
}

}  // namespace

std::unique_ptr<Executor> make_executor(const ExecutorOptions& options) {
  auto plugin = Plugin::load(options.plugin);
  int64_t devices = options.virtual_devices;
  if (devices == 0 && !options.mesh.empty()) {
    const bool open = std::any_of(options.mesh.begin(), options.mesh.end(),
                                  [](const auto& axis) { return axis.second == -1; });
    if (!open) devices = Mesh(options.mesh).devices();
  }
  Options client_options;
  // Other plugins find their devices by themselves, and know no such option.
  const bool is_cpu = options.plugin.filename().string().find("cpu") != std::string::npos;
  if (devices > 0 && is_cpu) {
    client_options["cpu_device_count"] = devices;
    if (devices > 1) give_each_device_a_thread(devices);
  }
  if (options.virtual_devices > 0 && !is_cpu) {
    throw Error("virtual devices are the CPU plugin's", "compute.virtual_devices",
                "leave it out, or use compute.executor: pjrt:cpu");
  }
  return std::make_unique<PjrtExecutor>(std::move(plugin), client_options, options);
}

}  // namespace graft::pjrt
