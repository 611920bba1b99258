#include "bench/gemm_bound.h"

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>

#include "cpu/gemm.h"
#include "cpu/kernels/blocked_product.h"
#include "cpu/parallel.h"
#include "models/layout.h"

namespace graft::bench {
namespace {

constexpr int kPasses = 5;
// Ways that a first look finds slower than the best by this factor are not timed further.
constexpr double kHopeless = 1.25;
constexpr size_t kFirstLook = 6;  // matrices
// Parts of a fixed partition: two a thread, so that one that is held up does not hold up all.
constexpr int64_t kPartsPerThread = 2;

double time_of(Clock clock, const std::function<void()>& work) {
  const double start = seconds_now(clock);
  work();
  return seconds_now(clock) - start;
}

// One product with each of several weights.
struct Problem {
  int64_t rows, columns, depth;
  bool w_transposed;  // W stored [columns, depth], else [depth, columns]
  std::vector<const float*> weights;
  const float* x;  // [rows, depth]
  float* y;        // [rows, columns]

  int64_t w_stride() const { return w_transposed ? depth : columns; }
};

struct Way {
  std::string name;
  std::function<void(size_t)> prepare;  // not timed; empty: nothing to prepare
  std::function<void(size_t)> run;      // with the weights of this index
};

Way plain(const Problem& p) {
  return {"oneDNN's own threads", {}, [&p](size_t i) {
            dnnl_sgemm('N', p.w_transposed ? 'T' : 'N', p.rows, p.columns, p.depth, 1.0F, p.x,
                       p.depth, p.weights[i], p.w_stride(), 0.0F, p.y, p.columns);
          }};
}

// The matmul primitive with weights in whatever layout it likes best, brought there beforehand.
Way packed(const Problem& p) {
  using dnnl::memory;
  struct Packed {
    dnnl::engine engine{dnnl::engine::kind::cpu, 0};
    dnnl::stream stream{engine};
    dnnl::matmul product;
    memory x, y;
    std::map<size_t, memory> weights;
  };
  auto state = std::make_shared<Packed>();
  const auto matrix = [](int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride) {
    return memory::desc({rows, columns}, memory::data_type::f32,
                        memory::dims{row_stride, column_stride});
  };
  const memory::desc x = matrix(p.rows, p.depth, p.depth, 1),
                     y = matrix(p.rows, p.columns, p.columns, 1);
  const memory::desc stored = p.w_transposed ? matrix(p.depth, p.columns, 1, p.depth)
                                             : matrix(p.depth, p.columns, p.columns, 1);
  const memory::desc any({p.depth, p.columns}, memory::data_type::f32, memory::format_tag::any);
  const dnnl::matmul::primitive_desc chosen({x, any, y}, state->engine);
  state->product = dnnl::matmul(chosen);
  state->x = memory(x, state->engine, const_cast<float*>(p.x));
  state->y = memory(y, state->engine, p.y);
  const auto prepare = [state, stored, chosen, &p](size_t i) {
    if (state->weights.contains(i)) return;
    memory from(stored, state->engine, const_cast<float*>(p.weights[i]));
    memory to(chosen.weights_desc(), state->engine);
    dnnl::reorder(from, to).execute(state->stream, from, to);
    state->stream.wait();
    state->weights.emplace(i, std::move(to));
  };
  return {"prepacked weights", prepare, [state](size_t i) {
            state->product.execute(state->stream, {{DNNL_ARG_SRC, state->x},
                                                   {DNNL_ARG_WEIGHTS, state->weights.at(i)},
                                                   {DNNL_ARG_DST, state->y}});
            state->stream.wait();
          }};
}

// Equal parts of the output's rows or columns, each multiplied by one thread.
Way partitioned(const Problem& p, int threads, bool by_rows) {
  const int64_t whole = by_rows ? p.rows : p.columns;
  const int64_t part = cpu::round_up(cpu::ceil_divide(whole, threads * kPartsPerThread), 16);
  return {by_rows ? "parts of rows" : "parts of columns",
          {},
          [&p, threads, by_rows, whole, part](size_t i) {
            cpu::parallel_for(threads, cpu::ceil_divide(whole, part), [&](int64_t unit, int) {
              const int64_t begin = unit * part, count = std::min(part, whole - begin);
              const int64_t row = by_rows ? begin : 0, column = by_rows ? 0 : begin;
              const float* w = p.weights[i] + (p.w_transposed ? column * p.depth : column);
              cpu::gemm(by_rows ? count : p.rows, by_rows ? p.columns : count, p.depth,
                        {p.x + row * p.depth, DType::kF32, p.depth},
                        {w, DType::kF32, p.w_stride(), p.w_transposed},
                        p.y + row * p.columns + column, p.columns);
            });
          }};
}

// As graft's linear layers do it.
Way blocked(const Problem& p, int threads) {
  const cpu::ProductShape shape{
      .rows = p.rows, .columns = p.columns, .depth = p.depth, .w_transposed = p.w_transposed};
  const cpu::ProductPlan plan(shape, threads);
  auto scratch = std::make_shared<Tensor>(
      Tensor::empty(DType::kU8, {static_cast<int64_t>(plan.bytes()) + 64}));
  return {"graft's blocks", {}, [&p, plan, scratch](size_t i) {
            cpu::multiply(plan, {.x = p.x, .w = p.weights[i], .y = p.y}, scratch->mutable_bytes());
          }};
}

struct Fastest {
  double seconds = std::numeric_limits<double>::infinity();  // of one pass over all weights
  std::string way;
};

double pass(Clock clock, const Way& way, size_t count) {
  return time_of(clock, [&] {
    for (size_t i = 0; i < count; ++i) way.run(i);
  });
}

Fastest fastest(const Problem& p, int threads, Clock clock) {
  const std::vector<Way> ways = {plain(p), packed(p), partitioned(p, threads, true),
                                 partitioned(p, threads, false), blocked(p, threads)};
  const size_t look = std::min(kFirstLook, p.weights.size());
  std::vector<double> first;
  for (const Way& way : ways) {
    for (size_t i = 0; way.prepare && i < look; ++i) way.prepare(i);
    way.run(0);  // warms what is allocated once
    first.push_back(std::min(pass(clock, way, look), pass(clock, way, look)));
  }
  const double limit = kHopeless * *std::min_element(first.begin(), first.end());
  Fastest best;
  for (size_t w = 0; w < ways.size(); ++w) {
    if (first[w] > limit) continue;
    for (size_t i = 0; ways[w].prepare && i < p.weights.size(); ++i) ways[w].prepare(i);
    std::vector<double> passes;
    for (int i = 0; i < kPasses; ++i) passes.push_back(pass(clock, ways[w], p.weights.size()));
    const double seconds = median(passes);
    if (seconds < best.seconds) best = {seconds, ways[w].name};
  }
  return best;
}

Tensor filled(int64_t elements) {
  Tensor t = Tensor::empty(DType::kF32, {elements});
  float* values = t.data<float>();
  for (int64_t i = 0; i < elements; ++i) values[i] = 1e-2F * static_cast<float>(i % 251 - 125);
  return t;
}

class Measurement {
 public:
  Measurement(const ModelState& state, const BatchShape& shape, int threads, Clock clock)
      : state_(state), shape_(shape), threads_(threads), clock_(clock) {
    omp_set_num_threads(threads);
  }

  GemmBound run() {
    measure_layers();
    measure_head();
    measure_attention();
    measure_square();
    return std::move(bound_);
  }

 private:
  void measure(ProductTime product, const std::vector<const float*>& weights, bool w_transposed) {
    const Tensor x = filled(product.rows * product.depth);
    Tensor y = Tensor::zeros(DType::kF32, {product.rows * product.columns});
    const Problem problem{product.rows, product.columns, product.depth,  w_transposed,
                          weights,      x.data<float>(), y.data<float>()};
    const Fastest best = fastest(problem, threads_, clock_);
    product.count = static_cast<int64_t>(weights.size());
    product.seconds = best.seconds;
    product.way = best.way;
    bound_.products.push_back(std::move(product));
  }

  // Products of one shape together, over all layers: their weights rotate through the caches.
  void measure_layers() {
    struct Group {
      std::string names;
      int64_t rank;
      std::vector<const float*> forward, gradient;
    };
    std::map<std::pair<int64_t, int64_t>, Group> groups;
    const auto layers = static_cast<int64_t>(state_.config.layers.size());
    for (int64_t layer = 0; layer < layers; ++layer) {
      for (const LinearModule& module : layer_layout(state_.config, layer).linears) {
        const std::string name = layer_prefix(layer) + module.name;
        Group& group = groups[{module.out, module.in}];
        const std::string leaf = module.name.substr(module.name.rfind('.') + 1);
        if (layer == 0) group.names += (group.names.empty() ? "" : ", ") + leaf;
        group.rank = state_.adapter.sites.at(name).rank;
        const auto* w = state_.tensors.at(name + ".weight").data<float>();
        group.forward.push_back(w);
        // Below the first layer nothing is trained: its input needs no gradient.
        const bool reads_input = leaf == "q_proj" || leaf == "k_proj" || leaf == "v_proj";
        if (layer > 0 || !reads_input) group.gradient.push_back(w);
      }
    }
    const int64_t rows = shape_.batch_size * shape_.sequence_length;
    for (const auto& [size, group] : groups) {
      const auto [out, in] = size;
      measure({.name = group.names, .rows = rows, .columns = out, .depth = in, .rank = group.rank},
              group.forward, true);
      measure({.name = group.names,
               .gradient = true,
               .rows = rows,
               .columns = in,
               .depth = out,
               .rank = group.rank},
              group.gradient, false);
    }
  }

  void measure_head() {
    const auto* w = state_.tensors.at(head_name(state_.config)).data<float>();
    const int64_t vocab = state_.config.vocab_size, hidden = state_.config.hidden_size;
    measure({.name = "head", .rows = shape_.targets, .columns = vocab, .depth = hidden}, {w}, true);
    measure({.name = "head",
             .gradient = true,
             .rows = shape_.targets,
             .columns = hidden,
             .depth = vocab},
            {w}, false);
  }

  // Attention's products alone, the causal half in blocks of rows; every layer is alike. Forward: q
  // k^T, p v; backward: q k^T again, do v^T, then ds k, and ds^T q, p^T do with the transposed
  // scores.
  void measure_attention() {
    const ModelConfig& c = state_.config;
    const int64_t s = shape_.sequence_length, d = c.head_dim;
    const int64_t heads = shape_.batch_size * c.num_attention_heads;
    const Tensor q = filled(heads * s * d), k = filled(heads * s * d);
    Tensor scores = filled(int64_t{threads_} * s * s),
           out = Tensor::zeros(DType::kF32, {heads * s * d});
    float* score_data = scores.data<float>();
    float* out_data = out.data<float>();
    enum Kind { kScores, kValues, kTransposed };
    const auto seconds = [&](Kind kind, int64_t block) {
      const auto run = [&] {
        cpu::parallel_for(threads_, heads, [&](int64_t head, int thread) {
          const float *a = q.data<float>() + head * s * d, *b = k.data<float>() + head * s * d;
          float *p = score_data + thread * s * s, *o = out_data + head * s * d;
          for (int64_t i = 0; i < s; i += block) {
            const int64_t rows = std::min(block, s - i), seen = i + rows;
            const cpu::MatrixRef left{a + i * d, DType::kF32, d}, right{b, DType::kF32, d};
            if (kind == kScores) {
              cpu::gemm(rows, seen, d, left, {b, DType::kF32, d, true}, p + i * s, s);
            } else if (kind == kValues) {
              cpu::gemm(rows, d, seen, {p + i * s, DType::kF32, s}, right, o + i * d, d);
            } else {
              cpu::gemm(seen, d, rows, {p + i * s, DType::kF32, s, true}, left, o, d, 1, 1);
            }
          }
        });
      };
      run();
      std::vector<double> passes;
      for (int i = 0; i < kPasses; ++i) passes.push_back(time_of(clock_, run));
      return median(passes);
    };
    std::array<double, 3> best;
    for (int kind = 0; kind < 3; ++kind) {
      best[static_cast<size_t>(kind)] = std::numeric_limits<double>::infinity();
      for (int64_t block : {32, 64, 128, 256}) {
        best[static_cast<size_t>(kind)] =
            std::min(best[static_cast<size_t>(kind)], seconds(static_cast<Kind>(kind), block));
      }
    }
    const auto layers = static_cast<double>(c.layers.size());
    bound_.attention_forward = layers * (best[kScores] + best[kValues]);
    bound_.attention_backward =
        layers * (2 * best[kScores] + best[kValues] + 2 * best[kTransposed]);
    const auto pairs = static_cast<double>(heads * s * (s + 1) / 2);
    bound_.attention_flops = layers * 7 * 2 * pairs * static_cast<double>(d);
  }

  void measure_square() {
    for (int64_t size : {1024, 2048, 4096}) {
      const Tensor x = filled(size * size), w = filled(size * size);
      Tensor y = Tensor::zeros(DType::kF32, {size * size});
      const Problem p{size, size, size, false, {w.data<float>()}, x.data<float>(), y.data<float>()};
      for (const Way& way : {plain(p), packed(p), partitioned(p, threads_, true)}) {
        if (way.prepare) way.prepare(0);
        way.run(0);
        for (int i = 0; i < kPasses; ++i) {
          const auto n = static_cast<double>(size);
          const double rate = 2 * n * n * n / pass(clock_, way, 1);
          if (rate <= bound_.square_rate) continue;
          bound_.square_rate = rate;
          bound_.square_size = size;
          bound_.square_way = way.name;
        }
      }
    }
  }

  const ModelState& state_;
  const BatchShape shape_;
  const int threads_;
  const Clock clock_;
  GemmBound bound_;
};

template <typename F>
double sum(const GemmBound& bound, const F& f) {
  double total = 0;
  for (const ProductTime& product : bound.products) total += f(product);
  return total;
}

}  // namespace

double ProductTime::flops() const {
  return 2.0 * static_cast<double>(rows) * static_cast<double>(columns) *
         static_cast<double>(depth) * static_cast<double>(count);
}

double ProductTime::low_rank_share() const {
  return static_cast<double>(rank) * static_cast<double>(columns + depth) /
         (static_cast<double>(columns) * static_cast<double>(depth));
}

double GemmBound::forward() const {
  return sum(*this, [](const ProductTime& p) {
    return p.rank > 0 && !p.gradient ? p.seconds * (1 + p.low_rank_share()) : 0;
  });
}

double GemmBound::input_gradients() const {
  return sum(*this, [](const ProductTime& p) {
    return p.rank > 0 && p.gradient ? p.seconds * (1 + p.low_rank_share()) : 0;
  });
}

// dA = v^T x and dB = dy^T u have together the FLOPs of the two low-rank products of a forward
// pass.
double GemmBound::factor_gradients() const {
  return sum(*this,
             [](const ProductTime& p) { return p.gradient ? 0 : p.seconds * p.low_rank_share(); });
}

double GemmBound::head() const {
  return sum(*this, [](const ProductTime& p) { return p.rank == 0 ? p.seconds : 0; });
}

double GemmBound::seconds_without_attention() const {
  return forward() + input_gradients() + factor_gradients() + head();
}

double GemmBound::flops_without_attention() const {
  return sum(*this, [](const ProductTime& p) {
    return p.flops() * (1 + (p.gradient ? 1 : 2) * p.low_rank_share());
  });
}

GemmBound measure_gemm_bound(const ModelState& state, const BatchShape& shape, int threads,
                             Clock clock) {
  GRAFT_CHECK(shape.micro_batches == 1 && (clock != Clock::kThread || threads == 1));
  return Measurement(state, shape, threads, clock).run();
}

}  // namespace graft::bench
