#include "base/error.h"

#include <gtest/gtest.h>

#include "base/log.h"

namespace graft {
namespace {

TEST(Error, SaysWhatWhereAndRemedy) {
  const Error error("ends beyond the file", "model.safetensors", "download it again");
  EXPECT_STREQ(error.what(), "model.safetensors: ends beyond the file; download it again");
  EXPECT_STREQ(error.at("model").what(),
               "model: model.safetensors: ends beyond the file; download it again");
  EXPECT_STREQ(Error("alone").at("outer").what(), "outer: alone");
}

TEST(Error, CheckIsAnAssertion) {
  GRAFT_CHECK(1 + 1 == 2);
  try {
    GRAFT_CHECK(1 > 2, "{} is not {}", 1, 2);
    FAIL();
  } catch (const std::logic_error& error) {
    EXPECT_NE(std::string(error.what()).find("1 > 2: 1 is not 2"), std::string::npos);
  }
}

TEST(Log, GoesToStderrALineAtATime) {
  ::testing::internal::CaptureStderr();
  info("step {}", 3);
  warn("loss {}", 1.5);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "step 3\nwarning: loss 1.5\n");
}

}  // namespace
}  // namespace graft
