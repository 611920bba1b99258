#pragma once
// Options as PJRT's C interface wants and gives them.

#include <pjrt_c_api.h>

#include <span>
#include <vector>

#include "pjrt/plugin.h"

namespace graft::pjrt {

// Borrows: `options` must outlive the result.
std::vector<PJRT_NamedValue> named_values(const Options& options);
Options read_named_values(std::span<const PJRT_NamedValue> values);

}  // namespace graft::pjrt
