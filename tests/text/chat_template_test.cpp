#include "text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include "base/error.h"
#include "support/errors.h"
#include "support/shared.h"
#include "text/text_model.h"

namespace graft::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::string kHello = R"([{"role": "user", "content": "Hi"}])";

struct Given {
  std::string messages = kHello;
  std::string tools = {};
  std::string variables = {};
  std::string date = "2026-01-15";
  bool prompt = false;
};

std::string render(const std::string& source, const Given& given = {}) {
  const ChatTemplate compiled =
      ChatTemplate::compile(source, "test.jinja", {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
  return compiled
      .render({given.messages, given.tools, ""}, {given.date, given.variables}, given.prompt)
      .text;
}

std::string failure(const std::string& source, const Given& given = {}) {
  const std::string message = error_of([&] { render(source, given); });
  EXPECT_NE(message, "") << source;
  return message;
}

TEST(ChatTemplate, TrimsAroundBlocks) {
  EXPECT_EQ(render("{% for m in messages %}\n  {% if true %}\n{{ m.content }}!\n  {% endif %}\n{% "
                   "endfor %}\nend\n"),
            "Hi!\nend");
  EXPECT_EQ(render("a  {{- ' b ' -}}  c"), "a b c");
  EXPECT_EQ(render("{{ 'x' }}\n\n"), "x\n");
}

TEST(ChatTemplate, GivesSpecialTokensAndVariables) {
  EXPECT_EQ(render("{{ bos_token }}{{ eos_token }}{{ pad_token }}"), "<s></s>");
  EXPECT_EQ(render("{{ mood }} {{ n + 1 }} {{ x is defined }}",
                   {.variables = R"({"mood": "good", "n": 2})"}),
            "good 3 False");
  EXPECT_EQ(render("{{ tools is none }}{{ documents is none }}"), "TrueTrue");
  EXPECT_EQ(render("{{ tools is none }}", {.tools = "[]"}), "True");
  EXPECT_EQ(render("{{ tools[0].name }}", {.tools = R"([{"name": "f"}])"}), "f");
  EXPECT_EQ(render("{% if add_generation_prompt %}go{% endif %}", {.prompt = true}), "go");
}

TEST(ChatTemplate, SetsTheClock) {
  EXPECT_EQ(
      render("{{ strftime_now('%Y-%m-%d %d %b %Y, %A %B %-d %j %y') }}", {.date = "2026-03-05"}),
      "2026-03-05 05 Mar 2026, Thursday March 5 064 26");
  EXPECT_EQ(render("{{ strftime_now('%H:%M:%S %p %%') }}"), "00:00:00 AM %");
  EXPECT_THAT(failure("{{ strftime_now('%Q') }}"), HasSubstr("%Q"));
  EXPECT_THAT(failure("x", {.date = "2026-02-30"}), HasSubstr("does not exist"));
  EXPECT_THAT(failure("x", {.date = "today"}), HasSubstr("YYYY-MM-DD"));
  EXPECT_NO_THROW(check_date("2024-02-29"));
  EXPECT_THROW(check_date("2023-02-29"), Error);
  EXPECT_THROW(check_date("2023-2-9"), Error);
  EXPECT_EQ(today().size(), 10u);
}

// Expected values are those of Python's json.dumps(value, ensure_ascii=False, ...).
TEST(ChatTemplate, WritesJsonAsPythonDoes) {
  const std::string variables =
      R"js({"v": {"b": [1, 2.0, 1e-7, 1e16, 123456.789, true, null], "a": "é\"<b>&\n\u0001\u007f", "e": {}, "l": []}})js";
  EXPECT_EQ(render("{{ v | tojson }}", {.variables = variables}),
            "{\"b\": [1, 2.0, 1e-07, 1e+16, 123456.789, true, null], "
            "\"a\": \"é\\\"<b>&\\n\\u0001\x7f\", \"e\": {}, \"l\": []}");
  EXPECT_EQ(render("{{ v.b[:2] | tojson(indent=2) }}", {.variables = variables}),
            "[\n  1,\n  2.0\n]");
  EXPECT_EQ(render("{{ {'b': 1, 'a': [2, {}]} | tojson(sort_keys=true, separators=(',', ':')) }}"),
            R"({"a":[2,{}],"b":1})");
  EXPECT_EQ(render("{{ 'é😀' | tojson(ensure_ascii=true) }}"), R"("\u00e9\ud83d\ude00")");
  EXPECT_THAT(failure("{{ v | tojson(colour=1) }}"), HasSubstr("colour"));
}

TEST(ChatTemplate, HasPythonsMethods) {
  EXPECT_EQ(render("{{ ' a b '.strip() }}|{{ 'xxaxx'.lstrip('x') }}|{{ 'a,b,c'.split(',')[-1] }}"),
            "a b|axx|c");
  EXPECT_EQ(
      render("{{ 'abc'.startswith('ab') }}{{ 'abc'.endswith(('x', 'c')) }}{{ 'aXb'.upper() }}"),
      "TrueTrueAXB");
  EXPECT_EQ(render("{{ 'pre-x'.removeprefix('pre-') }}{{ 'x.y'.removesuffix('.y') }}"), "xx");
  EXPECT_EQ(render("{{ 'a.b.c'.rsplit('.', 1)[0] }} {{ 'a=b=c'.partition('=')[2] }}"), "a.b b=c");
  EXPECT_EQ(render("{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}{{ v }}{% endfor %}"), "a1b2");
  EXPECT_EQ(render("{{ {'a': 1}.get('b', 'none') }}{{ messages[0].get('role') }}"), "noneuser");
  EXPECT_EQ(render("{{ '\x1c a \x1f'.strip() }}{{ '\u00a0x' | trim }}"), "ax");
}

TEST(ChatTemplate, HasLoopControlsAndNamespaces) {
  EXPECT_EQ(render("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}"
                   "{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}"),
            "023");
  EXPECT_EQ(render("{% set ns = namespace(n=0) %}{% for i in range(4) %}{% set ns.n = ns.n + i %}"
                   "{% endfor %}{{ ns.n }}"),
            "6");
  EXPECT_EQ(render("{% macro f(x) %}[{{ x }}]{% endmacro %}{{ f('a') + f(1) }}"), "[a][1]");
}

TEST(ChatTemplate, PassesOnTheTemplatesOwnMessage) {
  EXPECT_THAT(failure("{{ raise_exception('roles must alternate') }}"),
              HasSubstr("the chat template says: roles must alternate"));
  EXPECT_THAT(failure("{% macro f() %}{{ raise_exception('deep') }}{% endmacro %}{{ f() }}"),
              HasSubstr("the chat template says: deep"));
}

TEST(ChatTemplate, NamesTheLineOfAFault) {
  EXPECT_THAT(failure("a\nb\n{{ messages[0].content + 1 }}"), HasSubstr("line 3"));
  EXPECT_THAT(failure("a\n{% generation %}\nb\n{{ messages[0].missing.thing }}{% endgeneration %}"),
              HasSubstr("line 4"));
  EXPECT_THAT(failure("{% if %}"), HasSubstr("line 1"));
}

// Python would print these in its own notation.
TEST(ChatTemplate, RefusesToPrintWhatOnlyPythonCanPrint) {
  EXPECT_THAT(failure("{{ none }}"), HasSubstr("None"));
  EXPECT_THAT(failure("{{ [1, 2] }}"), HasSubstr("a list or an object"));
  EXPECT_THAT(failure("{{ messages }}"), HasSubstr("a list or an object"));
  EXPECT_THAT(failure("{{ messages[0] | string }}"), HasSubstr("a list or an object"));
  EXPECT_THAT(failure("{{ none | trim }}"), HasSubstr("None"));
  EXPECT_EQ(render("{{ true }} {{ 1.0 }} {{ missing }}"), "True 1.0 ");
  EXPECT_EQ(render("{{ 1e16 }} {{ 0.1 + 0.2 }} {{ 3 / 2 }}"), "1e+16 0.30000000000000004 1.5");
}

TEST(ChatTemplate, ReadsNoFiles) {
  for (const char* source :
       {"{% include '/etc/passwd' %}", "{% extends 'x' %}", "{% import '/etc/passwd' as p %}"}) {
    EXPECT_THAT(failure(source), HasSubstr("chat template"));
  }
}

TEST(ChatTemplate, EndsWithinItsLimits) {
  const std::string loops =
      "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
  EXPECT_THAT(failure(loops), HasSubstr("limits"));
  failure("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}");
  EXPECT_THAT(failure("{% for a in range(99999) %}" + std::string(1000, 'x') + "{% endfor %}"),
              HasSubstr("more than"));
  failure(
      "{% set ns = namespace(s='xx') %}{% for a in range(60) %}{% set ns.s = ns.s ~ ns.s %}"
      "{% endfor %}{{ ns.s | length }}");
  failure("{{ 'x' * 99999999999 }}");
  EXPECT_THAT(failure("{{ '{:>1000000000}'.format(1) | length }}"), HasSubstr("too wide"));
  EXPECT_EQ(render("{{ '{:>4}'.format(1) }}"), "   1");
  failure("{{ ('x' * 99999999).split('x') | length }}");
  for (const char* filter : {"s | tojson", "s | trim", "s | string", "s.strip('y')", "s ~ 'y'"}) {
    EXPECT_THAT(failure(fmt::format("{{% set ns = namespace(l=[]) %}}{{% set s = 'x' * 9999999 %}}"
                                    "{{% for i in range(9999) %}}{{% set ns.l = ns.l + [{}] %}}"
                                    "{{% endfor %}}",
                                    filter)),
                HasSubstr("limits"));
  }
  failure("{{ ('x' * 99999999) | tojson | tojson | tojson | length }}{{ range(10**9) | list }}");
}

TEST(ChatTemplate, SurvivesDeepNesting) {
  error_of([] { render(std::string(100000, '(') + "1"); });
  error_of([] { render("{{ " + std::string(100000, '[') + std::string(100000, ']') + " }}"); });
  std::string blocks;
  for (int i = 0; i < 20000; ++i) blocks += "{% if true %}";
  error_of([&] { render(blocks); });
  error_of([] { render("{{ " + std::string(16000, '-') + "1 }}"); });
  EXPECT_THAT(failure("{{ " + std::string(50000, '-') + "1 }}"), HasSubstr("longer than"));
  std::string nots = "{{ ";
  for (int i = 0; i < 4000; ++i) nots += "not ";
  error_of([&] { render(nots + "1 }}"); });
  std::string sums = "{{ 1";
  for (int i = 0; i < 4000; ++i) sums += " ~ 1";
  error_of([&] { render(sums + " }}"); });
  std::string branches = "{% if false %}";
  for (int i = 0; i < 80000; ++i) branches += "{%elif x%}";
  error_of([&] { render(branches + "{% endif %}"); });
  error_of([] {
    render(
        "{% set ns = namespace(x=[]) %}{% for i in range(90000) %}{% set ns.x = [ns.x] %}{% endfor "
        "%}ok");
  });
  error_of([] {
    render(
        "{% set ns = namespace(x=[]) %}{% for i in range(90000) %}{% set ns.x = [ns.x] %}{% endfor "
        "%}"
        "{{ ns.x | tojson }}");
  });
}

TEST(ChatTemplate, RefusesConversationsThatAreNone) {
  EXPECT_THAT(failure("x", {.messages = "[]"}), HasSubstr("no messages"));
  EXPECT_THAT(failure("x", {.messages = "{}"}), HasSubstr("list"));
  EXPECT_THAT(failure("x", {.messages = "[1]"}), HasSubstr("message 1 has no role"));
  EXPECT_THAT(failure("x", {.messages = R"([{"content": "a"}])"}), HasSubstr("no role"));
  EXPECT_THAT(failure("x", {.messages = "["}), HasSubstr("JSON"));
  EXPECT_THAT(failure("x", {.messages = "[{\"role\": \"user\", \"content\": \"\xFF\"}]"}),
              HasSubstr("JSON"));
  EXPECT_THAT(failure("x", {.tools = "{}"}), HasSubstr("tools must be a list"));
  EXPECT_THAT(failure("x", {.variables = "[]"}), HasSubstr("must be an object"));
  EXPECT_THAT(failure("x", {.variables = R"({"messages": []})"}), HasSubstr("cannot be"));
}

TEST(ChatTemplate, DropsNullKeysUnlessTheTemplateNeedsThem) {
  const Given null_content = {.messages = R"([{"role": "user", "content": null, "x": null}])"};
  EXPECT_EQ(render("{{ 'content' in messages[0] }}", null_content), "False");
  EXPECT_EQ(render("{% if messages[0]['content'] is none %}null{% else %}"
                   "{{ messages[0]['content'] + '' }}{% endif %}",
                   null_content),
            "null");
}

Rendered render_marked(const std::string& source) {
  return ChatTemplate::compile(source, "test.jinja", {})
      .render({R"([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo é"}])",
               "", ""},
              {"2026-01-15", ""}, false);
}

TEST(ChatTemplate, TellsGenerationBlocks) {
  const Rendered out = render_marked(
      "{% for m in messages %}\n<{{ m.role }}>\n  {%- generation -%}\n  {{ m.content }}\n"
      "  {%- endgeneration %}\n;{% endfor %}");
  EXPECT_EQ(out.text, "<user>Hi;<assistant>Yo é;");
  ASSERT_EQ(out.generation.size(), 2u);
  EXPECT_EQ(
      out.text.substr(out.generation[0].begin, out.generation[0].end - out.generation[0].begin),
      "Hi");
  EXPECT_EQ(
      out.text.substr(out.generation[1].begin, out.generation[1].end - out.generation[1].begin),
      "Yo é");
}

TEST(ChatTemplate, GenerationBlocksAreBlocks) {
  // Trimmed like any block tag, and a scope of their own.
  EXPECT_EQ(render_marked("a\n  {% generation %}\nb\n  {% endgeneration %}\nc").text, "a\nb\nc");
  EXPECT_EQ(
      render_marked("{% set x = 1 %}{% generation %}{% set x = 2 %}{% endgeneration %}{{ x }}")
          .text,
      "1");
  EXPECT_EQ(
      render_marked(
          "{% raw %}{% generation %}{% endraw %}{{ '{% generation %}' }}{# {% generation %} #}")
          .text,
      "{% generation %}{% generation %}");
  EXPECT_THAT(error_of([] { render_marked("{% generation %}"); }), HasSubstr("generation"));
  EXPECT_THAT(error_of([] { render_marked("{% endgeneration %}"); }), HasSubstr("generation"));
}

TEST(ChatTemplate, MarksCannotBeForged) {
  const ChatTemplate compiled = ChatTemplate::compile(
      "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}", "t",
      {});
  const std::string content = "a\uFDD00\uFDD1<b\uFDD00\uFDD1>c";
  const Rendered out =
      compiled.render({R"([{"role": "user", "content": ")" + content + R"("}])", "", ""},
                      {"2026-01-15", ""}, false);
  EXPECT_EQ(out.text, content);
  ASSERT_EQ(out.generation.size(), 1u);
  EXPECT_EQ(out.generation[0], (ByteRange{0, content.size()}));
}

}  // namespace
}  // namespace graft::testing
