#include "train/data_audit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/shared.h"

namespace graft {
namespace {

using ::testing::HasSubstr;

class DataAudit : public ::testing::Test {
 protected:
  void SetUp() override {
    GRAFT_SHARED_OR_SKIP(folder, "real/smollm2_tokenizer");
    GRAFT_SHARED_OR_SKIP(rows, "real/data_cases/messages_plain.jsonl");
    text_ = load_text_model(folder);
    options_.template_date = "2026-01-15";
    data_ = load_dataset(rows, &*text_, options_, 1);
  }

  Audit audit(int64_t embedding_rows = 49152) const {
    Audit audit;
    audit_data(audit, data_, {&*text_, embedding_rows});
    return audit;
  }
  static const AuditCheck* find(const Audit& audit, const std::string& name) {
    for (const AuditCheck& check : audit.checks) {
      if (check.name == name) return &check;
    }
    return nullptr;
  }

  std::optional<TextModel> text_;
  DataOptions options_;
  Dataset data_;
};

TEST_F(DataAudit, OrdinaryRowsPass) {
  const Audit result = audit();
  EXPECT_TRUE(result.ok());
  EXPECT_EQ(result.data.at("rows"), 6);
  EXPECT_EQ(result.data.at("tokens trained"), 18);
  ASSERT_NE(find(result, "end of turn"), nullptr);
  EXPECT_THAT(find(result, "end of turn")->message, HasSubstr("6 trained tokens"));
}

// SmolLM2 pads with the token that ends a turn. That is no reason to refuse; it is told, with the
// count.
TEST_F(DataAudit, PaddingThatEndsATurnIsTold) {
  const Audit result = audit();
  const AuditCheck* padding = find(result, "padding");
  ASSERT_NE(padding, nullptr);
  EXPECT_EQ(padding->status, AuditStatus::kOk);
  EXPECT_THAT(padding->message, HasSubstr("<|im_end|> (2)"));
  EXPECT_THAT(padding->message, HasSubstr("6 end-of-turn tokens are trained"));
}

TEST_F(DataAudit, ThreeRowsAreShownWithTheTrainedTokensMarked) {
  const Audit result = audit();
  ASSERT_EQ(result.examples.size(), 3u);
  for (const AuditExample& example : result.examples) {
    EXPECT_THAT(example.text, HasSubstr("<|im_start|>assistant\n⟦"));
    EXPECT_THAT(example.text, HasSubstr("<|im_end|>⟧"));
    EXPECT_EQ(example.trained_tokens, 3);
  }
  EXPECT_EQ(result.examples[0].line, 1);
  EXPECT_EQ(result.examples[2].line, 6);
}

TEST_F(DataAudit, IdsBeyondTheEmbeddingAreRefused) {
  const Audit result = audit(data_.largest_id);
  EXPECT_FALSE(result.ok());
  const AuditCheck* ids = find(result, "token ids");
  ASSERT_NE(ids, nullptr);
  EXPECT_EQ(ids->status, AuditStatus::kRefused);
  EXPECT_THAT(ids->message, HasSubstr(fmt::format("line {}", data_.largest_id_line)));
  // A tokenizer that merely has more entries is noted.
  const Audit noted = audit(data_.largest_id + 1);
  EXPECT_TRUE(noted.ok());
  EXPECT_THAT(find(noted, "token ids")->message, HasSubstr("the tokenizer has ids up to"));
}

TEST_F(DataAudit, AnUntrainedEndOfTurnIsRefused) {
  auto examples = *data_.examples;
  for (TokenizedExample& example : examples) {
    for (size_t i = 0; i < example.ids.size(); ++i) example.trained[i] &= example.ids[i] != 2;
  }
  data_.examples = std::make_shared<const std::vector<TokenizedExample>>(examples);
  data_.trained_stop_tokens = 0;
  EXPECT_EQ(find(audit(), "end of turn")->status, AuditStatus::kRefused);
  // Of rows that came as token ids no template can be to blame.
  data_.format = DataFormat::kTokenized;
  EXPECT_EQ(find(audit(), "end of turn")->status, AuditStatus::kWarning);
}

TEST_F(DataAudit, ADoubledBeginningIsRefused) {
  EXPECT_EQ(find(audit(), "beginning of sequence"), nullptr);
  data_.doubled_bos_lines = {2, 5};
  const Audit result = audit();
  EXPECT_EQ(find(result, "beginning of sequence")->status, AuditStatus::kRefused);
  EXPECT_THAT(find(result, "beginning of sequence")->message, HasSubstr("lines 2, 5"));
}

TEST(RenderExample, IdsAreShownWhereThereIsNoTokenizer) {
  EXPECT_EQ(render_example({1, {5, 6, 7, 8}, {0, 1, 1, 0}}, nullptr).text, "5 ⟦6 7⟧ 8");
}

}  // namespace
}  // namespace graft
