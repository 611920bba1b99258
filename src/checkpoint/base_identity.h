#pragma once
// Which base model a run was trained on: the names, shapes and contents of its tensors, so that a
// checkpoint is never continued on, or merged into, another one.
//
//   BaseIdentityTask task("models/llama");        // reads the files in the background
//   const BaseIdentity& identity = task.get();    // waits
//   for (const std::string& line : base_differences(expected, identity)) ...
//
// Large files are read once: their checksums are kept in the user's cache folder, by path, size and
// time of change.

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <future>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/tensor.h"

namespace graft {

struct BaseTensorIdentity {
  std::string type;  // as the file names it
  Shape shape;
  std::string sha256;  // of its bytes; empty: not computed
  friend bool operator==(const BaseTensorIdentity&, const BaseTensorIdentity&) = default;
};

struct BaseIdentity {
  std::string path;
  std::string header_sha256;  // of the files' headers, one after the other
  std::string config_sha256;  // of config.json; empty for a GGUF, whose header is all
  std::map<std::string, BaseTensorIdentity> tensors;  // by their names in the files
};

// Names and shapes alone, which is quick.
BaseIdentity base_outline(const std::filesystem::path& model);
// With the contents. `cancelled` is looked at now and then; once true, Error is raised.
BaseIdentity base_identity(const std::filesystem::path& model, const std::atomic<bool>& cancelled);

std::string format_base_identity(const BaseIdentity& identity);  // JSON
BaseIdentity parse_base_identity(std::string_view text, const std::string& name);

// What differs, each as a sentence; empty where both are the same model. A header that differs in
// nothing but what surrounds the tensors is no difference; contents are compared where both know
// them.
std::vector<std::string> base_differences(const BaseIdentity& expected, const BaseIdentity& found);

// Computes an identity in a thread of low priority. Ending it early cancels the reading.
class BaseIdentityTask {
 public:
  explicit BaseIdentityTask(std::filesystem::path model);
  ~BaseIdentityTask();
  BaseIdentityTask(const BaseIdentityTask&) = delete;
  BaseIdentityTask& operator=(const BaseIdentityTask&) = delete;

  bool ready() const;
  const BaseIdentity& get() const;  // waits; raises what the reading raised

 private:
  std::atomic<bool> cancelled_ = false;
  std::shared_future<BaseIdentity> result_;
};

// Lets everything else run before the calling thread.
void lower_thread_priority();

}  // namespace graft
