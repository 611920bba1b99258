#include "ops/embedding.h"

#include "cpu/kernel_harness.h"

namespace graft::cpu::testing {
namespace {

std::vector<int32_t> ids_for(int64_t count, int64_t rows) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>((i * i + 3 * i) % rows));
  return ids;
}

TEST(EmbeddingKernel, AgreesWithItsDecomposition) {
  for (const DType table : {DType::kF32, DType::kBF16}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      std::vector<int32_t> ids = ids_for(300, 50);
      ids[7] = -4;  // clamped
      ids[8] = 999;
      check_kernel(kEmbedding, {random_tensor({50, 37}, 1, 1, table), s32({3, 100}, ids)},
                   {{"dtype", dtype}}, {.tolerance = table == dtype ? 0 : 3e-3});
    }
  }
}

TEST(EmbeddingKernel, GradientAgreesWithItsDecomposition) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    std::vector<int32_t> ids = ids_for(200, 23);
    ids[5] = -1;  // dropped
    ids[6] = 23;
    check_kernel(kEmbeddingGrad, {random_tensor({2, 100, 150}, 1, 1, dtype), s32({2, 100}, ids)},
                 {{"rows", 23}}, {.tolerance = 1e-6});
  }
}

}  // namespace
}  // namespace graft::cpu::testing
