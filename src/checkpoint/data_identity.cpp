#include "checkpoint/data_identity.h"

#include "formats/sha256.h"

namespace graft {

DataIdentity data_identity(const std::vector<TokenizedExample>& examples, const BatchStream& stream,
                           const BatchOptions& options) {
  Sha256 hash;
  for (const TokenizedExample& example : examples) {
    const int64_t size = example.size();  // so that rows cannot run into each other
    hash.update(std::as_bytes(std::span(&size, 1)));
    hash.update(std::as_bytes(std::span(example.ids)));
    hash.update(std::as_bytes(std::span(example.trained)));
  }
  return {hash.hex(), stream.rows_per_epoch(), stream.sequences_per_epoch(), options.packing,
          options.shuffle};
}

}  // namespace graft
