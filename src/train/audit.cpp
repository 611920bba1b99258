#include "train/audit.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/file.h"

namespace graft {
namespace {

std::string with_thousands(int64_t n) {
  std::string digits = fmt::format("{}", n);
  for (auto at = static_cast<int>(digits.size()) - 3; at > (n < 0 ? 1 : 0); at -= 3) {
    digits.insert(static_cast<size_t>(at), ",");
  }
  return digits;
}

std::string mark(AuditStatus status, bool color) {
  const std::string_view name = audit_status_name(status);
  if (!color) return fmt::format("{:<8}", name);
  const int code = status == AuditStatus::kOk ? 32 : status == AuditStatus::kWarning ? 33 : 31;
  return fmt::format("\x1b[{}m{:<8}\x1b[0m", code, name);
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

}  // namespace

std::string format_example(const AuditExample& example, bool color) {
  // Line ends that close the row would only be blank lines here.
  const std::string_view shown(example.text.data(), example.text.find_last_not_of('\n') + 1);
  std::string text;
  for (const char c : shown) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') text += "\n    ";
    else if (byte < 0x20 || byte == 0x7f) text += fmt::format("\\x{:02x}", byte);
    else text += c;
  }
  if (color) {
    replace_all(text, kTrainedBegin, "\x1b[32m⟦");
    replace_all(text, kTrainedEnd, "⟧\x1b[0m");
  }
  return fmt::format("  row at line {}: {} tokens, {} trained (between {} and {})\n    {}\n",
                     example.line, example.tokens, example.trained_tokens, kTrainedBegin,
                     kTrainedEnd, text);
}

std::string_view audit_status_name(AuditStatus status) {
  switch (status) {
    case AuditStatus::kOk: return "ok";
    case AuditStatus::kWarning: return "warning";
    case AuditStatus::kRefused: return "refused";
  }
  return "";
}

void Audit::add(std::string name, AuditStatus status, std::string message) {
  checks.push_back({std::move(name), status, std::move(message)});
}

void Audit::refuse(std::string name, const Error& error) {
  add(std::move(name), AuditStatus::kRefused, error.what());
}

bool Audit::ok() const {
  return std::none_of(checks.begin(), checks.end(), [](const AuditCheck& check) {
    return check.status == AuditStatus::kRefused;
  });
}

void audit_targets(Audit& audit, const std::map<std::string, int64_t>& targets,
                   const std::vector<std::string>& unmatched_targets,
                   const std::vector<std::string>& unmatched_patterns) {
  audit.targets = targets;
  for (const std::string& target : unmatched_targets) {
    audit.add("targets", AuditStatus::kRefused,
              fmt::format("the target {} matched no module; correct or remove it in "
                          "lora.target_modules (graft inspect lists the modules)",
                          target));
  }
  for (const std::string& pattern : unmatched_patterns) {
    audit.add("patterns", AuditStatus::kWarning, pattern + " matched no adapter");
  }
  int64_t modules = 0;
  std::string counts;
  for (const auto& [target, count] : targets) {
    modules += count;
    counts += fmt::format("{}{} x {}", counts.empty() ? "" : ", ", target, count);
  }
  if (modules == 0) {
    audit.add("targets", AuditStatus::kRefused,
              "no module got an adapter, so nothing would be trained; check lora.target_modules "
              "(a single text is a regular expression for the whole name; a list, as in "
              "[q_proj], holds endings), lora.exclude_modules and lora.layers_to_transform");
  } else if (unmatched_targets.empty()) {
    audit.add("targets", AuditStatus::kOk, fmt::format("{} adapters: {}", modules, counts));
  }
}

void audit_output(Audit& audit, const std::filesystem::path& folder, int64_t bytes_to_write) {
  const std::string name = "output folder";
  try {
    make_directories(folder);
    const std::filesystem::path rehearsal = folder / ".rehearsal";
    write_file_atomically(rehearsal, "graft can write here\n");
    std::error_code removal;
    std::filesystem::remove(rehearsal, removal);
  } catch (const Error& e) {
    audit.add(name, AuditStatus::kRefused,
              fmt::format("{}; choose another output_dir or change its permissions", e.what()));
    return;
  }
  struct statvfs disk {};
  if (::statvfs(folder.c_str(), &disk) == 0) {
    const auto available =
        static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize);
    if (available < bytes_to_write) {
      audit.add(
          name, AuditStatus::kRefused,
          fmt::format("{}: the run writes {:.1f} MB and the disk has {:.1f} MB left; make room or "
                      "choose another output_dir",
                      folder.string(), static_cast<double>(bytes_to_write) / 1e6,
                      static_cast<double>(available) / 1e6));
      return;
    }
  }
  audit.add(name, AuditStatus::kOk, fmt::format("{} can be written", folder.string()));
}

std::string audit_json(const Audit& audit) {
  nlohmann::ordered_json checks = nlohmann::ordered_json::array();
  for (const AuditCheck& check : audit.checks) {
    checks.push_back({{"name", check.name},
                      {"status", audit_status_name(check.status)},
                      {"message", check.message}});
  }
  nlohmann::ordered_json examples = nlohmann::ordered_json::array();
  for (const AuditExample& example : audit.examples) {
    examples.push_back({{"line", example.line},
                        {"tokens", example.tokens},
                        {"trained_tokens", example.trained_tokens},
                        {"text", example.text}});
  }
  nlohmann::ordered_json document = {
      {"ok", audit.ok()},
      {"checks", std::move(checks)},
      {"trainable_parameters", audit.trainable_parameters},
      {"total_parameters", audit.total_parameters},
      {"targets", audit.targets},
      {"data", audit.data},
      {"examples", std::move(examples)},
      {"plan", nlohmann::ordered_json::parse(audit.plan)},
  };
  if (!audit.quantization.empty()) {
    document["quantization"] = nlohmann::ordered_json::parse(audit.quantization);
  }
  return document.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

std::string format_audit(const Audit& audit, bool color) {
  std::string text = "audit\n";
  for (const AuditCheck& check : audit.checks) {
    text += fmt::format("  {} {}: {}\n", mark(check.status, color), check.name, check.message);
  }
  if (audit.total_parameters > 0) {
    const double share = 100.0 * static_cast<double>(audit.trainable_parameters) /
                         static_cast<double>(audit.total_parameters);
    text += fmt::format("  parameters: {} trained of {} ({:.3g}%)\n",
                        with_thousands(audit.trainable_parameters),
                        with_thousands(audit.total_parameters), share);
  }
  for (const auto& [name, count] : audit.data) {
    text += fmt::format("  {}: {}\n", name, with_thousands(count));
  }
  for (const AuditExample& example : audit.examples) text += format_example(example, color);
  text.pop_back();
  return text;
}

void refuse_unless_ok(const Audit& audit) {
  std::string problems;
  for (const AuditCheck& check : audit.checks) {
    if (check.status != AuditStatus::kRefused) continue;
    problems += fmt::format("{}{}: {}", problems.empty() ? "" : "; ", check.name, check.message);
  }
  if (!problems.empty()) throw Error("the audit refuses this run: " + problems);
}

}  // namespace graft
