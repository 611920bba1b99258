#include "cpu/gemm.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <vector>

#include "cpu/kernel_harness.h"

namespace graft::cpu::testing {
namespace {

struct Case {
  int64_t m, n, k;
};

// c = alpha a b + beta c, in double.
std::vector<double> naive(const Case& s, const Tensor& a, bool a_transposed, const Tensor& b,
                          bool b_transposed, double alpha, double beta, const Tensor& c) {
  const std::vector<double> left = numbers(a), right = numbers(b);
  std::vector<double> result = numbers(c);
  for (int64_t i = 0; i < s.m; ++i) {
    for (int64_t j = 0; j < s.n; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < s.k; ++l) {
        sum += left[static_cast<size_t>(a_transposed ? l * s.m + i : i * s.k + l)] *
               right[static_cast<size_t>(b_transposed ? j * s.k + l : l * s.n + j)];
      }
      double& at = result[static_cast<size_t>(i * s.n + j)];
      at = alpha * sum + beta * at;
    }
  }
  return result;
}

TEST(Gemm, AgreesWithLoopsForEveryPairOfTypes) {
  for (const Case& s : {Case{1, 1, 1}, Case{5, 7, 3}, Case{70, 130, 260}, Case{64, 48, 300}}) {
    for (const DType a_type : {DType::kF32, DType::kBF16}) {
      for (const DType b_type : {DType::kF32, DType::kBF16}) {
        for (int layout = 0; layout < 4; ++layout) {
          const bool at = (layout & 1) != 0, bt = (layout & 2) != 0;
          const Tensor a = random_tensor(at ? Shape{s.k, s.m} : Shape{s.m, s.k}, 1, 1, a_type);
          const Tensor b = random_tensor(bt ? Shape{s.n, s.k} : Shape{s.k, s.n}, 2, 1, b_type);
          const float alpha = layout == 0 ? 1.0F : 0.5F, beta = layout == 3 ? 0.0F : 1.0F;
          Tensor c = random_tensor({s.m, s.n}, 3);
          const std::vector<double> expected = naive(s, a, at, b, bt, alpha, beta, c);
          gemm(s.m, s.n, s.k, {a.bytes(), a_type, at ? s.m : s.k, at},
               {b.bytes(), b_type, bt ? s.k : s.n, bt}, c.data<float>(), s.n, alpha, beta);
          for (size_t i = 0; i < expected.size(); ++i) {
            ASSERT_NEAR(c.data<float>()[i], expected[i], 3e-5)
                << s.m << "x" << s.n << "x" << s.k << " layout " << layout;
          }
        }
      }
    }
  }
}

TEST(Gemm, EmptyContractionScalesTheResult) {
  Tensor c = Tensor::of<float>({1, 2}, {3, std::nanf("")});
  gemm(1, 2, 0, {nullptr, DType::kF32, 1}, {nullptr, DType::kF32, 2}, c.data<float>(), 2, 1, 0);
  EXPECT_EQ(c.data<float>()[0], 0);
  EXPECT_EQ(c.data<float>()[1], 0);
}

// Shapes whose bits oneDNN changes with the size of its own team.
TEST(Gemm, BitsDoNotDependOnTheTeam) {
  const int before = omp_get_max_threads();
  for (const Case& s : {Case{1024, 16, 576}, Case{1024, 576, 1536}, Case{256, 576, 16},
                        Case{16, 576, 1024}, Case{1, 49152, 64}}) {
    const Tensor a = random_tensor({s.m, s.k}, 1), b = random_tensor({s.k, s.n}, 2);
    std::vector<Tensor> results;
    for (const int threads : {1, 2, 4}) {
      omp_set_num_threads(threads);
      results.push_back(Tensor::empty(DType::kF32, {s.m, s.n}));
      gemm(s.m, s.n, s.k, {a.bytes(), DType::kF32, s.k}, {b.bytes(), DType::kF32, s.n},
           results.back().data<float>(), s.n);
      EXPECT_EQ(omp_get_max_threads(), threads) << "gemm must leave the setting as it was";
      EXPECT_EQ(std::memcmp(results[0].bytes(), results.back().bytes(), results[0].size_bytes()), 0)
          << s.m << "x" << s.n << "x" << s.k << " on " << threads;
    }
  }
  omp_set_num_threads(before);
}

}  // namespace
}  // namespace graft::cpu::testing
