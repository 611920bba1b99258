#pragma once
// Parquet files, through the Rust crate of that name.

#include <filesystem>
#include <string>

namespace graft {

// The rows as JSON objects, one a line; lists and structs keep their shape, absent values are null.
// Raises Error naming the file.
std::string parquet_to_json_lines(const std::filesystem::path& path);

}  // namespace graft
