#include "train/runner.h"

#include <algorithm>
#include <cmath>

#include "cpu/native_executor.h"
#include "train/flops.h"
#include "train/trained.h"

namespace graft {

BatchShape shape_of(const Batch& batch) {
  return {batch.micro_batches(), batch.batch_size(), batch.sequence_length(),
          batch.target_capacity()};
}

StepRunner::StepRunner(StepOptions options, std::map<std::string, Tensor>& tensors,
                       std::unique_ptr<Executor> executor)
    : options_(std::move(options)), tensors_(tensors), executor_(std::move(executor)) {
  for (const VariableSpec& v : state_variables(options_)) {
    // What only evaluates has no moments.
    if (v.kind == VariableKind::kOptimizer && !tensors_.contains(v.name)) continue;
    executor_->set_variable(v, tensors_.at(v.name));
  }
}

StepRunner::StepRunner(StepOptions options, std::map<std::string, Tensor>& tensors, int threads)
    : StepRunner(std::move(options), tensors, cpu::make_native_executor(threads)) {}

void StepRunner::fetch() {
  const std::vector<std::string>& trained = options_.trained;
  for (const VariableSpec& v : state_variables(options_)) {
    const bool changes = v.kind == VariableKind::kOptimizer ||
                         std::binary_search(trained.begin(), trained.end(), v.name);
    if (changes && executor_->has_variable(v.name)) {
      tensors_.at(v.name) = executor_->variable(v.name);
    }
  }
}

StepRunner::Compiled& StepRunner::compiled(Kind kind, const BatchShape& shape) {
  const auto key = std::make_pair(kind, shape);
  if (const auto it = programs_.find(key); it != programs_.end()) return it->second;
  StepOptions options = options_;
  options.statistics = kind == Kind::kTrainWithStatistics;
  const std::unique_ptr<Graph> graph =
      kind == Kind::kEvaluate ? build_evaluation(options, shape) : build_train_step(options, shape);
  Compiled compiled{executor_->compile(*graph), graft::gemm_flops(*graph)};
  return programs_.emplace(key, std::move(compiled)).first->second;
}

const MemoryPlan& StepRunner::prepare_train(const BatchShape& shape, bool statistics) {
  return compiled(statistics ? Kind::kTrainWithStatistics : Kind::kTrain, shape).program->plan();
}

const MemoryPlan& StepRunner::prepare_evaluation(const BatchShape& shape) {
  return compiled(Kind::kEvaluate, shape).program->plan();
}

void StepRunner::reserve() { executor_->reserve(); }
size_t StepRunner::arena_bytes() const { return executor_->arena_bytes(); }

StepRunner::Compilation StepRunner::compilation() const {
  Compilation total;
  for (const auto& item : programs_) {
    const CompileReport report = item.second.program->compile_report();
    total.seconds += report.seconds;
    ++total.programs;
    if (report.from_cache) ++total.from_cache;
  }
  return total;
}

double StepRunner::gemm_flops(const BatchShape& shape) {
  return compiled(Kind::kTrain, shape).gemm_flops;
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

float scalar_of(Program& program, const char* name) {
  const Tensor value = program.output(name);
  return value.data<float>()[0];
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

void StepRunner::bind_batch(Program& program, const Batch& batch, double weight) {
  program.bind(step_input::kInputIds, batch.input_ids);
  program.bind(step_input::kSegments, batch.segment_ids);
  program.bind(step_input::kPositions, batch.positions);
  program.bind(step_input::kTargetPositions, batch.target_positions);
  program.bind(step_input::kTargets, batch.targets);
  program.bind(step_input::kWeights, target_weights(batch, weight));
}

StepResult StepRunner::train(const Batch& batch, const StepScalars& scalars, bool statistics) {
  Program& program =
      *compiled(statistics ? Kind::kTrainWithStatistics : Kind::kTrain, shape_of(batch)).program;
  bind_batch(program, batch, 1.0 / static_cast<double>(batch.trained_tokens));
  const double t = static_cast<double>(scalars.step);
  program.bind(step_input::kLearningRate, scalar_tensor(scalars.learning_rate));
  program.bind(step_input::kBiasCorrection1, scalar_tensor(1 - std::pow(options_.adamw.beta1, t)));
  program.bind(step_input::kBiasCorrection2, scalar_tensor(1 - std::pow(options_.adamw.beta2, t)));
  for (const Input& input : program.inputs()) {
    if (input.name == step_input::kSeed) {
      const std::vector<uint32_t> words{static_cast<uint32_t>(scalars.seed),
                                        static_cast<uint32_t>(scalars.seed >> 32)};
      program.bind(input.name, Tensor::of<uint32_t>({2}, words));
    } else if (input.name == step_input::kStep) {
      program.bind(input.name, Tensor::of<uint32_t>({}, {static_cast<uint32_t>(scalars.step)}));
    }
  }
  reserve();
  program.run();

  StepResult result;
  result.loss = scalar_of(program, step_output::kLoss);
  result.grad_norm = scalar_of(program, step_output::kGradNorm);
  const Tensor finite = program.output(step_output::kFinite);
  result.finite = finite.data<bool>()[0];
  const Tensor squares = program.output(step_output::kSquaredNorms);
  result.squared_norms.assign(squares.data<float>(), squares.data<float>() + squares.elements());
  if (statistics) {
    result.statistics["activation_rms"] =
        over_micro_batches(program.output(step_output::kActivationRms), false);
    result.statistics["max_attention_logit"] =
        over_micro_batches(program.output(step_output::kMaxAttentionLogit), true);
  }
  return result;
}

void StepRunner::evaluate(const Batch& batch, EvaluationResult& result) {
  Program& program = *compiled(Kind::kEvaluate, shape_of(batch)).program;
  bind_batch(program, batch, 1);
  reserve();
  program.run();
  // Summed here in double, token by token.
  const Tensor nll = program.output("nll");
  const int32_t* targets = batch.targets.data<int32_t>();
  for (int64_t i = 0; i < nll.elements(); ++i) {
    if (targets[i] >= 0) result.loss_sum += static_cast<double>(nll.data<float>()[i]);
  }
  result.trained_tokens += batch.trained_tokens;
  result.tokens += batch.tokens;
}

std::vector<OperationTime> StepRunner::profile() const {
  std::map<std::string, OperationTime> total;
  for (const auto& [key, p] : programs_) {
    if (key.first == Kind::kEvaluate) continue;
    for (const auto& time : p.program->profile()) {
      auto& sum = total[time.op];
      sum.op = time.op;
      sum.seconds += time.seconds;
      sum.calls += time.calls;
    }
  }
  std::vector<OperationTime> sorted;
  for (auto& [op, time] : total) sorted.push_back(time);
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  return sorted;
}

}  // namespace graft
