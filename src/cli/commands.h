#pragma once
// The commands of the graft program: one file each, src/cli/<command>.cpp.
//
// A command adds itself to the parser and runs from the callback that it sets there. It reports
// through exceptions only: graft::Error for what a user can mend (exit code 1),
// CLI::ValidationError for a wrong command line (exit code 2); main.cpp turns both into the last
// line of stderr.
//
//   void add_merge_command(CLI::App& app) {
//     struct Options { std::string model, adapter, output; };
//     auto options = std::make_shared<Options>();
//     CLI::App* command = app.add_subcommand("merge", "Fold an adapter into its base model");
//     command->add_option("--model", options->model, "Folder or .gguf of the base")->required();
//     ...
//     command->callback([options] { merge(*options); });
//   }
//
// stdout carries results. With --json it carries one JSON value and nothing else (print_json);
// everything for a person goes to stderr (base/log.h).

#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace CLI {
class App;
}

namespace graft {

void add_train_command(CLI::App& app);
void add_logits_command(CLI::App& app);
void add_eval_command(CLI::App& app);
void add_generate_command(CLI::App& app);
void add_chat_command(CLI::App& app);
void add_tokenize_command(CLI::App& app);
void add_plan_command(CLI::App& app);
void add_compile_ahead_command(CLI::App& app);  // hidden: what plan starts
void add_data_command(CLI::App& app);
void add_merge_command(CLI::App& app);
void add_export_command(CLI::App& app);
void add_plugins_command(CLI::App& app);
void add_inspect_command(CLI::App& app);
void add_checkpoint_command(CLI::App& app);
void add_quantize_command(CLI::App& app);

// Writes to stdout, and raises Error if it cannot (a full disk, a closed pipe).
void print_text(std::string_view text);
// One JSON value, on one line. Strings that are not UTF-8 are written with replacement characters.
void print_json(const nlohmann::json& value);

}  // namespace graft
