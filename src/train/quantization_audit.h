#pragma once
// What a run says of a packed base: which modules are quantised, how many, in what scheme, with
// what error, and which matrices (embedding, head) stay apart.

#include <map>
#include <string>

#include "train/audit.h"
#include "train/state.h"

namespace graft {

// Bytes of the base's parameters by how they are held: "nf4 block 64", "Q8_0", "f32".
std::map<std::string, int64_t> bytes_by_scheme(const ModelState& state);

// Adds the check "quantization" and Audit::quantization; nothing where no weight is packed.
void audit_quantization(Audit& audit, const ModelState& state);

}  // namespace graft
