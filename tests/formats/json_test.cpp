#include "formats/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "support/errors.h"
#include "support/temporary.h"

namespace graft {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string parse_error(const std::string& text) {
  return error_of([&] { parse_json(text, "a.json"); });
}

TEST(Json, ErrorsGiveFileLineAndColumn) {
  EXPECT_THAT(parse_error("{\n  \"a\": 1,\n  \"b\": tru\n}"),
              StartsWith("a.json:3:11: is not valid"));
  EXPECT_THAT(parse_error("{\n  \"a\": 1"), StartsWith("a.json:2:9: is not valid"));
  EXPECT_THAT(parse_error(""), StartsWith("a.json:1:1: is not valid JSON"));
  EXPECT_THAT(parse_error("{\"a\": 1} x"), StartsWith("a.json:1:10:"));
  EXPECT_THAT(parse_error("{\"a\": \"\xff\"}"), HasSubstr("UTF-8"));
  EXPECT_THAT(parse_error("{\"a\": NaN}"), StartsWith("a.json:1:7:"));
  EXPECT_NE(parse_error("[1e999]"), "");
  testing::TemporaryFolder folder;
  EXPECT_THAT(error_of([&] { read_json_file(folder / "none.json"); }), HasSubstr("none.json"));
}

TEST(Json, DuplicateKeysAreRefused) {
  EXPECT_THAT(parse_error(R"({"a": {"x": 1, "y": 2, "x": 3}})"),
              AllOf(HasSubstr("\"x\""), HasSubstr("twice")));
  EXPECT_EQ(parse_error(R"([{"x": 1, "y": {"x": 1}}, {"x": 2}])"), "");
}

TEST(Json, DepthIsLimited) {
  const auto nested = [](int depth) {
    return std::string(static_cast<size_t>(depth), '[') +
           std::string(static_cast<size_t>(depth), ']');
  };
  EXPECT_EQ(parse_error(nested(kJsonDepthLimit)), "");
  EXPECT_THAT(parse_error(nested(kJsonDepthLimit + 1)), HasSubstr("nested"));
  EXPECT_THAT(parse_error(std::string(1000000, '[')), HasSubstr("nested"));
  std::string objects;
  for (int i = 0; i < 100000; ++i) objects += "{\"a\":";
  EXPECT_THAT(parse_error(objects), HasSubstr("nested"));
}

TEST(JsonObject, GettersConvert) {
  const auto document =
      parse_json(R"({"i": 3, "f": 4.0, "h": 0.5, "s": "text", "b": true, "n": null,
                                       "is": [1, 2], "ss": ["a", "b"], "big": 1e15})",
                 "a.json");
  const JsonObject object(document, "a.json");
  EXPECT_EQ(object.required<int64_t>("i"), 3);
  EXPECT_EQ(object.required<int64_t>("f"), 4);
  EXPECT_EQ(object.required<int64_t>("big"), 1000000000000000);
  EXPECT_EQ(object.required<double>("i"), 3.0);
  EXPECT_EQ(object.required<double>("h"), 0.5);
  EXPECT_EQ(object.required<std::string>("s"), "text");
  EXPECT_TRUE(object.required<bool>("b"));
  EXPECT_EQ(object.optional<bool>("n"), std::nullopt);
  EXPECT_EQ(object.optional<bool>("absent"), std::nullopt);
  EXPECT_THAT(object.required<std::vector<int64_t>>("is"), ElementsAre(1, 2));
  EXPECT_THAT(object.required<std::vector<double>>("is"), ElementsAre(1.0, 2.0));
  EXPECT_THAT(object.required<std::vector<std::string>>("ss"), ElementsAre("a", "b"));
  EXPECT_FALSE(object.has("n"));
  EXPECT_NE(object.find("n"), nullptr);
  EXPECT_THAT(object.keys(), ElementsAre("b", "big", "f", "h", "i", "is", "n", "s", "ss"));
}

TEST(JsonObject, ErrorsNameFileAndKey) {
  const auto document =
      parse_json(R"({"rope": {"factor": "eight", "list": [1, "x"], "n": null}, "half": 0.5,
                     "huge": 18446744073709551615})",
                 "config.json");
  const JsonObject config(document, "config.json");
  const JsonObject rope = config.required_object("rope");
  EXPECT_EQ(error_of([&] { rope.required<double>("factor"); }),
            "config.json: rope.factor: must be a number, not \"eight\"");
  EXPECT_EQ(error_of([&] { rope.optional<int64_t>("factor"); }),
            "config.json: rope.factor: must be a whole number, not \"eight\"");
  EXPECT_EQ(error_of([&] { rope.required<double>("theta"); }),
            "config.json: rope.theta: is missing");
  EXPECT_EQ(error_of([&] { rope.required<double>("n"); }), "config.json: rope.n: must not be null");
  EXPECT_THAT(error_of([&] { rope.required<std::vector<int64_t>>("list"); }),
              HasSubstr("a list of whole numbers"));
  EXPECT_THAT(error_of([&] { config.required<int64_t>("half"); }), HasSubstr("a whole number"));
  EXPECT_THAT(error_of([&] { config.required<int64_t>("huge"); }), HasSubstr("a whole number"));
  EXPECT_THAT(error_of([&] { config.required_object("half"); }), HasSubstr("config.json: half"));
  EXPECT_EQ(config.optional_object("none").has_value(), false);
}

}  // namespace
}  // namespace graft
