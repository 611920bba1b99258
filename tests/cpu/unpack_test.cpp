#include "cpu/kernels/unpack.h"

#include "cpu/kernel_harness.h"
#include "formats/packed_blocks.h"
#include "ops/embedding.h"
#include "ops/linear.h"
#include "ops/loss.h"
#include "support/packed_samples.h"

namespace graft::cpu::testing {
namespace {

using graft::testing::packed_layouts;
using graft::testing::random_packed;

// Every part of a matrix, aligned to blocks or not, to the bit.
TEST(UnpackKernel, EqualsReference) {
  for (const PackedLayout& layout : packed_layouts(37)) {
    const Tensor packed = random_packed(layout, 7);
    const Tensor expected = expand_packed(layout, packed);
    const PackedMatrix matrix{layout, packed.bytes()};
    for (const auto& [column, columns] :
         {std::pair<int64_t, int64_t>{0, layout.columns}, {16, 32}, {5, 29}}) {
      std::vector<float> tile(static_cast<size_t>(30 * columns));
      unpack_rows(matrix, 6, 30, column, columns, tile.data(), columns);
      for (int64_t i = 0; i < 30; ++i) {
        const float* row = expected.data<float>() + (6 + i) * layout.columns + column;
        ASSERT_EQ(std::memcmp(tile.data() + i * columns, row, static_cast<size_t>(columns) * 4), 0)
            << layout.text() << " row " << i;
      }
    }
    std::vector<float> panel(static_cast<size_t>(33 * layout.columns)), strip(kStripElements);
    unpack_transposed(matrix, 2, 33, strip.data(), panel.data(), 33);
    for (int64_t i = 0; i < 33; ++i) {
      for (int64_t j = 0; j < layout.columns; ++j) {
        ASSERT_EQ(panel[static_cast<size_t>(j * 33 + i)],
                  expected.data<float>()[(2 + i) * layout.columns + j])
            << layout.text();
      }
    }
  }
}

// The decomposition gives the reference's bits, for every layout.
TEST(UnpackDecomposition, EqualsReference) {
  for (const PackedLayout& layout : packed_layouts(3)) {
    const Tensor packed = random_packed(layout, 11);
    Graph graph;
    const Value stored = graph.input("w", {DType::kU8, layout.stored_shape()});
    graph.output("values", unpack(layout, stored));
    const Tensor actual = interpret(graph, std::vector<Tensor>{packed})[0];
    const Tensor expected = expand_packed(layout, packed);
    ASSERT_EQ(actual.shape(), expected.shape()) << layout.text();
    int64_t different = 0;
    for (int64_t i = 0; i < actual.elements(); ++i) {
      different += actual.data<float>()[i] == expected.data<float>()[i] ? 0 : 1;
    }
    EXPECT_EQ(different, 0) << layout.text();
  }
}

Attributes with_layout(Attributes attributes, const PackedLayout& layout) {
  attributes.set(kPackedAttribute, layout.text());
  return attributes;
}

TEST(UnpackKernel, LinearOnPackedWeights) {
  for (const PackedLayout& layout : packed_layouts(70)) {
    for (const int64_t rows : {3, 270}) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        if (dtype == DType::kBF16 && (rows > 100 || layout.columns > 200)) continue;
        if (rows > 100 && layout.kind != PackedKind::kNf4 && layout.kind != PackedKind::kQ4_K)
          continue;
        const Tensor w = random_packed(layout, 5);
        const Tensor a = random_tensor({4, layout.columns}, 4, 0.3),
                     b = random_tensor({layout.rows, 4}, 5, 0.3), scale = f32(0.7F);
        const double tolerance = dtype == DType::kF32 ? 2e-6 : 4e-3;
        check_kernel(kLinear, {random_tensor({rows, layout.columns}, 1, 1, dtype), w, a, b, scale},
                     with_layout({{"has_lora", true}}, layout), {.tolerances = {tolerance, 1e-6}});
        check_kernel(kLinearInputGrad,
                     {random_tensor({rows, layout.rows}, 2, 1, dtype), w, a, b, scale},
                     with_layout({{"has_lora", true}}, layout), {.tolerances = {tolerance, 1e-6}});
      }
    }
  }
}

TEST(UnpackKernel, EmbeddingOnAPackedTable) {
  for (const PackedLayout& layout : packed_layouts(40)) {
    const Tensor ids = Tensor::of<int32_t>({2, 3}, {0, 39, 7, 7, 12, 1});
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      check_kernel(kEmbedding, {random_packed(layout, 5), ids},
                   with_layout({{"dtype", dtype}}, layout),
                   {.tolerances = {dtype == DType::kF32 ? 1e-7 : 3e-3}});
    }
  }
}

TEST(UnpackKernel, CrossEntropyOnAPackedHead) {
  for (const PackedLayout& layout : packed_layouts(600)) {
    if (layout.columns > 200) continue;
    const int64_t rows = 20;
    std::vector<int32_t> targets;
    for (int64_t i = 0; i < rows; ++i)
      targets.push_back(i == 4 ? -1 : static_cast<int32_t>(i * 29));
    const std::vector<Tensor> inputs{random_tensor({rows, layout.columns}, 1, 1),
                                     random_packed(layout, 6), Tensor::of<int32_t>({rows}, targets),
                                     random_tensor({rows}, 3, 1)};
    check_kernel(kCrossEntropyWithGrad, inputs, with_layout({{"softcap", 0.0}}, layout),
                 {.tolerances = {2e-6, 2e-6, 5e-6}});
  }
}

}  // namespace
}  // namespace graft::cpu::testing
