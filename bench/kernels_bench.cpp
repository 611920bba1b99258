// How fast the native kernels are beside the best that oneDNN does with their matrix products
// alone, at the shapes of SmolLM2-135M (1,024 tokens, hidden 576, 3 key heads of 64, MLP 1,536,
// vocabulary 49,152, LoRA rank 16). A kernel and its products are timed in turns, so that a busy
// machine slows both alike, and the quickest of each is taken; with one thread its own CPU time is
// measured, which other processes hardly touch. Weights rotate through enough copies to be cold.
//
//   build/kernels_bench [threads [linear|loss|attention|decoding|elementwise]]

#include <omp.h>
#include <time.h>
#include <oneapi/dnnl/dnnl.hpp>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "cpu/gemm.h"
#include "cpu/kernel.h"
#include "ops/activation.h"
#include "ops/attention.h"
#include "ops/linear.h"
#include "ops/loss.h"
#include "ops/norm.h"

namespace graft::cpu {
namespace {

constexpr int kRepeats = 9;

double now(int threads) {
  timespec time{};
  clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double seconds_of(int threads, const std::function<void()>& f) {
  const double begin = now(threads);
  f();
  return now(threads) - begin;
}

Tensor filled(Shape shape, uint32_t stream, DType dtype = DType::kF32) {
  Tensor tensor = Tensor::empty(DType::kF32, std::move(shape));
  Philox random(3, stream);
  const int64_t distinct = std::min<int64_t>(tensor.elements(), 4099);
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    tensor.data<float>()[i] = i < distinct ? static_cast<float>(random.uniform() - 0.5)
                                           : tensor.data<float>()[i - distinct];
  }
  return tensor.as(dtype);
}

// One operation with its buffers; operand `rotating` has copies that runs go through.
class Operation {
 public:
  Operation(const Op& op, std::vector<Tensor> inputs, Attributes attributes, int threads,
            size_t rotating = 0, int copies = 1)
      : inputs_(std::move(inputs)), threads_(threads), rotating_(rotating) {
    std::vector<Value> operands;
    for (const Tensor& t : inputs_) {
      in_types_.push_back({t.dtype(), t.shape()});
      operands.push_back(graph_.input("in", in_types_.back()));
    }
    for (Value v : graph_.add(op, operands, std::move(attributes))) out_types_.push_back(v.type());
    const Node& node = graph_.nodes()[0];
    kernel_ = find_kernel(node, in_types_, out_types_);
    GRAFT_CHECK(kernel_ != nullptr, "no kernel for {}", op.name);
    for (const Type& t : out_types_) outputs_.push_back(Tensor::zeros(t.dtype, t.shape));
    if (kernel_->scratch_bytes != nullptr) {
      const size_t bytes = kernel_->scratch_bytes(node, in_types_, out_types_, threads);
      scratch_ = Tensor::zeros(DType::kU8, {static_cast<int64_t>(bytes)});
    }
    copies_.push_back(inputs_[rotating]);
    while (static_cast<int>(copies_.size()) < copies) copies_.push_back(inputs_[rotating].clone());
    run();
  }

  void run() {
    inputs_[rotating_] = copies_[next_++ % copies_.size()];
    std::vector<Buffer> in, out;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      in.push_back({&in_types_[i], const_cast<std::byte*>(inputs_[i].bytes())});
    }
    for (size_t i = 0; i < outputs_.size(); ++i) {
      out.push_back({&out_types_[i], outputs_[i].mutable_bytes()});
    }
    const std::span<std::byte> scratch =
        scratch_.defined() ? std::span(scratch_.mutable_bytes(), scratch_.size_bytes())
                           : std::span<std::byte>();
    kernel_->run({graph_.nodes()[0], in, out, scratch, threads_});
  }

  int threads() const { return threads_; }

 private:
  Graph graph_;
  std::vector<Tensor> inputs_, outputs_, copies_;
  std::vector<Type> in_types_, out_types_;
  Tensor scratch_;
  const Kernel* kernel_ = nullptr;
  int threads_;
  size_t rotating_, next_ = 0;
};

// A plain f32 product c [m, n] = a [m, k] b as oneDNN does it: by its own threading, by blocks of
// rows of one thread each, and with b packed beforehand; the quickest counts.
class Product {
 public:
  Product(int64_t m, int64_t n, int64_t k, bool b_transposed, int threads, int copies)
      : m_(m),
        n_(n),
        k_(k),
        transposed_(b_transposed),
        threads_(threads),
        a_(filled({m, k}, 1)),
        c_(Tensor::zeros(DType::kF32, {m, n})) {
    for (int i = 0; i < copies; ++i) b_.push_back(filled({k, n}, 2));
    prepare_packed();
  }

  double flops() const { return 2.0 * static_cast<double>(m_ * n_) * static_cast<double>(k_); }

  double best() {
    double seconds = 1e30;
    omp_set_num_threads(threads_);
    seconds = std::min(seconds, seconds_of(threads_, [&] { whole(); }));
    for (const int64_t rows : {128, 256}) {
      seconds = std::min(seconds, seconds_of(threads_, [&] { in_blocks(rows); }));
    }
    return std::min(seconds, seconds_of(threads_, [&] { packed(); }));
  }

 private:
  const Tensor& next() { return b_[next_++ % b_.size()]; }

  void multiply(int64_t row, int64_t rows, const Tensor& b) {
    dnnl_sgemm('N', transposed_ ? 'T' : 'N', rows, n_, k_, 1.0F, a_.data<float>() + row * k_, k_,
               b.data<float>(), transposed_ ? k_ : n_, 0.0F, c_.data<float>() + row * n_, n_);
  }
  void whole() { multiply(0, m_, next()); }
  void in_blocks(int64_t rows) {
    const Tensor& b = next();
#pragma omp parallel for schedule(dynamic, 1)
    for (int64_t row = 0; row < m_; row += rows) multiply(row, std::min(rows, m_ - row), b);
  }

  void prepare_packed() {
    using dnnl::memory;
    omp_set_num_threads(threads_);
    const memory::desc a({m_, k_}, memory::data_type::f32, memory::format_tag::ab);
    const memory::desc b({k_, n_}, memory::data_type::f32, memory::format_tag::any);
    const memory::desc c({m_, n_}, memory::data_type::f32, memory::format_tag::ab);
    const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(a, b, c), engine_);
    primitive_ = dnnl::matmul(description);
    for (Tensor& t : b_) {
      const auto tag = transposed_ ? memory::format_tag::ba : memory::format_tag::ab;
      memory plain({{k_, n_}, memory::data_type::f32, tag}, engine_, t.data<float>());
      memory packed(description.weights_desc(), engine_);
      dnnl::reorder(plain, packed).execute(stream_, plain, packed);
      packed_.push_back(packed);
    }
    packed_a_ = memory(a, engine_, a_.data<float>());
    packed_c_ = memory(c, engine_, c_.data<float>());
  }
  void packed() {
    primitive_.execute(stream_, {{DNNL_ARG_SRC, packed_a_},
                                 {DNNL_ARG_WEIGHTS, packed_[next_++ % packed_.size()]},
                                 {DNNL_ARG_DST, packed_c_}});
  }

  int64_t m_, n_, k_;
  bool transposed_;
  int threads_;
  Tensor a_, c_;
  std::vector<Tensor> b_;
  size_t next_ = 0;
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  dnnl::matmul primitive_;
  std::vector<dnnl::memory> packed_;
  dnnl::memory packed_a_, packed_c_;
};

// `flops`: all that the kernel must do; those beyond `product`'s are reckoned at the product's
// rate.
void compare(const std::string& name, double flops, Operation& kernel, Product& product) {
  double kernel_seconds = 1e30, product_seconds = 1e30;
  for (int i = 0; i < kRepeats; ++i) {
    kernel_seconds = std::min(kernel_seconds, seconds_of(kernel.threads(), [&] { kernel.run(); }));
    product_seconds = std::min(product_seconds, product.best());
  }
  const double rate = flops / kernel_seconds, bound = product.flops() / product_seconds;
  std::printf("%-28s %8.3f ms %7.1f GFLOP/s   product alone %7.1f   share %5.1f%%\n", name.c_str(),
              kernel_seconds * 1e3, rate / 1e9, bound / 1e9, 100 * rate / bound);
}

void time_alone(const std::string& name, Operation& kernel, double flops) {
  double seconds = 1e30;
  for (int i = 0; i < kRepeats; ++i)
    seconds = std::min(seconds, seconds_of(kernel.threads(), [&] { kernel.run(); }));
  std::printf("%-28s %8.3f ms", name.c_str(), seconds * 1e3);
  if (flops > 0) std::printf(" %7.1f GFLOP/s", flops / seconds / 1e9);
  std::printf("\n");
}

constexpr int64_t kTokens = 1024, kHidden = 576, kMlp = 1536, kVocabulary = 49152, kRank = 16;

void bench_linear(int threads, DType dtype) {
  constexpr int kCopies = 24;
  struct Layer {
    const char* name;
    int64_t in, out;
  };
  for (const Layer& l : {Layer{"q, o", kHidden, kHidden}, Layer{"k, v", kHidden, 192},
                         Layer{"gate, up", kHidden, kMlp}, Layer{"down", kMlp, kHidden}}) {
    const std::string suffix = std::string(l.name) + " " + std::string(dtype_name(dtype));
    const Tensor w = filled({l.out, l.in}, 2, dtype);
    const Tensor a = filled({kRank, l.in}, 3), b = filled({l.out, kRank}, 4);
    const Tensor scale = Tensor::of<float>({}, {2.0F});
    const double flops = 2.0 * kTokens * static_cast<double>(l.in * l.out + kRank * (l.in + l.out));
    const Attributes lora{{"has_lora", true}};
    Operation forward(kLinear, {filled({kTokens, l.in}, 1, dtype), w, a, b, scale}, lora, threads,
                      1, kCopies);
    Product forward_product(kTokens, l.out, l.in, true, threads, kCopies);
    compare("linear " + suffix, flops, forward, forward_product);
    Operation backward(kLinearInputGrad, {filled({kTokens, l.out}, 1, dtype), w, a, b, scale}, lora,
                       threads, 1, kCopies);
    Product backward_product(kTokens, l.in, l.out, false, threads, kCopies);
    compare("input grad " + suffix, flops, backward, backward_product);
  }
}

void bench_loss(int threads, DType dtype) {
  std::vector<int32_t> targets;
  for (int64_t i = 0; i < kTokens; ++i)
    targets.push_back(static_cast<int32_t>(i * 37 % kVocabulary));
  const std::vector<Tensor> inputs{filled({kTokens, kHidden}, 1, dtype),
                                   filled({kVocabulary, kHidden}, 2, dtype),
                                   Tensor::of<int32_t>({kTokens}, targets), filled({kTokens}, 3)};
  Operation loss(kCrossEntropyWithGrad, inputs, {{"softcap", 0.0}}, threads);
  Product product(kTokens, 4096, kHidden, false, threads, 8);
  const double flops = 4.0 * kTokens * static_cast<double>(kHidden) * kVocabulary;
  compare("loss and dh " + std::string(dtype_name(dtype)), flops, loss, product);
}

void bench_attention(int threads, int64_t batch, int64_t length) {
  const auto segments = [&] {
    Tensor t = Tensor::empty(DType::kS32, {batch, length});
    std::fill_n(t.data<int32_t>(), t.elements(), 1);
    return t;
  }();
  const auto s32 = [](int32_t v) { return Tensor::of<int32_t>({}, {v}); };
  const Tensor q = filled({batch, length, 9, 64}, 1), k = filled({batch, length, 3, 64}, 2);
  const Tensor v = filled({batch, length, 3, 64}, 3), out = filled({batch, length, 9, 64}, 4);
  const Tensor lse = filled({batch, 9, length}, 5);
  const Attributes attributes{{"scale", 0.125}, {"softcap", 0.0}};
  const std::string suffix = std::to_string(batch) + " x " + std::to_string(length);
  // Half of the scores are seen; two products forward, five backward.
  const double product = static_cast<double>(batch * 9 * length * length * 64);
  Operation forward(kAttention, {q, k, v, segments, segments, s32(kNoWindow), s32(0)}, attributes,
                    threads);
  time_alone("attention " + suffix, forward, 2 * product);
  Operation backward(kAttentionGrad,
                     {out, q, k, v, out, lse, segments, segments, s32(kNoWindow), s32(0)},
                     attributes, threads);
  time_alone("attention grad " + suffix, backward, 5 * product);
}

void bench_decoding(int threads) {
  const auto s32 = [](int32_t v) { return Tensor::of<int32_t>({}, {v}); };
  for (const int32_t position : {10, 1000}) {
    const Tensor segments = Tensor::of<int32_t>({1, 1024}, std::vector<int32_t>(1024, 1));
    Operation attention(
        kAttention,
        {filled({1, 1, 9, 64}, 1), filled({1, 1024, 3, 64}, 2), filled({1, 1024, 3, 64}, 3),
         Tensor::of<int32_t>({1, 1}, {1}), segments, s32(kNoWindow), s32(position)},
        {{"scale", 0.125}, {"softcap", 0.0}}, threads);
    time_alone("decode attention at " + std::to_string(position), attention, 0);
  }
  Operation linear(kLinear, {filled({1, kHidden}, 1), filled({kMlp, kHidden}, 2)}, {}, threads, 1,
                   24);
  time_alone("decode linear gate", linear, 2.0 * kHidden * kMlp);
}

void bench_elementwise(int threads) {
  const Tensor hidden = filled({kTokens, kHidden}, 1), w = filled({kHidden}, 2);
  const Attributes norm{{"eps", 1e-5}, {"offset", 0.0}, {"round_before_weight", true}};
  Operation forward(kRmsNorm, {hidden, w}, norm, threads);
  time_alone("rms_norm", forward, 0);
  Operation backward(kRmsNormGrad, {hidden, hidden, w, filled({kTokens}, 3)}, norm, threads);
  time_alone("rms_norm_grad", backward, 0);
  const Tensor gate = filled({kTokens, kMlp}, 1);
  Operation gated(kGatedActivation, {gate, gate}, {{"activation", "silu"}}, threads);
  time_alone("swiglu", gated, 0);
  Operation gated_grad(kGatedActivationGrad, {gate, gate, gate}, {{"activation", "silu"}}, threads);
  time_alone("swiglu grad", gated_grad, 0);
}

}  // namespace
}  // namespace graft::cpu

int main(int argc, char** argv) {
  using namespace graft;
  using namespace graft::cpu;
  const int threads = argc > 1 ? std::atoi(argv[1]) : omp_get_num_procs();
  std::printf("%s, %d threads\n", std::string(instruction_set()).c_str(), threads);
  const std::string only = argc > 2 ? argv[2] : "";
  const auto wanted = [&](const char* part) { return only.empty() || only == part; };
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    if (wanted("linear")) bench_linear(threads, dtype);
    if (wanted("loss")) bench_loss(threads, dtype);
  }
  if (wanted("attention")) {
    bench_attention(threads, 4, 256);
    bench_attention(threads, 1, 2048);
  }
  if (wanted("decoding")) bench_decoding(threads);
  if (wanted("elementwise")) bench_elementwise(threads);
  return 0;
}
