#include "ops/embedding.h"

#include <gmock/gmock.h>

#include "ops/helpers.h"
#include "support/errors.h"

namespace graft::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Build embed(DType dtype = DType::kF64) {
  return [dtype](Graph&, const std::vector<Value>& in) -> std::vector<Value> {
    return {embedding(in[0], in[1], dtype)};
  };
}

Tensor ids() { return Tensor::of<int32_t>({2, 3}, {4, 0, 2, 2, 2, 1}); }

TEST(Embedding, TakesRows) {
  const Tensor table = random_tensor({5, 3}, 1), rows = ids();
  std::vector<double> expected;
  for (const int32_t id : rows.span<int32_t>()) {
    for (int64_t i = 0; i < 3; ++i) expected.push_back(table.data<double>()[id * 3 + i]);
  }
  const Tensor y = evaluate({table, rows}, embed())[0];
  EXPECT_EQ(y.shape(), (Shape{2, 3, 3}));
  EXPECT_EQ(numbers(y), expected);
  const Tensor narrow = evaluate({table, rows}, embed(DType::kBF16))[0];
  EXPECT_EQ(narrow.dtype(), DType::kBF16);
  EXPECT_EQ(numbers(narrow)[0], round_to_dtype(expected[0], DType::kBF16));
}

TEST(Embedding, Gradient) {
  expect_gradients({random_tensor({5, 3}, 1), ids()}, embed());
  expect_gradients({random_tensor({7, 2}, 2), Tensor::of<int32_t>({4}, {6, 6, 0, 3})}, embed());
}

// The gradient of a bf16 table comes in f32: equal rows add without rounding.
TEST(Embedding, CotangentsOfOneRowAddInF32) {
  const Tensor table = Tensor::zeros(DType::kBF16, {3, 1});
  const Tensor same = Tensor::of<int32_t>({3}, {1, 1, 1});
  const Tensor weights = Tensor::of<float>({3, 1}, {256, 1, 1}).as(DType::kBF16);
  const std::vector<Tensor> out =
      evaluate({table, same, weights}, [](Graph&, const std::vector<Value>& in) {
        const Value y = embedding(in[0], in[1], DType::kBF16) * in[2];
        const Value total = reduce_sum(convert(y, DType::kF32), {0, 1});
        return gradients(total, std::vector{in[0]});
      });
  EXPECT_EQ(out[0].dtype(), DType::kF32);
  EXPECT_EQ(numbers(out[0]), (std::vector<double>{0, 258, 0}));
}

TEST(Embedding, Errors) {
  EXPECT_THAT(error_of([] {
                build_graph({random_tensor({2, 3, 4}, 1), ids()}, embed());
              }),
              AllOf(HasSubstr("embedding"), HasSubstr("f64[2, 3, 4]"), HasSubstr("s32[2, 3]")));
}

}  // namespace
}  // namespace graft::testing
