#include "ops/dropout.h"

#include "cpu/kernel_harness.h"

namespace graft::cpu::testing {
namespace {

std::vector<Tensor> operands(const Shape& shape, DType dtype) {
  return {random_tensor(shape, 1, 1, dtype), Tensor::of<uint32_t>({2}, {0x12345678U, 0x9ABCDEF0U}),
          u32(0xFFFFFFFFU), u32(17), u32(0xDEADBEEFU)};
}

TEST(DropoutKernel, AgreesWithItsDecomposition) {
  for (const Shape& shape : {Shape{1, 1, 1}, Shape{3, 5, 7}, Shape{2, 11, 64}, Shape{2, 100, 97}}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const double p : {0.0, 0.1, 0.75}) {
        check_kernel(kDropout, operands(shape, dtype), {{"p", p}},
                     {.tolerance = dtype == DType::kF32 ? 1e-7 : 4e-3});
      }
    }
  }
}

// The mask itself, against the scalar generator.
TEST(DropoutKernel, KeepsWhatPhiloxSays) {
  const Shape shape{2, 50, 333};
  std::vector<Tensor> inputs = operands(shape, DType::kF32);
  for (int64_t i = 0; i < inputs[0].elements(); ++i) inputs[0].data<float>()[i] = 1;
  const OneNode one(kDropout, inputs, {{"p", 0.3}});
  const Tensor y = run_kernel(one, inputs, 2)[0];
  const auto threshold = static_cast<uint32_t>(std::floor(0.3 * 0x1p32));
  for (int64_t i = 0; i < y.elements(); ++i) {
    const auto e = static_cast<uint32_t>(i % (50 * 333)),
               row = static_cast<uint32_t>(i / (50 * 333));
    const auto words =
        philox4x32({e / 4, 0xFFFFFFFFU + row, 17, 0xDEADBEEFU}, {0x12345678U, 0x9ABCDEF0U});
    ASSERT_EQ(y.data<float>()[i] != 0, words[e % 4] >= threshold) << i;
  }
}

}  // namespace
}  // namespace graft::cpu::testing
