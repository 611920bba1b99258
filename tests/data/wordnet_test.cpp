// A real data set and the batches that a reference run made of it.

#include <gtest/gtest.h>

#include "data/batches.h"
#include "data/dataset.h"
#include "formats/safetensors.h"
#include "support/shared.h"

namespace graft {
namespace {

Dataset load(const std::filesystem::path& file, const std::filesystem::path& tokenizer) {
  const TextModel text = load_text_model(tokenizer);
  return load_dataset(file, &text, {});
}

TEST(WordNet, CountsOfTheWholeSet) {
  GRAFT_SHARED_OR_SKIP(folder, "real/wordnet");
  GRAFT_SHARED_OR_SKIP(tokenizer, "real/smollm2_tokenizer");
  const Dataset train = load(folder / "train.jsonl", tokenizer);
  EXPECT_EQ(train.trained_examples, 3000);
  EXPECT_EQ(train.tokens, 198967);
  EXPECT_EQ(train.trained_tokens, 71639);
  EXPECT_EQ(train.longest, 109);
  EXPECT_EQ(train.trained_stop_tokens, 3279);  // 279 rows have a second reply
  EXPECT_TRUE(train.warnings.empty());
  const Dataset eval = load(folder / "eval.jsonl", tokenizer);
  EXPECT_EQ(eval.tokens, 20094);
  EXPECT_EQ(eval.trained_tokens, 7300);

  // Rows of 42 to 109 tokens in sequences of 512: 389 are the fewest possible.
  BatchStream stream(train.examples, {.max_length = 512, .packing = true});
  EXPECT_EQ(stream.sequences_per_epoch(), 389);
  const EvaluationBatches batches(eval.examples, 16);
  int64_t trained = 0;
  for (int64_t i = 0; i < batches.size(); ++i) trained += batches.get(i).trained_tokens;
  EXPECT_EQ(trained, 7300);
}

TEST(WordNet, BatchesOfTheReferenceRun) {
  GRAFT_SHARED_OR_SKIP(folder, "real/wordnet");
  GRAFT_SHARED_OR_SKIP(curve, "real/smollm2_lora_curve");
  GRAFT_SHARED_OR_SKIP(tokenizer, "real/smollm2_tokenizer");
  const Dataset data = load(folder / "train.jsonl", tokenizer);
  const auto reference = SafetensorsFile::open(curve / "batches.safetensors");
  BatchStream stream(data.examples, {.batch_size = 4, .shuffle = false});
  for (int step = 0; step < 15; ++step) {
    SCOPED_TRACE(step);
    const Batch batch = stream.next();
    const auto name = fmt::format("step{:02}.", step);
    const Tensor ids = reference.tensor(name + "input_ids").aligned();
    const Tensor labels = reference.tensor(name + "labels").aligned();
    const Tensor mask = reference.tensor(name + "attention_mask").aligned();
    const int64_t length = ids.shape()[1], padded = batch.sequence_length();
    int64_t next = 0;
    for (int64_t row = 0; row < 4; ++row) {
      for (int64_t t = 0; t < length; ++t) {
        const int64_t from = row * length + t, to = row * padded + t;
        const bool real = mask.data<int32_t>()[from] != 0;
        EXPECT_EQ(batch.segment_ids.data<int32_t>()[to], real ? 1 : 0);
        EXPECT_EQ(batch.input_ids.data<int32_t>()[to], real ? ids.data<int32_t>()[from] : 0);
        const int32_t label = labels.data<int32_t>()[from];
        if (label == -100) continue;
        ASSERT_LT(next, batch.trained_tokens);
        EXPECT_EQ(batch.targets.data<int32_t>()[next], label);
        EXPECT_EQ(batch.target_positions.data<int32_t>()[next], to - 1);
        ++next;
      }
    }
    EXPECT_EQ(next, batch.trained_tokens);
  }
}

}  // namespace
}  // namespace graft
