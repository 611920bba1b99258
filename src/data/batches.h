#pragma once
// Batches: the arrays that one step of training or evaluation takes.
//
// A training step takes M micro-batches of B sequences. A sequence is one row or, with packing,
// several, told apart by segment_ids. Batches follow one another without end: one that an epoch
// cannot fill goes on with the next epoch's rows, so none is lost. Shapes are kept few: S is the
// longest sequence rounded up to 64 (packing: max_length rounded up), N the largest count of
// targets rounded up to 128.
//
//   BatchStream stream(examples, {.batch_size = 4, .accumulation = 2, .max_length = 512, .seed =
//   7}); Batch batch = stream.next(); DataPosition place = stream.position();   // save it;
//   stream.seek(place) continues exactly here

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/tensor.h"
#include "data/example.h"

namespace graft {

struct Batch {
  Tensor input_ids;    // s32 [M, B, S], 0 where padded
  Tensor segment_ids;  // s32 [M, B, S], from 1 in each sequence; 0 is padding
  Tensor positions;    // s32 [M, B, S], from 0 in each segment; 0 where padded
  // Position t of row b predicts token t + 1: its flat index b * S + t in its micro-batch, and that
  // token.
  Tensor target_positions;     // s32 [M, N], 0 where padded
  Tensor targets;              // s32 [M, N], -1 where padded
  int64_t tokens = 0;          // without padding
  int64_t trained_tokens = 0;  // targets without padding
  std::vector<int64_t> lines;  // of the rows in it, for messages

  int64_t micro_batches() const { return input_ids.shape()[0]; }
  int64_t batch_size() const { return input_ids.shape()[1]; }
  int64_t sequence_length() const { return input_ids.shape()[2]; }
  int64_t target_capacity() const { return targets.shape()[1]; }
};

struct BatchOptions {
  int64_t batch_size = 1;    // B
  int64_t accumulation = 1;  // M
  int64_t max_length = 1024;
  bool packing = false;
  bool shuffle = true;
  uint64_t seed = 0;
};

// A place between two sequences of the endless order.
struct DataPosition {
  int64_t epoch = 0;
  int64_t sequence = 0;  // of that epoch: the next one to be used
  friend bool operator==(const DataPosition&, const DataPosition&) = default;
};

class BatchStream {
 public:
  // Uses the examples that have a trained token; there is at least one, none longer than
  // max_length.
  BatchStream(std::shared_ptr<const std::vector<TokenizedExample>> examples, BatchOptions options);

  Batch next();
  const DataPosition& position() const { return position_; }
  void seek(DataPosition position);  // raises Error if there is no such place

  int64_t rows_per_epoch() const { return static_cast<int64_t>(used_.size()); }
  int64_t sequences_per_epoch() const { return sequences_per_epoch_; }  // rows, or packs
  double epochs_done() const;                                           // at position()

 private:
  void load_epoch(int64_t epoch);

  std::shared_ptr<const std::vector<TokenizedExample>> examples_;
  BatchOptions options_;
  std::vector<size_t> used_;      // indices into *examples_
  std::vector<int64_t> lengths_;  // of the used ones
  int64_t sequences_per_epoch_ = 0;
  int64_t loaded_epoch_ = -1;
  std::vector<std::vector<int64_t>> sequences_;  // of the loaded epoch: indices into used_
  DataPosition position_;
};

// The examples in their own order, batch_size at a time, one micro-batch each; the last batch is
// filled with empty sequences. Examples without a trained token are left out.
class EvaluationBatches {
 public:
  EvaluationBatches(std::shared_ptr<const std::vector<TokenizedExample>> examples,
                    int64_t batch_size);
  int64_t size() const;
  Batch get(int64_t index) const;

 private:
  std::shared_ptr<const std::vector<TokenizedExample>> examples_;
  std::vector<size_t> used_;
  int64_t batch_size_;
};

// The arrays for sequences[m * batch_size + b], each a list of examples. Missing ones at the end
// are empty. least_length: S is at least this.
Batch make_batch(std::span<const std::vector<const TokenizedExample*>> sequences,
                 int64_t batch_size, int64_t micro_batches, int64_t least_length = 0);

}  // namespace graft
