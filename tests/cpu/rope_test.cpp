#include "ops/rope.h"

#include "cpu/kernel_harness.h"

namespace graft::cpu::testing {
namespace {

TEST(RopeKernel, AgreesWithItsDecomposition) {
  struct Case {
    Shape x;
    int64_t half;
  };
  for (const Case& c : {Case{{1, 1, 1, 2}, 1}, Case{{2, 5, 3, 64}, 32}, Case{{1, 7, 2, 20}, 5},
                        Case{{3, 40, 9, 64}, 32}, Case{{1, 300, 2, 96}, 24}}) {
    const Shape table{c.x[0], c.x[1], c.half};
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (int flags = 0; flags < 4; ++flags) {
        check_kernel(
            kRope,
            {random_tensor(c.x, 1, 1, dtype), random_tensor(table, 2), random_tensor(table, 3)},
            {{"interleaved", (flags & 1) != 0}, {"inverse", (flags & 2) != 0}},
            {.tolerance = dtype == DType::kF32 ? 1e-6 : 3e-3});
      }
    }
  }
}

TEST(RopeKernel, MayWriteOverItsOperand) {
  for (const bool interleaved : {false, true}) {
    Tensor x = random_tensor({1, 4, 2, 24}, 1);
    const Tensor cos = random_tensor({1, 4, 10}, 2), sin = random_tensor({1, 4, 10}, 3);
    const OneNode one(kRope, {x, cos, sin}, {{"interleaved", interleaved}, {"inverse", false}});
    const Tensor expected = run_kernel(one, {x, cos, sin}, 1)[0];
    const Buffer operands[]{{&one.in[0], x.mutable_bytes()},
                            {&one.in[1], const_cast<std::byte*>(cos.bytes())},
                            {&one.in[2], const_cast<std::byte*>(sin.bytes())}};
    const Buffer result[]{{&one.out[0], x.mutable_bytes()}};
    find_kernel(one.node(), one.in, one.out)->run({one.node(), operands, result, {}, 1});
    EXPECT_EQ(std::memcmp(x.bytes(), expected.bytes(), x.size_bytes()), 0);
  }
}

}  // namespace
}  // namespace graft::cpu::testing
