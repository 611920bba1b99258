#include "train/decoder.h"

#include <algorithm>
#include <cstring>

#include "ir/passes.h"
#include "ir/primitives.h"
#include "models/layout.h"
#include "models/model.h"

namespace graft {
namespace {

constexpr int64_t kPromptChunk = 64;
constexpr int64_t kFirstCapacity = 128;

std::string cache_name(const char* part, int64_t layer) {
  return fmt::format("cache.{}.{}", layer, part);
}

// Inputs: variables, ids, position of the first token, index of the token whose logits are wanted,
// and the caches, which the outputs of the same names replace.
std::unique_ptr<Graph> build_decode(const ModelState& state, DType dtype, int64_t chunk,
                                    int64_t capacity) {
  auto graph = std::make_unique<Graph>();
  std::map<std::string, Value> variables;
  for (const auto* list : {&state.parameters, &state.adapter.variables}) {
    for (const VariableSpec& v : *list) {
      variables[v.name] = graph->input(v.name, {v.dtype, v.shape}, v.kind);
    }
  }
  const ModelConfig& config = state.config;
  const Value ids = graph->input("ids", {DType::kS32, {1, chunk}});
  const Value offset = graph->input("offset", {DType::kS32, {}});
  const Value last = graph->input("last", {DType::kS32, {1}});
  const Type cache_type{dtype, {1, capacity, config.num_key_value_heads, config.head_dim}};
  CacheInputs cache;
  for (int64_t i = 0; i < static_cast<int64_t>(config.layers.size()); ++i) {
    cache.keys.push_back(graph->input(cache_name("k", i), cache_type, VariableKind::kCache));
    cache.values.push_back(graph->input(cache_name("v", i), cache_type, VariableKind::kCache));
  }
  // One sequence: causal order alone hides what is not there yet.
  const Value segments = splat(*graph, 1, {DType::kS32, {1, chunk}});
  cache.key_segments = splat(*graph, 1, {DType::kS32, {1, capacity}});
  cache.offset = offset;
  const Value positions = iota(*graph, {DType::kS32, {1, chunk}}, 1) + offset;
  ForwardOptions options;
  options.dtype = dtype;
  options.lora = &state.adapter.sites;
  options.packed = &state.packed;
  const auto lookup = [&](const std::string& name) { return variables.at(name); };
  const ForwardResult result =
      forward(*graph, config, {ids, segments, positions}, lookup, options, &cache);
  const Value rows = reshape(result.hidden, {chunk, config.hidden_size});
  graph->output("logits", logits(config, gather(rows, last),
                                 find_weight(lookup, &state.packed, head_name(config))));
  for (size_t i = 0; i < cache.keys.size(); ++i) {
    graph->output(cache_name("k", static_cast<int64_t>(i)), result.cache_keys[i], cache.keys[i]);
    graph->output(cache_name("v", static_cast<int64_t>(i)), result.cache_values[i],
                  cache.values[i]);
  }
  verify(*graph);
  return eliminate_dead_code(*merge_common_subexpressions(*graph));
}

}  // namespace

Decoder::Decoder(const ModelState& state, const Compute& compute)
    : state_(state), dtype_(compute.dtype), executor_(make_executor(compute)) {
  for (const auto* list : {&state_.parameters, &state_.adapter.variables}) {
    for (const VariableSpec& v : *list) executor_->set_variable(v, state_.tensors.at(v.name));
  }
}

// Copies what is cached into a longer bucket.
void Decoder::grow(int64_t capacity) {
  const ModelConfig& config = state_.config;
  for (int64_t layer = 0; layer < static_cast<int64_t>(config.layers.size()); ++layer) {
    for (const char* part : {"k", "v"}) {
      // Heads are split as those of activations are.
      const VariableSpec spec{cache_name(part, layer),
                              VariableKind::kCache,
                              dtype_,
                              {1, capacity, config.num_key_value_heads, config.head_dim},
                              {"", "", "kv_heads", ""}};
      Tensor larger = Tensor::zeros(dtype_, spec.shape);
      if (executor_->has_variable(spec.name)) {
        const Tensor cache = executor_->variable(spec.name);
        std::memcpy(larger.mutable_bytes(), cache.bytes(), cache.size_bytes());
      }
      executor_->set_variable(spec, std::move(larger));
    }
  }
  capacity_ = capacity;
}

// What lies behind in the cache is hidden by causal order until it is written over.
void Decoder::truncate(int64_t length) {
  GRAFT_CHECK(length >= 0 && length <= length_);
  length_ = length;
}

Program& Decoder::program(int64_t chunk) {
  auto& slot = programs_[{chunk, capacity_}];
  if (!slot) {
    slot = executor_->compile(*build_decode(state_, dtype_, chunk, capacity_));
    executor_->reserve();
  }
  return *slot;
}

std::span<const float> Decoder::feed(std::span<const int32_t> ids) {
  GRAFT_CHECK(!ids.empty());
  while (!ids.empty()) {
    const int64_t chunk = ids.size() == 1 ? 1 : kPromptChunk;
    // A chunk is written whole, its unused end too.
    int64_t capacity = std::max(capacity_, kFirstCapacity);
    while (capacity < length_ + chunk) capacity *= 2;
    if (capacity != capacity_) grow(capacity);
    const auto count =
        static_cast<int64_t>(std::min<size_t>(ids.size(), static_cast<size_t>(chunk)));
    Tensor padded = Tensor::zeros(DType::kS32, {1, chunk});
    std::copy_n(ids.begin(), count, padded.data<int32_t>());
    Program& step = program(chunk);
    step.bind("ids", padded);
    step.bind("offset", Tensor::of<int32_t>({}, {static_cast<int32_t>(length_)}));
    step.bind("last", Tensor::of<int32_t>({1}, {static_cast<int32_t>(count - 1)}));
    step.run();
    length_ += count;
    ids = ids.subspan(static_cast<size_t>(count));
    if (ids.empty()) logits_ = step.output("logits");
  }
  return logits_.span<float>();
}

}  // namespace graft
