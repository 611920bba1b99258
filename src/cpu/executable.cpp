#include "cpu/executable.h"

#include <omp.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>
#include <unordered_map>

#include "cpu/program.h"
#include "ir/passes.h"

namespace graft::cpu {

void Arena::Free::operator()(std::byte* p) const { std::free(p); }

void Arena::reserve(size_t bytes) {
  if (bytes <= size_) return;
  // Large pages, where there is enough to fill some: fewer misses in translating addresses.
  constexpr size_t kLargePage = size_t{2} << 20;
  const bool large = bytes >= 8 * kLargePage;
  const size_t alignment = large ? kLargePage : 64;
  data_.reset();  // before the new one is taken: the contents need not be kept
  size_ = 0;
  bytes = (bytes + alignment - 1) / alignment * alignment;
  auto* p = static_cast<std::byte*>(std::aligned_alloc(alignment, bytes));
  if (p == nullptr) {
    throw Error(fmt::format("{} MB for the values of a step are not to be had", bytes >> 20), "",
                "make the batch or max_length smaller");
  }
  if (large) madvise(p, bytes, MADV_HUGEPAGE);  // where it is refused, small pages do
  data_.reset(p);
  size_ = bytes;
}

namespace {

// Sets the size of the OpenMP team, and the caller's again at the end.
class Team {
 public:
  explicit Team(int threads) : before_(omp_get_max_threads()) { omp_set_num_threads(threads); }
  ~Team() { omp_set_num_threads(before_); }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

 private:
  int before_;
};

void copy_bytes(std::byte* to, const std::byte* from, size_t bytes) {
  constexpr size_t kPart = size_t{1} << 18;
  const auto parts = static_cast<int64_t>((bytes + kPart - 1) / kPart);
#pragma omp parallel for schedule(static) if (parts > 1)
  for (int64_t p = 0; p < parts; ++p) {
    const size_t begin = static_cast<size_t>(p) * kPart;
    std::memcpy(to + begin, from + begin, std::min(kPart, bytes - begin));
  }
}

}  // namespace

struct Executable::Impl {
  Program program;
  int threads = 1;
  std::vector<Input> inputs;
  std::vector<Output> outputs;
  std::vector<Type> input_types, output_types;
  std::vector<bool> donated;
  std::unordered_map<std::string, size_t> input_by_name, output_by_name;
  std::vector<Tensor> bound;
  std::vector<std::byte*> pointers;  // by slot
  std::vector<KernelTime> times;
  bool has_run = false;

  using Clock = std::chrono::steady_clock;

  void fill_pointers(Arena& arena) {
    for (size_t s = 0; s < program.slots.size(); ++s) {
      const Slot& slot = program.slots[s];
      const auto index = static_cast<size_t>(slot.index);
      switch (slot.kind) {
        case Slot::Kind::kArena: pointers[s] = arena.data() + slot.offset; break;
        case Slot::Kind::kInput:
          // Only the storage of a donated input is ever written, and bind() saw that it may be.
          pointers[s] = const_cast<std::byte*>(bound[index].bytes());
          break;
        case Slot::Kind::kLiteral:
          pointers[s] = const_cast<std::byte*>(program.literals[index].bytes());
          break;
        case Slot::Kind::kSlice:
        case Slot::Kind::kElement:
          pointers[s] = nullptr;  // set in each iteration
          break;
      }
    }
  }

  void set_loop_slots(const Block& block, int64_t iteration) {
    for (SlotId id : block.loop_slots) {
      const Slot& slot = program.slots[static_cast<size_t>(id)];
      const auto i = static_cast<size_t>(iteration);
      const bool slice = slot.kind == Slot::Kind::kSlice;
      std::byte* base = pointers[static_cast<size_t>(slot.bases[slice ? 0 : i])];
      pointers[static_cast<size_t>(id)] = slice ? base + i * slot.offset : base;
    }
  }

  void run_block(Block& block) {
    for (Step& step : block.steps) {
      switch (step.kind) {
        case Step::Kind::kKernel:
        case Step::Kind::kCopy: {
          const Clock::time_point begin = Clock::now();
          step.kind == Step::Kind::kKernel ? run_kernel(step) : run_copy(step);
          KernelTime& time = times[static_cast<size_t>(step.timer)];
          time.seconds += std::chrono::duration<double>(Clock::now() - begin).count();
          ++time.calls;
          break;
        }
        case Step::Kind::kScan: run_scan(step); break;
        case Step::Kind::kCase: run_case(step); break;
      }
    }
  }

  void run_kernel(Step& step) {
    for (size_t i = 0; i < step.buffers.size(); ++i) {
      step.buffers[i].data = pointers[static_cast<size_t>(step.slots[i])];
    }
    const std::span<const Buffer> all(step.buffers);
    std::span<std::byte> scratch;
    if (step.scratch >= 0) scratch = {pointers[static_cast<size_t>(step.scratch)], step.bytes};
    step.kernel->run({.node = *step.node,
                      .in = all.first(step.operands),
                      .out = all.subspan(step.operands),
                      .scratch = scratch,
                      .threads = threads});
  }

  void run_copy(const Step& step) {
    copy_bytes(pointers[static_cast<size_t>(step.slots[1])],
               pointers[static_cast<size_t>(step.slots[0])], step.bytes);
  }

  void run_scan(const Step& step) {
    Block& body = program.blocks[static_cast<size_t>(step.blocks[0])];
    for (int64_t n = 0; n < step.length; ++n) {
      set_loop_slots(body, step.reverse ? step.length - 1 - n : n);
      run_block(body);
    }
  }

  void run_case(const Step& step) {
    int32_t index = 0;
    std::memcpy(&index, pointers[static_cast<size_t>(step.slots[0])], sizeof index);
    const auto last = static_cast<int32_t>(step.blocks.size()) - 1;
    const int block = step.blocks[static_cast<size_t>(std::clamp(index, 0, last))];
    run_block(program.blocks[static_cast<size_t>(block)]);
  }
};

Executable::Executable(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Executable::Executable(Executable&&) noexcept = default;
Executable& Executable::operator=(Executable&&) noexcept = default;
Executable::~Executable() = default;

const MemoryPlan& Executable::plan() const { return impl_->program.memory; }
const std::vector<Input>& Executable::inputs() const { return impl_->inputs; }
const std::vector<Output>& Executable::outputs() const { return impl_->outputs; }

void Executable::bind(size_t input, Tensor tensor) {
  GRAFT_CHECK(input < impl_->inputs.size(), "there is no input {}", input);
  const Type& type = impl_->input_types[input];
  const std::string& name = impl_->inputs[input].name;
  GRAFT_CHECK(tensor.defined(), "input \"{}\" is bound to nothing", name);
  GRAFT_CHECK(tensor.dtype() == type.dtype && tensor.shape() == type.shape,
              "input \"{}\" is {}, not {}", name, graft::to_string(type),
              graft::to_string(Type{tensor.dtype(), tensor.shape()}));
  const auto address = reinterpret_cast<uintptr_t>(tensor.bytes());
  const bool aligned = address % std::max<size_t>(1, dtype_bytes(type.dtype, 1)) == 0;
  if (impl_->donated[input]) {
    tensor.mutable_bytes();  // refuses one that is read-only
    GRAFT_CHECK(aligned, "donated input \"{}\" is not aligned", name);
  }
  impl_->bound[input] = aligned ? std::move(tensor) : tensor.clone();
}

void Executable::bind(std::string_view input_name, Tensor tensor) {
  const auto at = impl_->input_by_name.find(std::string(input_name));
  GRAFT_CHECK(at != impl_->input_by_name.end(), "there is no input \"{}\"", input_name);
  bind(at->second, std::move(tensor));
}

void Executable::run(Arena& arena) {
  for (size_t i = 0; i < impl_->inputs.size(); ++i) {
    GRAFT_CHECK(impl_->bound[i].defined(), "input \"{}\" is not bound", impl_->inputs[i].name);
  }
  arena.reserve(plan().arena_bytes);
  const Team team(impl_->threads);
  impl_->fill_pointers(arena);
  impl_->run_block(impl_->program.blocks[0]);
  impl_->has_run = true;
}

Tensor Executable::output(size_t index) const {
  GRAFT_CHECK(index < impl_->outputs.size(), "there is no output {}", index);
  GRAFT_CHECK(impl_->has_run, "output \"{}\" is there once the program has run",
              impl_->outputs[index].name);
  const Type& type = impl_->output_types[index];
  Tensor result = Tensor::empty(type.dtype, type.shape);
  const auto slot = static_cast<size_t>(impl_->program.outputs[index]);
  if (type.bytes() > 0) std::memcpy(result.mutable_bytes(), impl_->pointers[slot], type.bytes());
  return result;
}

Tensor Executable::output(std::string_view name) const {
  const auto at = impl_->output_by_name.find(std::string(name));
  GRAFT_CHECK(at != impl_->output_by_name.end(), "there is no output \"{}\"", name);
  return output(at->second);
}

std::vector<Executable::KernelTime> Executable::profile() const {
  std::vector<KernelTime> sorted = impl_->times;
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const KernelTime& a, const KernelTime& b) { return a.seconds > b.seconds; });
  return sorted;
}

std::string Executable::to_string() const { return cpu::to_string(impl_->program); }

namespace {

// What a person's graph says more than once, or for nobody, is dropped; scans are unrolled last,
// since merging afterwards would undo rematerialisation.
std::unique_ptr<Graph> simplify(const Graph& graph, const CompileOptions& options) {
  auto simple = eliminate_dead_code(*merge_common_subexpressions(*eliminate_dead_code(graph)));
  if (options.unroll_scans) simple = eliminate_dead_code(*unroll_scans(*simple));
  return simple;
}

}  // namespace

Executable compile(const Graph& graph, const CompileOptions& options) {
  GRAFT_CHECK(options.threads >= 1, "a team of {} threads", options.threads);
  auto impl = std::make_unique<Executable::Impl>();
  impl->threads = options.threads;
  impl->inputs = graph.inputs();
  impl->outputs = graph.outputs();
  impl->program = make_program(*simplify(graph, options), options.threads);
  for (size_t i = 0; i < impl->inputs.size(); ++i) {
    impl->input_types.push_back(graph.type(impl->inputs[i].value));
    impl->input_by_name.emplace(impl->inputs[i].name, i);
  }
  impl->donated.assign(impl->inputs.size(), false);
  for (size_t i = 0; i < impl->outputs.size(); ++i) {
    const Output& output = impl->outputs[i];
    impl->output_types.push_back(graph.type(output.value));
    impl->output_by_name.emplace(output.name, i);
    if (output.donated_input >= 0) impl->donated[static_cast<size_t>(output.donated_input)] = true;
  }
  impl->bound.resize(impl->inputs.size());
  impl->pointers.resize(impl->program.slots.size());
  for (const std::string& op : impl->program.timers) impl->times.push_back({op, 0, 0});
  return Executable(std::move(impl));
}

}  // namespace graft::cpu
