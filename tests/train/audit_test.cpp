#include "train/audit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "support/temporary.h"

namespace graft {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const AuditCheck& only_check(const Audit& audit) {
  EXPECT_EQ(audit.checks.size(), 1u);
  return audit.checks.at(0);
}

TEST(Audit, TargetsThatMatchedAreCounted) {
  Audit audit;
  audit_targets(audit, {{"q_proj", 30}, {"v_proj", 29}});
  EXPECT_EQ(only_check(audit).status, AuditStatus::kOk);
  EXPECT_THAT(only_check(audit).message, HasSubstr("59 adapters: q_proj x 30, v_proj x 29"));
  EXPECT_TRUE(audit.ok());
}

TEST(Audit, TargetsThatMatchedNothingAreRefused) {
  Audit audit;
  audit_targets(audit, {{"q_proj", 30}}, {"w_proj"}, {"layers\\.99"});
  EXPECT_FALSE(audit.ok());
  EXPECT_THAT(audit.checks.at(0).message, HasSubstr("w_proj"));
  EXPECT_EQ(audit.checks.at(1).status, AuditStatus::kWarning);
  try {
    refuse_unless_ok(audit);
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("w_proj"));
    EXPECT_THAT(e.what(), Not(HasSubstr("layers"))) << "a warning is no refusal";
  }
  Audit none;
  audit_targets(none, {});
  EXPECT_EQ(only_check(none).status, AuditStatus::kRefused);
}

TEST(Audit, OutputIsRehearsedAndLeavesNothing) {
  testing::TemporaryFolder folder;
  Audit audit;
  audit_output(audit, folder / "new/run", 1000);
  EXPECT_TRUE(audit.ok()) << only_check(audit).message;
  EXPECT_TRUE(std::filesystem::is_empty(folder / "new/run"));

  Audit full;
  audit_output(full, folder / "new/run", int64_t{1} << 60);
  EXPECT_THAT(only_check(full).message, HasSubstr("the disk has"));
  EXPECT_FALSE(full.ok());

  write_file_atomically(folder / "file", "x");
  Audit blocked;
  audit_output(blocked, folder / "file/run", 1000);
  EXPECT_FALSE(blocked.ok());
  EXPECT_THAT(only_check(blocked).message, HasSubstr("file"));
}

TEST(Audit, JsonHoldsWhatWasFound) {
  Audit audit;
  audit.add("a", AuditStatus::kOk, "fine");
  audit.refuse("b", Error("bad", "file:1", "mend it"));
  audit.trainable_parameters = 12;
  audit.total_parameters = 1200;
  audit.targets = {{"q_proj", 2}};
  audit.plan = R"({"arena_bytes": 5})";
  audit.examples.push_back({3, 4, 1, "a ⟦b\xff⟧"});
  const auto json = nlohmann::json::parse(audit_json(audit));
  EXPECT_EQ(json.at("ok"), false);
  EXPECT_EQ(json.at("checks").at(0),
            nlohmann::json({{"name", "a"}, {"status", "ok"}, {"message", "fine"}}));
  EXPECT_EQ(json.at("checks").at(1).at("status"), "refused");
  EXPECT_EQ(json.at("checks").at(1).at("message"), "file:1: bad; mend it");
  EXPECT_EQ(json.at("trainable_parameters"), 12);
  EXPECT_EQ(json.at("total_parameters"), 1200);
  EXPECT_EQ(json.at("targets").at("q_proj"), 2);
  EXPECT_EQ(json.at("plan").at("arena_bytes"), 5);
}

TEST(Audit, TextShowsEachCheckAndNoControlCharacters) {
  Audit audit;
  audit.add("a", AuditStatus::kWarning, "look");
  audit.trainable_parameters = 2'442'240;
  audit.total_parameters = 137'000'000;
  audit.examples.push_back({3, 4, 1, "x\x1b[2J\n⟦y⟧\n"});
  const std::string text = format_audit(audit, false);
  EXPECT_THAT(text, HasSubstr("warning  a: look"));
  EXPECT_THAT(text, HasSubstr("2,442,240 trained of 137,000,000 (1.78%)"));
  EXPECT_TRUE(text.ends_with("x\\x1b[2J\n    ⟦y⟧")) << text;
  EXPECT_THAT(format_audit(audit, true), HasSubstr("\x1b[32m⟦y⟧\x1b[0m"));
}

}  // namespace
}  // namespace graft
