#include "cpu/native_executor.h"

#include <chrono>
#include <map>

#include "cpu/executable.h"

namespace graft::cpu {
namespace {

// What the programs of one executor share.
struct Shared {
  std::map<std::string, Tensor> variables;
  int64_t generation = 0;  // grows when a variable is set
  Arena arena;
  size_t arena_bytes = 0;
};

class NativeProgram : public Program {
 public:
  NativeProgram(Executable executable, Shared& shared, double seconds)
      : executable_(std::move(executable)), shared_(shared), seconds_(seconds) {}

  const std::vector<Input>& inputs() const override { return executable_.inputs(); }
  const MemoryPlan& plan() const override { return executable_.plan(); }
  CompileReport compile_report() const override { return {seconds_, false}; }

  void bind(std::string_view input_name, Tensor tensor) override {
    executable_.bind(input_name, std::move(tensor));
  }

  void run() override {
    if (generation_ != shared_.generation) bind_variables();
    executable_.run(shared_.arena);
  }

  Tensor output(std::string_view name) override { return executable_.output(name); }
  std::vector<OperationTime> profile() const override { return executable_.profile(); }

 private:
  void bind_variables() {
    for (size_t i = 0; i < inputs().size(); ++i) {
      const auto variable = shared_.variables.find(inputs()[i].name);
      if (variable != shared_.variables.end()) executable_.bind(i, variable->second);
    }
    generation_ = shared_.generation;
  }

  Executable executable_;
  Shared& shared_;
  double seconds_;
  int64_t generation_ = -1;  // of the variables that are bound
};

class NativeExecutor : public Executor {
 public:
  explicit NativeExecutor(int threads) : threads_(threads) {}

  std::string description() const override { return fmt::format("native, {} threads", threads_); }
  int64_t device_count() const override { return 1; }

  void set_variable(const VariableSpec& spec, Tensor value) override {
    shared_.variables[spec.name] = std::move(value);
    ++shared_.generation;
  }
  bool has_variable(const std::string& name) const override {
    return shared_.variables.contains(name);
  }
  Tensor variable(const std::string& name) override { return shared_.variables.at(name); }

  std::unique_ptr<Program> compile(const Graph& graph) override {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point start = Clock::now();
    Executable executable = cpu::compile(graph, {.threads = threads_});
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    shared_.arena_bytes = std::max(shared_.arena_bytes, executable.plan().arena_bytes);
    return std::make_unique<NativeProgram>(std::move(executable), shared_, seconds);
  }

  void reserve() override { shared_.arena.reserve(shared_.arena_bytes); }
  size_t arena_bytes() const override { return shared_.arena_bytes; }

 private:
  int threads_;
  Shared shared_;
};

}  // namespace

std::unique_ptr<Executor> make_native_executor(int threads) {
  return std::make_unique<NativeExecutor>(threads);
}

}  // namespace graft::cpu
