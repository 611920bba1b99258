#include "base/tensor.h"

#include <gtest/gtest.h>

#include <cstring>

namespace graft {
namespace {

TEST(Tensor, ElementCountIsChecked) {
  EXPECT_EQ(element_count({}), 1);
  EXPECT_EQ(element_count({2, 3, 4}), 24);
  EXPECT_EQ(element_count({5, 0}), 0);
  EXPECT_THROW(element_count({-1, 2}), Error);
  EXPECT_THROW(element_count({int64_t{1} << 32, int64_t{1} << 32}), Error);
  EXPECT_THROW(element_count({0, int64_t{1} << 32, int64_t{1} << 32}), Error);
  EXPECT_EQ(to_string(Shape{2, 3}), "[2, 3]");
  EXPECT_EQ(to_string(Shape{}), "[]");
}

TEST(Tensor, OwnsAndShares) {
  Tensor t = Tensor::of<float>({2, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(reinterpret_cast<uintptr_t>(t.bytes()) % 64, 0u);
  EXPECT_EQ(t.size_bytes(), 24u);
  Tensor shared = t;
  shared.data<float>()[0] = 7;
  EXPECT_EQ(t.span<float>()[0], 7);
  Tensor copy = t.clone();
  copy.data<float>()[0] = 8;
  EXPECT_EQ(t.span<float>()[0], 7);
  EXPECT_THROW(t.data<int32_t>(), std::logic_error);
  EXPECT_EQ(Tensor::zeros(DType::kS64, {3}).span<int64_t>()[2], 0);
  EXPECT_FALSE(Tensor().defined());
  EXPECT_TRUE(Tensor::empty(DType::kF32, {0}).defined());
}

TEST(Tensor, BorrowsAndIsReadOnly) {
  auto owner = std::make_shared<std::vector<std::byte>>(68);
  const float value = 2.5f;
  std::memcpy(owner->data() + 1, &value, sizeof(value));
  std::weak_ptr<std::vector<std::byte>> watch = owner;
  Tensor t = Tensor::borrow(DType::kF32, {1}, owner->data() + 1, owner);
  owner.reset();
  EXPECT_FALSE(watch.expired());
  EXPECT_THROW(t.mutable_bytes(), std::logic_error);
  t = t.aligned();
  EXPECT_TRUE(watch.expired());
  EXPECT_EQ(t.span<float>()[0], 2.5f);
  EXPECT_TRUE(Tensor::borrow(DType::kF32, {0}, nullptr, nullptr).defined());
}

TEST(Tensor, ReshapesRowsAndConverts) {
  const Tensor t = Tensor::of<float>({3, 2}, {1, 2, 3, 4, 5, 6});
  const Tensor middle = t.rows(1, 3);
  EXPECT_EQ(middle.shape(), (Shape{2, 2}));
  EXPECT_EQ(middle.span<float>()[0], 3);
  EXPECT_EQ(t.rows(3, 3).elements(), 0);
  EXPECT_THROW(t.rows(2, 4), std::logic_error);
  EXPECT_EQ(t.reshaped({6}).shape(), (Shape{6}));
  EXPECT_THROW(t.reshaped({5}), std::logic_error);
  const Tensor half = t.as(DType::kBF16);
  EXPECT_EQ(half.size_bytes(), 12u);
  EXPECT_EQ(half.as(DType::kF32).span<float>()[5], 6);
  EXPECT_EQ(t.as(DType::kF32).bytes(), t.bytes());

  const Tensor packed = Tensor::zeros(DType::kU4, {4, 2});
  EXPECT_EQ(packed.size_bytes(), 4u);
  EXPECT_EQ(packed.rows(1, 2).bytes(), packed.bytes() + 1);
  EXPECT_THROW(Tensor::zeros(DType::kU4, {4, 3}).rows(1, 2), std::logic_error);
}

}  // namespace
}  // namespace graft
