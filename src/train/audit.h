#pragma once
// The audit before step 0: what will be trained, on what, and why that is right; or a refusal.
//
// Every check has a name, a status and a message that a person can act on. A run with a refused
// check does not start. The audit is printed, and saved as audit.json.
//
//   Audit audit;
//   audit_targets(audit, plan.modules_per_target, plan.unmatched_targets);
//   audit_data(audit, train, {&text, embedding_rows});   // train/data_audit.h
//   audit_output(audit, recipe.output_dir, bytes_to_write);
//   write_file_atomically(output / "audit.json", audit_json(audit));
//   log_line(format_audit(audit, false));
//   refuse_unless_ok(audit);

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace graft {

enum class AuditStatus : uint8_t { kOk, kWarning, kRefused };
std::string_view audit_status_name(AuditStatus status);  // "ok", "warning", "refused"

struct AuditCheck {
  std::string name;  // "trained tokens"
  AuditStatus status = AuditStatus::kOk;
  std::string message;
};

// One row of the data as the model will see it; trained tokens stand between the marks.
inline constexpr std::string_view kTrainedBegin = "⟦";
inline constexpr std::string_view kTrainedEnd = "⟧";
struct AuditExample {
  int64_t line = 0;
  int64_t tokens = 0;
  int64_t trained_tokens = 0;
  std::string text;
};

// An example's text, line by line under its heading. Control characters do not reach the terminal.
std::string format_example(const AuditExample& example, bool color);

struct Audit {
  std::vector<AuditCheck> checks;
  int64_t trainable_parameters = 0;
  int64_t total_parameters = 0;            // the base model's and the adapter's
  std::map<std::string, int64_t> targets;  // target to the number of modules with an adapter
  std::map<std::string, int64_t> data;     // "rows", "tokens", "trained_tokens", ...
  std::vector<AuditExample> examples;
  std::string quantization;  // what is quantised, one JSON object; empty: nothing
  std::string plan = "{}";   // the memory plan, one JSON object

  void add(std::string name, AuditStatus status, std::string message);
  // A refusal out of an error that a loader raised.
  void refuse(std::string name, const Error& error);
  bool ok() const;  // nothing is refused
};

// `targets`: target to the number of modules that got an adapter. None at all, or a target that
// matched nothing, is a refusal; a pattern of rank_pattern or alpha_pattern that matched nothing is
// a warning.
void audit_targets(Audit& audit, const std::map<std::string, int64_t>& targets,
                   const std::vector<std::string>& unmatched_targets = {},
                   const std::vector<std::string>& unmatched_patterns = {});

// Rehearses writing: makes the folder, writes a file into it, takes it away again; and compares the
// disk's free space with what the run will write.
void audit_output(Audit& audit, const std::filesystem::path& folder, int64_t bytes_to_write);

std::string audit_json(const Audit& audit);
// For a person: one line a check, the counts, the examples. `color`: for a terminal.
std::string format_audit(const Audit& audit, bool color);
// Raises Error with the refused checks' messages.
void refuse_unless_ok(const Audit& audit);

}  // namespace graft
