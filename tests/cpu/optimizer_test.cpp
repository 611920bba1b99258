#include "ops/optimizer.h"

#include "cpu/kernel_harness.h"

namespace graft::cpu::testing {
namespace {

Tensor flag(bool value) {
  Tensor tensor = Tensor::empty(DType::kBool, {});
  *tensor.data<bool>() = value;
  return tensor;
}

std::vector<Tensor> operands_for(const Shape& shape, bool finite) {
  Tensor v = random_tensor(shape, 3, 1e-3);
  for (int64_t i = 0; i < v.elements(); ++i) v.data<float>()[i] = std::abs(v.data<float>()[i]);
  return {random_tensor(shape, 1),
          random_tensor(shape, 2, 0.1),
          v,
          random_tensor(shape, 4, 0.1),
          f32(0.7F),
          f32(1e-3F),
          f32(0.19F),
          f32(0.002F),
          flag(finite)};
}

const Attributes kAttributes{
    {"beta1", 0.9}, {"beta2", 0.999}, {"epsilon", 1e-8}, {"weight_decay", 0.1}};

TEST(OptimizerKernel, AdamWAgreesWithItsDecomposition) {
  for (const Shape& shape : {Shape{}, Shape{1}, Shape{16, 5}, Shape{130, 301}}) {
    check_kernel(kAdamW, operands_for(shape, true), kAttributes, {.tolerance = 1e-6});
  }
}

// A step that is not finite changes no bit, whatever the gradient is and wherever results stand.
TEST(OptimizerKernel, AStepThatIsNotFiniteChangesNothing) {
  std::vector<Tensor> operands = operands_for({77}, false);
  for (int i : {0, 40, 76}) operands[3].data<float>()[i] = std::nanf("");
  operands[4] = f32(std::nanf(""));
  operands[1].data<float>()[2] = -0.0F;
  const OneNode one(kAdamW, operands, kAttributes);
  const std::vector<Tensor> results = run_kernel(one, operands, 2);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(std::memcmp(results[i].bytes(), operands[i].bytes(), operands[i].size_bytes()), 0);
  }
}

TEST(OptimizerKernel, AdamWWorksInPlaceInAnyOrder) {
  for (const bool finite : {true, false}) {
    std::vector<Tensor> operands = operands_for({77}, finite);
    const OneNode one(kAdamW, operands, kAttributes);
    const std::vector<Tensor> expected = run_kernel(one, operands, 1);
    std::vector<Buffer> in, out;
    for (size_t i = 0; i < operands.size(); ++i) {
      in.push_back({&one.in[i], operands[i].mutable_bytes()});
    }
    // p' where m was, m' where the gradient was, v' where p was.
    const std::vector<size_t> places{1, 3, 0};
    for (size_t i = 0; i < 3; ++i)
      out.push_back({&one.out[i], operands[places[i]].mutable_bytes()});
    find_kernel(one.node(), one.in, one.out)->run({one.node(), in, out, {}, 2});
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(std::memcmp(operands[places[i]].bytes(), expected[i].bytes(), 77 * 4), 0) << i;
    }
  }
}

TEST(OptimizerKernel, SumSquaresAgreesWithItsDecomposition) {
  for (const Shape& shape : {Shape{}, Shape{7}, Shape{16, 576}, Shape{300, 301}}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      check_kernel(kSumSquares, {random_tensor(shape, 1, 3, dtype)}, {}, {.tolerance = 1e-6});
    }
  }
}

TEST(OptimizerKernel, SumSquaresOfNaNIsNaN) {
  Tensor x = random_tensor({9000}, 1);
  x.data<float>()[8999] = std::nanf("");
  const OneNode one(kSumSquares, {x}, {});
  EXPECT_TRUE(std::isnan(run_kernel(one, {x}, 2)[0].data<float>()[0]));
}

}  // namespace
}  // namespace graft::cpu::testing
