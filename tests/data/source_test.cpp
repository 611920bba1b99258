#include "data/source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/gzip.h"
#include "data/row_json.h"
#include "data/utf8.h"
#include "support/temporary.h"

namespace graft {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TemporaryFolder;

// What running `body` complains about; "" if it does not.
template <typename Body>
std::string complaint(Body body) {
  try {
    body();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

std::vector<std::string> texts(const Rows& rows) {
  std::vector<std::string> all;
  for (const Row& row : rows.rows()) all.emplace_back(row.json);
  return all;
}

std::vector<int64_t> lines(const Rows& rows) {
  std::vector<int64_t> all;
  for (const Row& row : rows.rows()) all.push_back(row.line);
  return all;
}

std::string parse_all(const Rows& rows) {
  return complaint([&] {
    for (const Row& row : rows.rows()) parse_row(rows, row);
  });
}

class FileTest : public ::testing::Test {
 protected:
  std::filesystem::path write(const std::string& name, std::string_view bytes) {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
    return folder_ / name;
  }
  TemporaryFolder folder_;
};

std::string gzipped(std::string_view text) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(out.size() - stream.avail_out);
  deflateEnd(&stream);
  return out;
}

TEST(JsonLines, RowsKnowTheirLines) {
  const Rows rows = read_json_rows("\n{\"a\":1}\r\n   \n  {\"a\":2}  \n\n", "f");
  EXPECT_THAT(texts(rows), ElementsAre("{\"a\":1}", "{\"a\":2}"));
  EXPECT_THAT(lines(rows), ElementsAre(2, 4));
  EXPECT_EQ(rows.rows()[1].column, 3);
  EXPECT_EQ(rows.where(rows.rows()[1]), "f, line 4");
}

TEST(JsonLines, OnlyLineFeedEndsALine) {
  const std::string odd = "{\"a\":\"x\u2028y\u2029z\u0085\"}";
  const Rows rows = read_json_rows(odd + "\n" + odd, "f");
  EXPECT_THAT(texts(rows), ElementsAre(odd, odd));
}

TEST(JsonLines, ByteOrderMarkIsDropped) {
  const Rows rows = read_json_rows("\xEF\xBB\xBF{\"a\":1}", "f");
  EXPECT_THAT(texts(rows), ElementsAre("{\"a\":1}"));
}

TEST(JsonLines, EscapedNulIsKept) {
  const Rows rows = read_json_rows("{\"a\":\"x\\u0000y\"}", "f");
  EXPECT_EQ(parse_row(rows, rows.rows()[0])["a"].get<std::string>(), std::string("x\0y", 3));
}

TEST(JsonLines, FaultsHaveLineAndColumn) {
  EXPECT_THAT(parse_all(read_json_rows("{}\n\n  {\"ä\": tru}\n{}", "f.jsonl")),
              AllOf(HasSubstr("f.jsonl, line 3, column 12"), HasSubstr("invalid JSON")));
  EXPECT_THAT(parse_all(read_json_rows("{}\n{\"a\": [1, 2", "f")),
              AllOf(HasSubstr("f, line 2, column 12"), HasSubstr("cut off")));
  EXPECT_THAT(parse_all(read_json_rows("{} {}", "f")), HasSubstr("line 1, column 4"));
  EXPECT_THAT(parse_all(read_json_rows("{}\n3", "f")),
              AllOf(HasSubstr("f, line 2"), HasSubstr("object, not number")));
  EXPECT_THAT(parse_all(read_json_rows("{\"a\": 1e999}", "f")),
              HasSubstr("f, line 1: invalid JSON"));
}

TEST(JsonLines, NestingIsLimited) {
  const std::string deep = "{\"a\":" + std::string(100000, '[') + std::string(100000, ']') + "}";
  EXPECT_THAT(parse_all(read_json_rows(deep, "f")),
              AllOf(HasSubstr("line 1, column 133"), HasSubstr("nested deeper")));
  EXPECT_EQ(parse_all(read_json_rows("{\"a\":\"" + std::string(1000, '[') + "\\\"[\"}", "f")), "");
}

TEST(JsonLines, Utf8IsChecked) {
  EXPECT_THAT(complaint([] { read_json_rows("{}\n{}\n{\"a\":\"\xe9\"}", "f"); }),
              AllOf(HasSubstr("f, line 3"), HasSubstr("0xe9"), HasSubstr("UTF-8")));
  EXPECT_THAT(complaint([] { read_json_rows("\xFF\xFE{", "f"); }), HasSubstr("UTF-16, not UTF-8"));
}

TEST(JsonArray, ElementsAreRows) {
  const std::string text = " [ {\"a\": \"],[\\\"\"},\n {\"b\": [1, {}]}\n , {} ] \n";
  const Rows rows = read_json_rows(text, "f");
  EXPECT_THAT(texts(rows), ElementsAre("{\"a\": \"],[\\\"\"}", "{\"b\": [1, {}]}\n ", "{} "));
  EXPECT_THAT(lines(rows), ElementsAre(1, 2, 3));
  EXPECT_EQ(parse_all(rows), "");
}

TEST(JsonArray, FaultsHaveLineAndColumn) {
  EXPECT_THAT(parse_all(read_json_rows("[\n {\"a\":\n  x},\n {}]", "f")),
              HasSubstr("line 3, column 3"));
  EXPECT_THAT(parse_all(read_json_rows("[{}, ]", "f")), HasSubstr("line 1"));
  EXPECT_THAT(complaint([] { read_json_rows("[{},\n{", "f"); }),
              AllOf(HasSubstr("line 2, column 2"), HasSubstr("ends inside the JSON array")));
  EXPECT_THAT(complaint([] { read_json_rows("[{}]\n{}", "f"); }), HasSubstr("line 2, column 1"));
}

TEST(JsonArray, EmptyOnesAreEmptyFiles) {
  for (const char* text : {"", "  \n\n ", "[]", " [ ] "}) {
    EXPECT_THAT(complaint([&] { read_json_rows(text, "f"); }), HasSubstr("f: the file is empty"));
  }
}

TEST_F(FileTest, KindsByNameAndFirstBytes) {
  EXPECT_THAT(texts(read_rows(write("a.json", "{\"a\":1}\n{\"a\":2}\n"))),
              ElementsAre("{\"a\":1}", "{\"a\":2}"));
  EXPECT_THAT(texts(read_rows(write("noname", "[{\"a\":1}]"))), ElementsAre("{\"a\":1}"));
  EXPECT_THAT(complaint([&] { read_rows(write("x.txt", "hello")); }), HasSubstr("name it .jsonl"));
  EXPECT_THAT(complaint([&] { read_rows(write("x.jsonl", "PK\x03\x04...")); }), HasSubstr("zip"));
  EXPECT_THAT(complaint([&] { read_rows(folder_ / "none"); }), HasSubstr("none"));
  EXPECT_THAT(complaint([&] { read_rows(write("e.csv", "")); }), HasSubstr("empty"));
}

TEST_F(FileTest, Csv) {
  const auto path =
      write("a.csv",
            "\xEF\xBB\xBFq,a\r\n\"say \"\"hi\"\"\",\"1,5\"\r\n\r\n\"two\nlines\",5\" pipe\r\n,\n");
  const Rows rows = read_rows(path);
  EXPECT_THAT(texts(rows),
              ElementsAre(R"({"q":"say \"hi\"","a":"1,5"})", R"({"q":"two\nlines","a":"5\" pipe"})",
                          R"({"q":"","a":""})"));
  EXPECT_THAT(lines(rows), ElementsAre(2, 4, 6));
  EXPECT_THAT(texts(read_rows(write("a.tsv", "q\ta\nx,y\tz\n"))),
              ElementsAre(R"({"q":"x,y","a":"z"})"));
  EXPECT_THAT(complaint([&] { read_rows(write("b.csv", "a,b\n1,2\n\n3\n")); }),
              AllOf(HasSubstr("line 4"), HasSubstr("1 fields"), HasSubstr("2 columns")));
  EXPECT_THAT(complaint([&] { read_rows(write("c.csv", "a\n1\n\"open\n\n")); }),
              AllOf(HasSubstr("line 3"), HasSubstr("never closed")));
  EXPECT_THAT(complaint([&] { read_rows(write("d.csv", "a\n\"1\"2\n")); }),
              AllOf(HasSubstr("line 2"), HasSubstr("closing quote")));
  EXPECT_THAT(complaint([&] { read_rows(write("e.csv", "a,a\n1,2\n")); }),
              HasSubstr("two columns"));
}

TEST_F(FileTest, Gzip) {
  const std::string text = "{\"a\":1}\n{\"a\":2}\n";
  const std::string packed = gzipped(text);
  EXPECT_THAT(texts(read_rows(write("a.jsonl.gz", packed))), ElementsAre("{\"a\":1}", "{\"a\":2}"));
  // Told by its bytes, not its name; members follow one another.
  EXPECT_EQ(read_rows(write("a.jsonl", packed + packed)).size(), 4u);
  EXPECT_THAT(texts(read_rows(write("a.csv.gz", gzipped("q\n[1\n")))),
              ElementsAre(R"({"q":"[1"})"));
  EXPECT_THAT(complaint([&] { read_rows(write("b.gz", packed.substr(0, packed.size() - 9))); }),
              HasSubstr("cut off"));
  EXPECT_THAT(complaint([&] { read_rows(write("c.gz", packed.substr(0, 10))); }),
              HasSubstr("cut off"));
  EXPECT_THAT(complaint([&] { read_rows(write("d.gz", packed + "x")); }), HasSubstr("follows"));
  std::string damaged = packed;
  damaged[damaged.size() - 6] ^= 1;  // checksum
  EXPECT_THAT(complaint([&] { read_rows(write("e.gz", damaged)); }), HasSubstr("damaged"));
  EXPECT_THAT(complaint([&] { gunzip(gzipped(std::string(100000, 'x')), "z", 1000); }),
              HasSubstr("more than 1000 bytes"));
}

TEST(Utf8, Validity) {
  for (const char* good :
       {"", "abc", "ä", "\u07FF", "\u0800", "\uD7FF", "\uFFFD", "\U0010FFFF", "0123456ä8"}) {
    EXPECT_EQ(find_invalid_utf8(good), std::string_view::npos) << good;
  }
  for (const char* bad : {"\x80", "\xC0\x80", "\xC1\xBF", "\xC3", "\xE0\x9F\x80", "\xED\xA0\x80",
                          "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xE2\x82"}) {
    EXPECT_EQ(find_invalid_utf8(bad), 0u);
    EXPECT_EQ(find_invalid_utf8("abcdefgh" + std::string(bad) + "z"), 8u);
  }
  EXPECT_EQ(count_characters("aä€😀"), 4u);
  EXPECT_EQ(utf8_prefix("aä€", 2), "a");
  EXPECT_EQ(utf8_prefix("aä€", 3), "aä");
}

}  // namespace
}  // namespace graft
