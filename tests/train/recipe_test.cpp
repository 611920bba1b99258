#include "train/recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "support/shared.h"
#include "support/temporary.h"
#include "train/recipe_keys.h"

namespace graft {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kSmall = "model: m\noutput_dir: out\ndata:\n  train: rows.jsonl\n";

Recipe parse(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return parse_recipe(text, "recipe.yaml", overrides);
}

std::string refusal(const std::string& text, const std::vector<std::string>& overrides = {}) {
  try {
    parse(text, overrides);
  } catch (const Error& e) {
    return e.what();
  }
  return "accepted";
}

TEST(Recipe, ThreeKeysSuffice) {
  Recipe recipe = parse(kSmall);
  require_keys(recipe, {"model", "output_dir", "data.train"});
  resolve_recipe(recipe, "2026-01-15");
  EXPECT_EQ(recipe.model, "m");
  EXPECT_EQ(recipe.data.train, "rows.jsonl");
  EXPECT_EQ(recipe.lora.r, 16);
  EXPECT_EQ(recipe.lora.target_modules.expression, "all-linear");
  EXPECT_EQ(recipe.training.learning_rate, 2e-4);
  EXPECT_EQ(recipe.data.template_date, "2026-01-15");
  EXPECT_EQ(parse(std::string(kSmall) + "training: {method: full}").training.method,
            TrainingMethod::kFull);
}

TEST(Recipe, MissingKeysAreNamed) {
  const Recipe recipe = parse("model: m\n");
  try {
    require_keys(recipe, {"model", "data.train"});
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("data.train is missing"));
  }
}

TEST(Recipe, EveryKindOfValueIsRead) {
  const Recipe recipe = parse(R"(
model: "./a folder"
data:
  train: t.jsonl
  template_variables: {enable_thinking: false, n: 3, "q": ["x", null, 1.5]}
  packing: true
lora:
  r: 8
  lora_alpha: 1.6e1
  target_modules: [q_proj, v_proj]
  exclude_modules: .*layers\.0\..*
  layers_to_transform: [1, 2]
  rank_pattern: {q_proj: 4}
  alpha_pattern: {"model.layers.1.self_attn.v_proj": 2.5}
training:
  learning_rate: 1e-4
  lr_scheduler_type: cosine
  max_steps: 10
  adam_epsilon: 1.0e-6
  remat: full
compute: {dtype: bf16, threads: 2}
scan_layers: false
)");
  EXPECT_EQ(recipe.model, "./a folder");
  EXPECT_TRUE(recipe.data.packing);
  EXPECT_EQ(recipe.data.template_variables,
            R"({"enable_thinking":false,"n":3,"q":["x",null,1.5]})");
  EXPECT_EQ(recipe.lora.lora_alpha, 16);
  EXPECT_THAT(recipe.lora.target_modules.suffixes, ElementsAre("q_proj", "v_proj"));
  EXPECT_EQ(recipe.lora.exclude_modules.expression, R"(.*layers\.0\..*)");
  EXPECT_THAT(*recipe.lora.layers_to_transform, ElementsAre(1, 2));
  EXPECT_EQ(recipe.lora.rank_pattern, (PatternList<int64_t>{{"q_proj", 4}}));
  EXPECT_EQ(recipe.lora.alpha_pattern,
            (PatternList<double>{{"model.layers.1.self_attn.v_proj", 2.5}}));
  EXPECT_EQ(recipe.training.learning_rate, 1e-4);
  EXPECT_EQ(recipe.training.lr_scheduler_type, Schedule::kCosine);
  EXPECT_EQ(recipe.training.max_steps, 10);
  EXPECT_EQ(recipe.training.remat, Remat::kFull);
  EXPECT_EQ(recipe.compute.dtype, ComputeDType::kBF16);
  EXPECT_FALSE(recipe.scan_layers);
  EXPECT_EQ(recipe.where("lora.r"), "recipe.yaml:8");
}

TEST(Recipe, OverridesReplaceTheFile) {
  const Recipe recipe = parse(std::string(kSmall) + "training:\n  max_steps: bad\n  seed: 1\n",
                              {"training.max_steps=7", "lora.target_modules=[q_proj]",
                               "training.seed=", "data.eval=held=out.jsonl",
                               "lora.rank_pattern={q_proj: 2}", "training.eval_steps=2"});
  EXPECT_EQ(recipe.training.max_steps, 7);
  EXPECT_THAT(recipe.lora.target_modules.suffixes, ElementsAre("q_proj"));
  EXPECT_EQ(recipe.training.seed, 42);  // null puts the default back
  EXPECT_EQ(recipe.data.eval, "held=out.jsonl");
  EXPECT_EQ(recipe.lora.rank_pattern, (PatternList<int64_t>{{"q_proj", 2}}));
  EXPECT_THAT(recipe.where("training.max_steps"), HasSubstr("command line"));
}

TEST(Recipe, UnknownKeysNameTheNearest) {
  EXPECT_THAT(refusal("lora:\n  lora_alhpa: 8\n"),
              AllOf(HasSubstr("recipe.yaml:2"), HasSubstr("unknown key lora.lora_alhpa"),
                    HasSubstr("did you mean lora.lora_alpha")));
  EXPECT_THAT(refusal("learning_rate: 1\n"), HasSubstr("did you mean training.learning_rate"));
  EXPECT_THAT(refusal("model: \"\"\n"), HasSubstr("expected a path"));
  EXPECT_THAT(refusal("lora: {target_modules: []}\n"), HasSubstr("not an empty list"));
  EXPECT_THAT(refusal("training: {seed: 4294967296}\n"), HasSubstr("from 0 to 4294967295"));
  EXPECT_THAT(refusal("lora: {layers_to_transform: [0, -1]}\n"), HasSubstr("each value"));
  EXPECT_THAT(refusal("modle: x\n"), HasSubstr("did you mean model?"));
  EXPECT_THAT(refusal("training:\n  max_step: 1\n"), HasSubstr("training.max_steps"));
  EXPECT_THAT(refusal("output: x\n"), HasSubstr("did you mean output_dir?"));
  EXPECT_THAT(refusal("qqqqqqqqqqqqqqqq: 1\n"),
              AllOf(HasSubstr("the nearest known key is "), HasSubstr("docs/recipe.md")));
  EXPECT_THAT(refusal("", {"lora.q=1"}), HasSubstr("unknown key lora.q"));
}

TEST(Recipe, KeysOfOtherProgramsAreRefusedByName) {
  EXPECT_THAT(refusal("lora:\n  use_dora: true\n"),
              AllOf(HasSubstr("recipe.yaml:2"), HasSubstr("lora.use_dora is not supported")));
  for (const char* key : {"modules_to_save: [lm_head]", "bias: all", "target_parameters: [x]",
                          "trainable_token_indices: [1]", "lora_bias: true", "fan_in_fan_out: true",
                          "alora_invocation_tokens: [1]"}) {
    const std::string name = std::string(key).substr(0, std::string(key).find(':'));
    EXPECT_THAT(refusal("lora:\n  " + std::string(key)), HasSubstr("lora." + name)) << key;
  }
  EXPECT_THAT(refusal("training:\n  per_device_train_batch_size: 4\n"),
              HasSubstr("per_device_batch_size"));
  // With the value that changes nothing they are no obstacle.
  EXPECT_EQ(refusal("lora: {use_dora: false, bias: none, modules_to_save: null}\n"), "accepted");
}

TEST(Recipe, ValuesAreChecked) {
  const auto one = [](const std::string& section, const std::string& line) {
    return refusal(section + ":\n  " + line + "\n");
  };
  EXPECT_THAT(one("lora", "r: 0"),
              HasSubstr("recipe.yaml:2: lora.r: expected a whole number from 1 to 65536, not 0"));
  EXPECT_THAT(one("lora", "r: 1.5"), HasSubstr("expected a whole number, not 1.5"));
  EXPECT_THAT(one("lora", "r: \"8\""), HasSubstr("not the text \"8\""));
  EXPECT_THAT(one("lora", "lora_dropout: 1"), HasSubstr("less than 1"));
  EXPECT_THAT(one("lora", "rank_pattern: {q: 0}"), HasSubstr("lora.rank_pattern"));
  EXPECT_THAT(one("lora", "target_modules: []"), HasSubstr("lora.target_modules"));
  EXPECT_THAT(one("training", "learning_rate: .nan"), HasSubstr("not a finite number"));
  EXPECT_THAT(one("training", "learning_rate: -1"), HasSubstr("number > 0"));
  EXPECT_THAT(one("training", "learning_rate: 1e999"), HasSubstr("expected a number"));
  EXPECT_THAT(one("training", "shuffle: yes"), HasSubstr("expected true or false"));
  EXPECT_THAT(one("training", "lr_scheduler_type: cosin"),
              HasSubstr("one of constant, constant_with_warmup, linear, cosine"));
  EXPECT_THAT(one("training", "seed: 99999999999999999999"), HasSubstr("whole number"));
  EXPECT_THAT(one("data", "template_date: 2026-02-30"), HasSubstr("YYYY-MM-DD"));
  EXPECT_THAT(one("data", "template_variables: [1]"), HasSubstr("expected a mapping"));
  EXPECT_THAT(one("compute", "executor: pjrt"),
              HasSubstr("executor's name: native, pjrt:cpu, pjrt:cuda"));
  EXPECT_THAT(refusal("data: rows.jsonl\n"), HasSubstr("data is a section"));
  EXPECT_THAT(refusal("- 1\n"), HasSubstr("a recipe is a mapping"));
  EXPECT_THAT(refusal("", {"lora={r: 1}"}), HasSubstr("lora is a section"));
  EXPECT_THAT(refusal("", {"lora.r"}), HasSubstr("key=value"));
}

TEST(Recipe, KeysAreCheckedTogether) {
  EXPECT_THAT(refusal("training: {lr_scheduler_type: linear, warmup_steps: 1, warmup_ratio: 0.1}"),
              HasSubstr("give one of the two"));
  EXPECT_THAT(refusal("training: {lr_scheduler_type: constant, warmup_steps: 1}"),
              HasSubstr("constant_with_warmup"));
  EXPECT_THAT(refusal("training: {trainable: [x]}"), HasSubstr("training.method: full"));
  EXPECT_THAT(refusal("training: {method: full}\nlora: {r: 4}"), HasSubstr("no adapter"));
  EXPECT_THAT(refusal("training: {eval_steps: 5}"), HasSubstr("data.eval"));
}

TEST(Recipe, QuantizationIsAWordOrASection) {
  EXPECT_EQ(parse(kSmall).quantization.scheme, QuantizationScheme::kNone);
  EXPECT_EQ(parse(std::string(kSmall) + "quantization: nf4\n").quantization.scheme,
            QuantizationScheme::kNf4);
  const Recipe recipe =
      parse(std::string(kSmall) + "quantization: {scheme: int4, block_size: 64}\n",
            {"quantization=nf4", "quantization.keep=[down_proj]"});
  EXPECT_EQ(recipe.quantization.scheme, QuantizationScheme::kNf4);
  EXPECT_EQ(recipe.quantization.block_size, 64);
  EXPECT_THAT(recipe.quantization.keep.suffixes, ElementsAre("down_proj"));
  EXPECT_THAT(refusal("quantization: q5\n"), HasSubstr("one of none, nf4, int8, int4, fp8"));
  EXPECT_THAT(refusal("quantization: {block_size: 32}\n"), HasSubstr("nothing is quantised"));
  EXPECT_THAT(refusal("quantization: nf4\ntraining: {method: full}\n"), HasSubstr("full"));
}

TEST(Recipe, YamlIsReadStrictly) {
  EXPECT_THAT(refusal("model: a\nmodel: b\n"),
              AllOf(HasSubstr("recipe.yaml:2"), HasSubstr("given twice")));
  EXPECT_THAT(refusal("model: [a\n"), HasSubstr("not valid YAML"));
  EXPECT_THAT(refusal("model: a\n---\nmodel: b\n"), HasSubstr("second YAML document"));
  EXPECT_THAT(refusal("model: !!python/name:os.system a\n"), HasSubstr("tag"));
  EXPECT_THAT(refusal("a: &a {x: 1}\nb: {<<: *a}\n"), HasSubstr("merge keys"));
  EXPECT_THAT(refusal(std::string("model: a\0b", 10)), HasSubstr("zero byte"));
  EXPECT_THAT(refusal("model: a\noutput_dir: \xff\n"),
              AllOf(HasSubstr("recipe.yaml:2"), HasSubstr("UTF-8")));
  EXPECT_THAT(refusal("model: \"a\\0b\"\n"), HasSubstr("not valid"));
  EXPECT_THAT(refusal(std::string(300'000, '#')), HasSubstr("larger than"));
  std::string deep = "model: ";
  for (int i = 0; i < 2000; ++i) deep += '[';
  EXPECT_THAT(refusal(deep), HasSubstr("nested"));
  // Each level names the one before ten times: a thousand million values in a few lines.
  std::string bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n";
  for (int i = 1; i < 10; ++i) {
    bomb += fmt::format(
        "a{0}: &a{0} [*a{1},*a{1},*a{1},*a{1},*a{1},*a{1},*a{1},*a{1},*a{1},*a{1}]\n", i, i - 1);
  }
  EXPECT_THAT(refusal(bomb), HasSubstr("more than"));
  EXPECT_THAT(refusal("model: &m [*m]\n"), HasSubstr("alias"));
  // Ordinary aliases work.
  EXPECT_EQ(parse("model: &m base\noutput_dir: *m\n").output_dir, "base");
}

TEST(Recipe, ResolvedRecipeReadsBackTheSame) {
  std::vector<std::string> recipes = {
      kSmall,
      R"({model: "yes", output_dir: "a: b # \u00e9\n\"", data: {train: "1e5", eval: "-", train_on: all,
          template_variables: {a: {b: [1, "2", true, null, 1e-9, "x: y, {z}"]}, "": ""}},
          lora: {target_modules: ".*\\.(q|v)_proj", rank_pattern: {"a.*b": 3, "model.layers": 2},
                 alpha_pattern: {"null": 0.1}, layers_to_transform: [0], init_adapter: ~/x,
                 exclude_modules: [a, "b c", "true"]},
          training: {learning_rate: 0.1, eval_steps: 1, warmup_ratio: 0.03, adam_epsilon: 1e-12},
          quantization: {scheme: nf4, double_quant: true, keep: [down_proj], modules: ".*"},
          scan_layers: false})",
      std::string(kSmall) +
          "training: {method: full, trainable: ['.*norm.*', \"a\\\\.b\"], decay_all: true}\n"};
  for (const std::string& text : recipes) {
    Recipe first = parse(text);
    resolve_recipe(first, "2026-01-15");
    const std::string written = format_recipe(first);
    Recipe second = parse(written);
    resolve_recipe(second, "1999-09-09");  // nothing is left to fill
    EXPECT_EQ(format_recipe(second), written);
    EXPECT_EQ(second.data.template_variables, first.data.template_variables);
    EXPECT_EQ(second.lora.rank_pattern, first.lora.rank_pattern);
    EXPECT_EQ(second.output_dir, first.output_dir);
    EXPECT_EQ(second.training.adam_epsilon, first.training.adam_epsilon);
  }
}

// The page lists each key of the table as a row "| `lora.r` | type | default | help |", and no
// other.
TEST(Recipe, DocumentationListsEveryKey) {
  const std::string page =
      read_text_file(std::filesystem::path(GRAFT_SOURCE_DIR) / "docs" / "recipe.md");
  size_t rows = 0;
  for (size_t at = page.find("\n| `"); at != std::string::npos; at = page.find("\n| `", at + 1)) {
    ++rows;
  }
  for (const RecipeKeyInfo& key : recipe_key_table()) {
    const std::string line =
        fmt::format("| `{}` | {} | {} | {} |", key.name, key.type, key.default_value, key.help);
    EXPECT_THAT(page, HasSubstr(line));
  }
  EXPECT_EQ(rows, recipe_key_table().size());
}

}  // namespace
}  // namespace graft
