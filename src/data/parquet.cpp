#include "data/parquet.h"

#include "base/error.h"
#include "text/rust_api.h"
#include "text/rust_call.h"

namespace graft {

std::string parquet_to_json_lines(const std::filesystem::path& path) {
  const std::string name = path.string();
  RustBytes lines, error;
  if (graft_parquet_to_jsonl(name.data(), name.size(), lines.get(), error.get()) != 0) {
    throw Error("not a readable Parquet file: " + std::string(error.view()), name,
                "fetch or write it again");
  }
  return std::string(lines.view());
}

}  // namespace graft
