// Names that people bring from PEFT, TRL and transformers, and what to write instead; and the
// nearest known key of a misspelt one.

#include <algorithm>
#include <array>

#include "train/recipe_keys.h"

namespace graft {
namespace {

constexpr std::string_view kNotBuilt = "it would change the result, and graft does not have it yet";
constexpr std::string_view kRunner = "graft has no such setting; remove it";

const ForeignKey kForeignKeys[] = {
    // PEFT's LoraConfig.
    {"lora.use_dora", {"false"}, kNotBuilt},
    {"lora.modules_to_save", {}, kNotBuilt},
    {"lora.bias", {"none"}, kNotBuilt},
    {"lora.lora_bias", {"false"}, kNotBuilt},
    {"lora.target_parameters", {}, kNotBuilt},
    {"lora.trainable_token_indices", {}, kNotBuilt},
    {"lora.fan_in_fan_out", {"false"}, kNotBuilt},
    {"lora.alora_invocation_tokens", {}, kNotBuilt},
    {"lora.init_lora_weights", {"true"}, kNotBuilt},
    {"lora.layers_pattern", {}, kNotBuilt},
    {"lora.layer_replication", {}, kNotBuilt},
    {"lora.ensure_weight_tying", {"false"}, kNotBuilt},
    {"lora.use_qalora", {"false"}, kNotBuilt},
    {"lora.qalora_group_size", {"16"}, kNotBuilt},
    {"lora.use_bdlora", {"false"}, kNotBuilt},
    {"lora.loftq_config", {}, kNotBuilt},
    {"lora.eva_config", {}, kNotBuilt},
    {"lora.corda_config", {}, kNotBuilt},
    {"lora.arrow_config", {}, kNotBuilt},
    {"lora.kasa_config", {}, kNotBuilt},
    {"lora.lora_ga_config", {}, kNotBuilt},
    {"lora.velora_config", {}, kNotBuilt},
    {"lora.monteclora_config", {}, kNotBuilt},
    {"lora.megatron_config", {}, kNotBuilt},
    {"lora.peft_type", {"LORA"}, "graft trains LoRA or the full model; see training.method"},
    {"lora.task_type", {"CAUSAL_LM"}, "graft trains causal language models"},
    {"lora.lora_r", {}, "write lora.r"},
    {"lora.rank", {}, "write lora.r"},
    {"lora.alpha", {}, "write lora.lora_alpha"},
    {"lora.dropout", {}, "write lora.lora_dropout"},
    // transformers' TrainingArguments and TRL's SFTConfig.
    {"training.per_device_train_batch_size", {}, "write training.per_device_batch_size"},
    {"training.per_device_eval_batch_size", {}, "write training.per_device_batch_size"},
    {"training.batch_size", {}, "write training.per_device_batch_size"},
    {"training.epochs", {}, "write training.num_train_epochs"},
    {"training.lr", {}, "write training.learning_rate"},
    {"training.bf16", {"false"}, "write compute.dtype: bf16"},
    {"training.fp16", {"false"}, "graft computes in f32 or bf16; see compute.dtype"},
    {"training.gradient_checkpointing", {"false"}, "write training.remat: full"},
    {"training.optim", {"adamw_torch", "adamw_torch_fused", "adamw"}, "graft's optimiser is AdamW"},
    {"training.label_smoothing_factor", {"0", "0.0"}, kNotBuilt},
    {"training.neftune_noise_alpha", {}, kNotBuilt},
    {"training.group_by_length", {"false"}, kNotBuilt},
    {"training.packing", {}, "write data.packing"},
    {"training.max_length", {}, "write data.max_length"},
    {"training.max_seq_length", {}, "write data.max_length"},
    {"training.assistant_only_loss", {}, "write data.train_on: assistant"},
    {"training.completion_only_loss", {}, "write data.train_on: completion"},
    {"training.output_dir", {}, "write output_dir at the top of the recipe"},
    {"training.report_to", {"none", "tensorboard"}, kRunner},
    {"training.save_strategy", {"steps"}, "write training.save_steps"},
    {"training.resume_from_checkpoint", {}, "write training.resume"},
    {"training.load_best_model_at_end", {"false"}, kNotBuilt},
    {"training.eval_strategy", {}, "write training.eval_steps"},
    {"training.lr_scheduler_kwargs", {}, kNotBuilt},
    {"training.max_seq_len", {}, "write data.max_length"},
    {"data.max_seq_length", {}, "write data.max_length"},
    {"data.dataset", {}, "write data.train"},
    {"data.path", {}, "write data.train"},
    {"model_name_or_path", {}, "write model"},
    {"dataset", {}, "write data: with train: below it"},
};

// Levenshtein's distance (deletions, insertions and substitutions cost 1).
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row[b.size()];
}

std::string_view last_part(std::string_view name) {
  const size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? name : name.substr(dot + 1);
}

}  // namespace

const ForeignKey* find_foreign_key(std::string_view name) {
  for (const ForeignKey& key : kForeignKeys) {
    if (key.name == name) return &key;
  }
  return nullptr;
}

bool is_neutral(const ForeignKey& key, const YamlNode& node) {
  if (node.is_null()) return true;
  if (node.kind != YamlNode::Kind::kScalar) return node.elements.empty() && node.members.empty();
  return std::find(key.neutral.begin(), key.neutral.end(), node.text) != key.neutral.end();
}

NearestKey nearest_recipe_key(std::string_view name) {
  name = name.substr(0, 64);
  const std::string_view word = last_part(name);
  // The right word in the wrong section is nearer than any spelling, and the beginning of a word
  // nearer than another word.
  const size_t alike = std::max<size_t>(3, name.size() / 3);
  size_t best = std::string_view::npos;
  std::string nearest;
  for (const RecipeKey& key : recipe_keys()) {
    const std::string_view known = last_part(key.name);
    size_t by_last = edit_distance(word, known) + 1;
    if (word.size() >= 4 && known.starts_with(word)) by_last = std::min<size_t>(by_last, 2);
    const bool short_word = word.size() <= by_last;
    const size_t distance = std::min(edit_distance(name, key.name), short_word ? 99 : by_last);
    if (distance < best) {
      best = distance;
      nearest = key.name;
    }
  }
  return {std::move(nearest), best <= alike};
}

}  // namespace graft
