#pragma once
// What a compiled program says of itself: its collectives, from XLA's
// HloModuleProto.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace graft::pjrt {

struct CollectiveCount {
  int64_t count = 0;  // in the program's text; those in a loop run once an iteration
  int64_t bytes = 0;  // of their results on one device, each counted once
};
// By kind: "all-gather", "all-reduce", "all-to-all", "collective-permute",
// "reduce-scatter".
using Collectives = std::map<std::string, CollectiveCount>;

// `format`: "hlo" or "hlo_with_config", as PJRT names them. Raises Error for
// anything else and for bytes that are no such message. Source:
// xla/service/hlo.proto, xla/xla_data.proto.
Collectives count_collectives(std::string_view format, std::string_view code);

}  // namespace graft::pjrt
