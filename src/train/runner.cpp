#include "train/runner.h"

#include <algorithm>
#include <cmath>

#include "train/flops.h"

namespace graft {

BatchShape shape_of(const Batch& batch) {
  return {batch.micro_batches(), batch.batch_size(), batch.sequence_length(),
          batch.target_capacity()};
}

StepRunner::StepRunner(StepOptions options, std::map<std::string, Tensor>& tensors, int threads)
    : options_(std::move(options)), tensors_(tensors), threads_(threads) {}

StepRunner::Program& StepRunner::program(Kind kind, const BatchShape& shape) {
  const auto key = std::make_pair(kind, shape);
  if (const auto it = programs_.find(key); it != programs_.end()) return it->second;
  StepOptions options = options_;
  options.statistics = kind == Kind::kTrainWithStatistics;
  const std::unique_ptr<Graph> graph =
      kind == Kind::kEvaluate ? build_evaluation(options, shape) : build_train_step(options, shape);
  Program program;
  program.gemm_flops = graft::gemm_flops(*graph);
  program.executable =
      std::make_unique<cpu::Executable>(cpu::compile(*graph, {.threads = threads_}));
  const auto& inputs = program.executable->inputs();
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto variable = tensors_.find(inputs[i].name);
    if (variable != tensors_.end()) program.executable->bind(i, variable->second);
  }
  arena_bytes_ = std::max(arena_bytes_, program.executable->plan().arena_bytes);
  return programs_.emplace(key, std::move(program)).first->second;
}

const MemoryPlan& StepRunner::prepare_train(const BatchShape& shape, bool statistics) {
  return program(statistics ? Kind::kTrainWithStatistics : Kind::kTrain, shape).executable->plan();
}

const MemoryPlan& StepRunner::prepare_evaluation(const BatchShape& shape) {
  return program(Kind::kEvaluate, shape).executable->plan();
}

void StepRunner::reserve() { arena_.reserve(arena_bytes_); }
size_t StepRunner::arena_bytes() const { return arena_bytes_; }

double StepRunner::gemm_flops(const BatchShape& shape) {
  return program(Kind::kTrain, shape).gemm_flops;
}

namespace {

Tensor scalar_tensor(double value) { return Tensor::of<float>({}, {static_cast<float>(value)}); }

// `weight` at each target, 0 at padding.
Tensor target_weights(const Batch& batch, double weight) {
  Tensor weights = Tensor::empty(DType::kF32, batch.targets.shape());
  const int32_t* targets = batch.targets.data<int32_t>();
  float* out = weights.data<float>();
  for (int64_t i = 0; i < weights.elements(); ++i) {
    out[i] = targets[i] < 0 ? 0.0F : static_cast<float>(weight);
  }
  return weights;
}

float scalar_of(const cpu::Executable& executable, const char* name) {
  return executable.output(name).data<float>()[0];
}

// Mean (activations) or maximum (logits) over micro-batches of [M, layers].
std::vector<double> over_micro_batches(const Tensor& values, bool maximum) {
  const int64_t m = values.shape()[0], layers = values.shape()[1];
  std::vector<double> result(static_cast<size_t>(layers), maximum ? -INFINITY : 0.0);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t l = 0; l < layers; ++l) {
      const double v = values.data<float>()[i * layers + l];
      double& r = result[static_cast<size_t>(l)];
      r = maximum ? std::max(r, v) : r + v / static_cast<double>(m);
    }
  }
  return result;
}

}  // namespace

void StepRunner::bind_batch(cpu::Executable& executable, const Batch& batch, double weight) {
  executable.bind(step_input::kInputIds, batch.input_ids);
  executable.bind(step_input::kSegments, batch.segment_ids);
  executable.bind(step_input::kPositions, batch.positions);
  executable.bind(step_input::kTargetPositions, batch.target_positions);
  executable.bind(step_input::kTargets, batch.targets);
  executable.bind(step_input::kWeights, target_weights(batch, weight));
}

StepResult StepRunner::train(const Batch& batch, const StepScalars& scalars, bool statistics) {
  Program& p = program(statistics ? Kind::kTrainWithStatistics : Kind::kTrain, shape_of(batch));
  cpu::Executable& executable = *p.executable;
  bind_batch(executable, batch, 1.0 / static_cast<double>(batch.trained_tokens));
  const double t = static_cast<double>(scalars.step);
  executable.bind(step_input::kLearningRate, scalar_tensor(scalars.learning_rate));
  executable.bind(step_input::kBiasCorrection1,
                  scalar_tensor(1 - std::pow(options_.adamw.beta1, t)));
  executable.bind(step_input::kBiasCorrection2,
                  scalar_tensor(1 - std::pow(options_.adamw.beta2, t)));
  for (const Input& input : executable.inputs()) {
    if (input.name == step_input::kSeed) {
      const std::vector<uint32_t> words{static_cast<uint32_t>(scalars.seed),
                                        static_cast<uint32_t>(scalars.seed >> 32)};
      executable.bind(input.name, Tensor::of<uint32_t>({2}, words));
    } else if (input.name == step_input::kStep) {
      executable.bind(input.name, Tensor::of<uint32_t>({}, {static_cast<uint32_t>(scalars.step)}));
    }
  }
  reserve();
  executable.run(arena_);

  StepResult result;
  result.loss = scalar_of(executable, step_output::kLoss);
  result.grad_norm = scalar_of(executable, step_output::kGradNorm);
  result.finite = executable.output(step_output::kFinite).data<bool>()[0];
  const Tensor squares = executable.output(step_output::kSquaredNorms);
  result.squared_norms.assign(squares.data<float>(), squares.data<float>() + squares.elements());
  if (statistics) {
    result.statistics["activation_rms"] =
        over_micro_batches(executable.output(step_output::kActivationRms), false);
    result.statistics["max_attention_logit"] =
        over_micro_batches(executable.output(step_output::kMaxAttentionLogit), true);
  }
  return result;
}

void StepRunner::evaluate(const Batch& batch, EvaluationResult& result) {
  Program& p = program(Kind::kEvaluate, shape_of(batch));
  bind_batch(*p.executable, batch, 1);
  reserve();
  p.executable->run(arena_);
  // Summed here in double, token by token.
  const Tensor nll = p.executable->output("nll");
  const int32_t* targets = batch.targets.data<int32_t>();
  for (int64_t i = 0; i < nll.elements(); ++i) {
    if (targets[i] >= 0) result.loss_sum += static_cast<double>(nll.data<float>()[i]);
  }
  result.trained_tokens += batch.trained_tokens;
  result.tokens += batch.tokens;
}

std::vector<cpu::Executable::KernelTime> StepRunner::profile() const {
  std::map<std::string, cpu::Executable::KernelTime> total;
  for (const auto& [key, p] : programs_) {
    if (key.first == Kind::kEvaluate) continue;
    for (const auto& time : p.executable->profile()) {
      auto& sum = total[time.op];
      sum.op = time.op;
      sum.seconds += time.seconds;
      sum.calls += time.calls;
    }
  }
  std::vector<cpu::Executable::KernelTime> sorted;
  for (auto& [op, time] : total) sorted.push_back(time);
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  return sorted;
}

}  // namespace graft
