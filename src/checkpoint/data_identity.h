#pragma once
// Which rows a run trains on, by content: a checkpoint's place in the data means nothing elsewhere.

#include "checkpoint/manifest.h"
#include "data/batches.h"
#include "data/example.h"

namespace graft {

// `examples` are those that the stream was made of.
DataIdentity data_identity(const std::vector<TokenizedExample>& examples, const BatchStream& stream,
                           const BatchOptions& options);

}  // namespace graft
