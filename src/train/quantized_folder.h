#pragma once
// Models written quantised, in bitsandbytes' 4-bit layout: folders that transformers and graft open
// without the original.

#include <filesystem>
#include <map>
#include <string>

#include "train/state.h"

namespace graft {

struct QuantizedFolder {
  int64_t modules = 0;
  int64_t packed_bytes = 0;             // of them
  std::map<std::string, double> error;  // |W - Q| / |W| by parameter
};

// Quantises one matrix after the other, so that besides the packed result one of them is in memory
// at a time; everything else is copied as it is stored. `options` must be nf4 in bitsandbytes'
// layout.
QuantizedFolder write_quantized_folder(const std::filesystem::path& folder,
                                       const std::filesystem::path& model,
                                       const QuantizationOptions& options);

}  // namespace graft
