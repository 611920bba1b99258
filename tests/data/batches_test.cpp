#include "data/batches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "base/error.h"
#include "data/order.h"

namespace graft {
namespace {

using ::testing::ElementsAre;
using Examples = std::vector<TokenizedExample>;

// Rows of 2 to 40 tokens, each token telling its row and place; about half of them trained.
std::shared_ptr<const Examples> some_examples(int64_t n) {
  auto examples = std::make_shared<Examples>();
  for (int64_t row = 0; row < n; ++row) {
    TokenizedExample example;
    example.line = row + 1;
    const int64_t length = 2 + (row * 17) % 39;
    for (int64_t i = 0; i < length; ++i) {
      example.ids.push_back(static_cast<int32_t>(row * 100 + i));
      example.trained.push_back(i > 0 && (row + i) % 2 == 0);
    }
    example.trained.back() = 1;
    examples->push_back(example);
  }
  return examples;
}

// All (previous token, target) pairs of a batch, read through its arrays alone.
std::multiset<std::pair<int32_t, int32_t>> pairs_of(const Batch& batch) {
  std::multiset<std::pair<int32_t, int32_t>> pairs;
  const int64_t size = batch.batch_size() * batch.sequence_length();
  for (int64_t m = 0; m < batch.micro_batches(); ++m) {
    for (int64_t n = 0; n < batch.target_capacity(); ++n) {
      const int32_t target = batch.targets.data<int32_t>()[m * batch.target_capacity() + n];
      const int32_t at = batch.target_positions.data<int32_t>()[m * batch.target_capacity() + n];
      if (target < 0) {
        EXPECT_EQ(at, 0);
        continue;
      }
      const int32_t* ids = batch.input_ids.data<int32_t>() + m * size;
      const int32_t* segments = batch.segment_ids.data<int32_t>() + m * size;
      const int32_t* positions = batch.positions.data<int32_t>() + m * size;
      EXPECT_NE(at % batch.sequence_length(), batch.sequence_length() - 1);
      EXPECT_EQ(ids[at + 1], target);
      EXPECT_GT(segments[at], 0);
      EXPECT_EQ(segments[at], segments[at + 1]);
      EXPECT_EQ(positions[at] + 1, positions[at + 1]);
      pairs.insert({ids[at], target});
    }
  }
  EXPECT_EQ(static_cast<int64_t>(pairs.size()), batch.trained_tokens);
  return pairs;
}

std::multiset<std::pair<int32_t, int32_t>> pairs_of(const Examples& examples) {
  std::multiset<std::pair<int32_t, int32_t>> pairs;
  for (const TokenizedExample& example : examples) {
    for (size_t i = 1; i < example.ids.size(); ++i) {
      if (example.trained[i] != 0) pairs.insert({example.ids[i - 1], example.ids[i]});
    }
  }
  return pairs;
}

std::vector<int32_t> values(const Tensor& tensor) {
  return {tensor.data<int32_t>(), tensor.data<int32_t>() + tensor.elements()};
}

bool same(const Batch& a, const Batch& b) {
  return a.lines == b.lines && values(a.input_ids) == values(b.input_ids) &&
         values(a.segment_ids) == values(b.segment_ids) &&
         values(a.positions) == values(b.positions) && values(a.targets) == values(b.targets) &&
         values(a.target_positions) == values(b.target_positions);
}

TEST(EpochOrder, IsAPermutationThatDependsOnSeedAndEpoch) {
  std::set<std::vector<int64_t>> seen;
  for (const uint64_t seed : {0u, 1u, 2u}) {
    for (const int64_t epoch : {0, 1, 2}) {
      std::vector<int64_t> order = epoch_order(100, true, seed, epoch);
      EXPECT_EQ(order, epoch_order(100, true, seed, epoch));
      seen.insert(order);
      std::sort(order.begin(), order.end());
      EXPECT_EQ(order, epoch_order(100, false, seed, epoch));
    }
  }
  EXPECT_EQ(seen.size(), 9u);
  EXPECT_EQ(epoch_order(100, false, 3, 5)[7], 7);
}

TEST(EpochOrder, EveryRowComesFirstAboutEquallyOften) {
  std::map<int64_t, int> first;
  for (int64_t epoch = 0; epoch < 4000; ++epoch) ++first[epoch_order(4, true, 11, epoch)[0]];
  for (int64_t row = 0; row < 4; ++row) EXPECT_NEAR(first[row], 1000, 100);
}

TEST(PackRows, FillsEachPackAsFullAsItCanBe) {
  // Row 4 (6 tokens) takes the 4 that fills it; row 3 (5 tokens) takes 3 and 2.
  const std::vector<int64_t> lengths = {2, 3, 4, 5, 6};
  const std::vector<int64_t> order = {0, 1, 2, 3, 4};
  EXPECT_THAT(pack_rows(order, lengths, 10), ElementsAre(ElementsAre(0, 1, 3), ElementsAre(2, 4)));
  // Best fit, longest first, would put 60 with 30 and need three packs of 100.
  const std::vector<int64_t> tight = {60, 30, 20, 20, 50, 20};
  EXPECT_THAT(pack_rows(std::vector<int64_t>{0, 1, 2, 3, 4, 5}, tight, 100),
              ElementsAre(ElementsAre(0, 2, 3), ElementsAre(1, 4, 5)));
  // Whole rows, sums at the edges of words.
  EXPECT_EQ(pack_rows(std::vector<int64_t>{0, 1, 2}, std::vector<int64_t>{64, 63, 1}, 64).size(),
            2u);
  EXPECT_EQ(pack_rows(std::vector<int64_t>{0, 1, 2}, std::vector<int64_t>{128, 64, 64}, 128).size(),
            2u);
  EXPECT_EQ(pack_rows(std::vector<int64_t>(5, 0), std::vector<int64_t>{1}, 5).size(), 1u);
}

TEST(PackRows, EachRowOnceWithinCapacity) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 500; ++i) lengths.push_back(1 + (i * 7919) % 64);
  const int64_t total = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  size_t count = 0;
  for (const int64_t epoch : {0, 1, 2}) {
    const auto packs = pack_rows(epoch_order(500, true, 1, epoch), lengths, 64);
    std::vector<int64_t> rows;
    for (const auto& pack : packs) {
      int64_t size = 0;
      for (const int64_t row : pack) size += lengths[static_cast<size_t>(row)];
      EXPECT_LE(size, 64);
      rows.insert(rows.end(), pack.begin(), pack.end());
    }
    std::sort(rows.begin(), rows.end());
    EXPECT_EQ(rows, epoch_order(500, false, 0, 0));
    EXPECT_TRUE(epoch == 0 || packs.size() == count);
    count = packs.size();
  }
  EXPECT_LE(static_cast<double>(count), 1.01 * static_cast<double>(total) / 64 + 1);
}

TEST(MakeBatch, OneSmallBatchInFull) {
  const TokenizedExample a{1, {10, 11, 12}, {0, 1, 1}};
  const TokenizedExample b{2, {20, 21}, {0, 1}};
  const std::vector<std::vector<const TokenizedExample*>> sequences = {{&a, &b}, {&b}, {&a}};
  const Batch batch = make_batch(sequences, 2, 2);
  EXPECT_EQ(batch.input_ids.shape(), (Shape{2, 2, 64}));
  EXPECT_EQ(batch.targets.shape(), (Shape{2, 128}));
  const auto ids = values(batch.input_ids), segments = values(batch.segment_ids);
  const auto positions = values(batch.positions);
  EXPECT_THAT(std::vector<int32_t>(ids.begin(), ids.begin() + 6),
              ElementsAre(10, 11, 12, 20, 21, 0));
  EXPECT_THAT(std::vector<int32_t>(segments.begin(), segments.begin() + 6),
              ElementsAre(1, 1, 1, 2, 2, 0));
  EXPECT_THAT(std::vector<int32_t>(positions.begin(), positions.begin() + 6),
              ElementsAre(0, 1, 2, 0, 1, 0));
  const auto targets = values(batch.targets), places = values(batch.target_positions);
  EXPECT_THAT(std::vector<int32_t>(targets.begin(), targets.begin() + 5),
              ElementsAre(11, 12, 21, 21, -1));
  EXPECT_THAT(std::vector<int32_t>(places.begin(), places.begin() + 5),
              ElementsAre(0, 1, 3, 64, 0));
  EXPECT_EQ(batch.tokens, 10);
  EXPECT_EQ(batch.trained_tokens, 6);
  EXPECT_THAT(batch.lines, ElementsAre(1, 2, 2, 1));
}

TEST(MakeBatch, WithoutTargetsIsAllowed) {
  const TokenizedExample a{1, {10, 11, 12}, {1, 0, 0}};  // a first token is never a target
  const std::vector<std::vector<const TokenizedExample*>> sequences = {{&a}};
  const Batch batch = make_batch(sequences, 2, 1);
  EXPECT_EQ(batch.trained_tokens, 0);
  EXPECT_EQ(batch.target_capacity(), 128);
  for (const int32_t target : values(batch.targets)) EXPECT_EQ(target, -1);
}

TEST(BatchStream, EachRowExactlyOnceAnEpoch) {
  const auto examples = some_examples(24);
  for (const bool packing : {false, true}) {
    BatchStream stream(examples,
                       {.batch_size = 1, .max_length = 50, .packing = packing, .seed = 3});
    for (int epoch = 0; epoch < 3; ++epoch) {
      std::vector<int64_t> lines;
      std::multiset<std::pair<int32_t, int32_t>> pairs;
      for (int64_t i = 0; i < stream.sequences_per_epoch(); ++i) {
        const Batch batch = stream.next();
        lines.insert(lines.end(), batch.lines.begin(), batch.lines.end());
        pairs.merge(pairs_of(batch));
      }
      EXPECT_EQ(stream.position(), (DataPosition{epoch + 1, 0}));
      EXPECT_EQ(stream.epochs_done(), epoch + 1);
      std::sort(lines.begin(), lines.end());
      std::vector<int64_t> expected(24);
      std::iota(expected.begin(), expected.end(), 1);
      EXPECT_EQ(lines, expected);
      EXPECT_EQ(pairs,
                pairs_of(*examples));  // packed or not: the same targets after the same tokens
    }
  }
}

TEST(BatchStream, ShapesAreBuckets) {
  const auto examples = some_examples(60);
  BatchStream packed(examples,
                     {.batch_size = 2, .accumulation = 2, .max_length = 100, .packing = true});
  BatchStream plain(examples, {.batch_size = 2, .accumulation = 2, .max_length = 100});
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(packed.next().input_ids.shape(), (Shape{2, 2, 128}));
    EXPECT_EQ(plain.next().input_ids.shape(), (Shape{2, 2, 64}));
  }
}

TEST(BatchStream, AnIncompleteBatchGoesOnWithTheNextEpoch) {
  BatchStream stream(some_examples(5), {.batch_size = 2, .shuffle = false});
  std::vector<int64_t> lines;
  for (int i = 0; i < 5; ++i) {
    const Batch batch = stream.next();
    lines.insert(lines.end(), batch.lines.begin(), batch.lines.end());
  }
  EXPECT_THAT(lines, ElementsAre(1, 2, 3, 4, 5, 1, 2, 3, 4, 5));
  EXPECT_EQ(stream.position(), (DataPosition{2, 0}));
}

TEST(BatchStream, MoreRowsInAStepThanInAnEpoch) {
  BatchStream stream(some_examples(3), {.batch_size = 4, .accumulation = 2, .shuffle = false});
  EXPECT_THAT(stream.next().lines, ElementsAre(1, 2, 3, 1, 2, 3, 1, 2));
  EXPECT_DOUBLE_EQ(stream.epochs_done(), 8.0 / 3);
}

TEST(BatchStream, ResumedAnywhereItGoesOnAsIfNeverStopped) {
  const auto examples = some_examples(23);
  for (const bool packing : {false, true}) {
    const BatchOptions options{
        .batch_size = 2, .accumulation = 2, .max_length = 45, .packing = packing, .seed = 9};
    BatchStream whole(examples, options);
    std::vector<DataPosition> places;
    std::vector<Batch> batches;
    for (int i = 0; i < 14; ++i) {
      places.push_back(whole.position());
      batches.push_back(whole.next());
    }
    EXPECT_GE(places.back().epoch, 1);
    for (size_t start = 0; start < places.size(); ++start) {
      BatchStream resumed(examples, options);
      resumed.seek(places[start]);
      for (size_t i = start; i < batches.size(); ++i) EXPECT_TRUE(same(resumed.next(), batches[i]));
    }
  }
}

TEST(BatchStream, RefusesAPlaceThatIsNotThere) {
  BatchStream stream(some_examples(3), {});
  EXPECT_THROW(stream.seek({0, 3}), Error);
  EXPECT_THROW(stream.seek({-1, 0}), Error);
}

TEST(BatchStream, RowsWithoutTrainedTokensAreNotUsed) {
  auto examples = std::make_shared<Examples>(*some_examples(3));
  std::fill((*examples)[1].trained.begin(), (*examples)[1].trained.end(), uint8_t{0});
  BatchStream stream(examples, {.batch_size = 4, .shuffle = false});
  EXPECT_THAT(stream.next().lines, ElementsAre(1, 3, 1, 3));
  for (TokenizedExample& example : *examples) example.trained.assign(example.ids.size(), 0);
  EXPECT_THROW(BatchStream(examples, {}), Error);
}

TEST(EvaluationBatches, FileOrderAndAPartialEnd) {
  const auto examples = some_examples(7);
  const EvaluationBatches batches(examples, 3);
  ASSERT_EQ(batches.size(), 3);
  std::multiset<std::pair<int32_t, int32_t>> pairs;
  for (int64_t i = 0; i < 3; ++i) pairs.merge(pairs_of(batches.get(i)));
  EXPECT_EQ(pairs, pairs_of(*examples));
  EXPECT_THAT(batches.get(1).lines, ElementsAre(4, 5, 6));
  const Batch last = batches.get(2);
  EXPECT_EQ(last.batch_size(), 3);
  EXPECT_THAT(last.lines, ElementsAre(7));
  const auto segments = values(last.segment_ids);
  EXPECT_EQ(std::count(segments.begin() + last.sequence_length(), segments.end(), 0),
            2 * last.sequence_length());
}

}  // namespace
}  // namespace graft
