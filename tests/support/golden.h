#pragma once
// Golden folders of tiny models: batches made from a reference file, comparison norm-wise per
// tensor.

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "data/batches.h"
#include "formats/safetensors.h"

namespace graft::testing {

// Euclidean distance of two f32 tensors, relative to the reference's norm.
inline double relative_distance(const Tensor& found, const Tensor& reference) {
  EXPECT_EQ(found.elements(), reference.elements());
  double difference = 0, norm = 0;
  for (int64_t i = 0; i < std::min(found.elements(), reference.elements()); ++i) {
    const double r = reference.data<float>()[i], d = found.data<float>()[i] - r;
    difference += d * d;
    norm += r * r;
  }
  return std::sqrt(difference) / std::max(std::sqrt(norm), 1e-30);
}

inline void expect_close(const Tensor& found, const Tensor& reference, double tolerance,
                         const std::string& what) {
  EXPECT_LE(relative_distance(found, reference), tolerance) << what;
}

inline void expect_close(double found, double reference, double tolerance,
                         const std::string& what) {
  EXPECT_LE(std::abs(found - reference), tolerance * std::abs(reference))
      << what << ": " << found << ", the reference says " << reference;
}

inline double first_value(const SafetensorsFile& file, const std::string& name) {
  return static_cast<double>(file.tensor(name).data<float>()[0]);
}

// The rows of a reference file (input_ids, labels; lengths if the rows are padded) as examples.
inline std::vector<TokenizedExample> golden_examples(const SafetensorsFile& file) {
  const Tensor ids = file.tensor("input_ids"), labels = file.tensor("labels");
  const int64_t rows = ids.shape()[0], length = ids.shape()[1];
  std::vector<TokenizedExample> examples(static_cast<size_t>(rows));
  for (int64_t b = 0; b < rows; ++b) {
    TokenizedExample& e = examples[static_cast<size_t>(b)];
    e.line = b + 1;
    const int64_t real =
        file.contains("lengths") ? file.tensor("lengths").data<int32_t>()[b] : length;
    for (int64_t t = 0; t < real; ++t) {
      e.ids.push_back(ids.data<int32_t>()[b * length + t]);
      e.trained.push_back(t > 0 && labels.data<int32_t>()[b * length + t] != -100);
    }
  }
  return examples;
}

// All rows in one micro-batch, or one row a micro-batch.
inline Batch golden_batch(const std::vector<TokenizedExample>& examples,
                          bool one_row_each = false) {
  std::vector<std::vector<const TokenizedExample*>> sequences;
  for (const TokenizedExample& e : examples) sequences.push_back({&e});
  const auto rows = static_cast<int64_t>(examples.size());
  return make_batch(sequences, one_row_each ? 1 : rows, one_row_each ? rows : 1);
}

}  // namespace graft::testing
