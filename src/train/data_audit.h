#pragma once
// The part of the audit that needs only the data and what the model's path says about text.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "train/audit.h"

namespace graft {

// What a model says about token ids. `text` is null where the model has no tokenizer.
struct TokenFacts {
  const TextModel* text = nullptr;
  int64_t embedding_rows = 0;
};

// Adds the checks of the training data, its statistics, and three examples (first, middle, last).
void audit_data(Audit& audit, const Dataset& train, const TokenFacts& facts);

// A row as text, or as ids where there is no tokenizer, with the trained stretches marked.
AuditExample render_example(const TokenizedExample& example, const TextModel* text);

}  // namespace graft
