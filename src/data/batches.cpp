#include "data/batches.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"
#include "data/order.h"

namespace graft {
namespace {

constexpr int64_t kLengthBucket = 64;
constexpr int64_t kTargetBucket = 128;

using Sequence = std::vector<const TokenizedExample*>;

int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

int64_t length_of(const Sequence& sequence) {
  int64_t length = 0;
  for (const TokenizedExample* example : sequence) length += example->size();
  return length;
}

struct Target {
  int32_t position, token;
};

// Writes one sequence into row `row` of a micro-batch; the pointers are at that row's first
// element.
void write_sequence(const Sequence& sequence, int64_t row, int64_t length, int32_t* ids,
                    int32_t* segments, int32_t* positions, std::vector<Target>& targets) {
  int64_t t = 0;
  int32_t segment = 0;
  for (const TokenizedExample* example : sequence) {
    ++segment;
    for (int64_t i = 0; i < example->size(); ++i, ++t) {
      const auto at = static_cast<size_t>(i);
      ids[t] = example->ids[at];
      segments[t] = segment;
      positions[t] = static_cast<int32_t>(i);
      if (i > 0 && example->trained[at] != 0) {
        targets.push_back({static_cast<int32_t>(row * length + t - 1), example->ids[at]});
      }
    }
  }
}

std::vector<size_t> with_trained_tokens(const std::vector<TokenizedExample>& examples) {
  std::vector<size_t> used;
  for (size_t i = 0; i < examples.size(); ++i) {
    if (examples[i].trained_count() > 0) used.push_back(i);
  }
  return used;
}

}  // namespace

Batch make_batch(std::span<const Sequence> sequences, int64_t batch_size, int64_t micro_batches,
                 int64_t least_length) {
  GRAFT_CHECK(static_cast<int64_t>(sequences.size()) <= batch_size * micro_batches);
  int64_t longest = std::max<int64_t>(least_length, 1);
  for (const Sequence& sequence : sequences) longest = std::max(longest, length_of(sequence));
  const int64_t length = round_up(longest, kLengthBucket);
  GRAFT_CHECK(batch_size <= std::numeric_limits<int32_t>::max() / length,
              "a micro-batch of {} x {} tokens", batch_size, length);

  Batch batch;
  const Shape shape = {micro_batches, batch_size, length};
  batch.input_ids = Tensor::zeros(DType::kS32, shape);
  batch.segment_ids = Tensor::zeros(DType::kS32, shape);
  batch.positions = Tensor::zeros(DType::kS32, shape);
  std::vector<std::vector<Target>> targets(static_cast<size_t>(micro_batches));
  size_t most_targets = 1;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const auto index = static_cast<int64_t>(i);
    const auto micro = static_cast<size_t>(index / batch_size);
    const int64_t offset = index * length;
    write_sequence(sequences[i], index % batch_size, length,
                   batch.input_ids.data<int32_t>() + offset,
                   batch.segment_ids.data<int32_t>() + offset,
                   batch.positions.data<int32_t>() + offset, targets[micro]);
    most_targets = std::max(most_targets, targets[micro].size());
    batch.tokens += length_of(sequences[i]);
    for (const TokenizedExample* example : sequences[i]) batch.lines.push_back(example->line);
  }

  const int64_t capacity = round_up(static_cast<int64_t>(most_targets), kTargetBucket);
  batch.target_positions = Tensor::zeros(DType::kS32, {micro_batches, capacity});
  batch.targets = Tensor::empty(DType::kS32, {micro_batches, capacity});
  std::fill_n(batch.targets.data<int32_t>(), batch.targets.elements(), -1);
  for (size_t micro = 0; micro < targets.size(); ++micro) {
    const int64_t offset = static_cast<int64_t>(micro) * capacity;
    int32_t* positions = batch.target_positions.data<int32_t>() + offset;
    int32_t* tokens = batch.targets.data<int32_t>() + offset;
    for (const Target& target : targets[micro]) {
      *positions++ = target.position;
      *tokens++ = target.token;
    }
    batch.trained_tokens += static_cast<int64_t>(targets[micro].size());
  }
  return batch;
}

BatchStream::BatchStream(std::shared_ptr<const std::vector<TokenizedExample>> examples,
                         BatchOptions options)
    : examples_(std::move(examples)), options_(options), used_(with_trained_tokens(*examples_)) {
  GRAFT_CHECK(options_.batch_size > 0 && options_.accumulation > 0);
  if (used_.empty()) throw Error("no row of the data has a trained token");
  lengths_.reserve(used_.size());
  for (const size_t index : used_) {
    lengths_.push_back((*examples_)[index].size());
    GRAFT_CHECK(lengths_.back() <= options_.max_length, "a row longer than max_length");
  }
  const int64_t longest =
      options_.packing ? options_.max_length : *std::max_element(lengths_.begin(), lengths_.end());
  if (options_.batch_size >
      std::numeric_limits<int32_t>::max() / round_up(longest, kLengthBucket)) {
    throw Error(fmt::format("a micro-batch of {} sequences of {} tokens is too large",
                            options_.batch_size, longest),
                "training.per_device_batch_size", "make it or data.max_length smaller");
  }
  load_epoch(0);
  sequences_per_epoch_ = static_cast<int64_t>(sequences_.size());
}

void BatchStream::load_epoch(int64_t epoch) {
  if (loaded_epoch_ == epoch) return;
  const std::vector<int64_t> order =
      epoch_order(rows_per_epoch(), options_.shuffle, options_.seed, epoch);
  if (options_.packing) {
    sequences_ = pack_rows(order, lengths_, options_.max_length);
  } else {
    sequences_.assign(order.size(), {});
    for (size_t i = 0; i < order.size(); ++i) sequences_[i] = {order[i]};
  }
  loaded_epoch_ = epoch;
}

Batch BatchStream::next() {
  const int64_t count = options_.batch_size * options_.accumulation;
  std::vector<Sequence> chosen;
  chosen.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    load_epoch(position_.epoch);
    Sequence sequence;
    for (const int64_t row : sequences_[static_cast<size_t>(position_.sequence)]) {
      sequence.push_back(&(*examples_)[used_[static_cast<size_t>(row)]]);
    }
    chosen.push_back(std::move(sequence));
    if (++position_.sequence == sequences_per_epoch_) position_ = {position_.epoch + 1, 0};
  }
  return make_batch(chosen, options_.batch_size, options_.accumulation,
                    options_.packing ? options_.max_length : 0);
}

void BatchStream::seek(DataPosition position) {
  if (position.epoch < 0 || position.sequence < 0 || position.sequence >= sequences_per_epoch_) {
    throw Error(fmt::format("no place {} in epoch {} of data with {} sequences an epoch",
                            position.sequence, position.epoch, sequences_per_epoch_),
                "data", "the data, data.max_length or data.packing is not what the run began with");
  }
  position_ = position;
}

double BatchStream::epochs_done() const {
  return static_cast<double>(position_.epoch) +
         static_cast<double>(position_.sequence) / static_cast<double>(sequences_per_epoch_);
}

EvaluationBatches::EvaluationBatches(std::shared_ptr<const std::vector<TokenizedExample>> examples,
                                     int64_t batch_size)
    : examples_(std::move(examples)),
      used_(with_trained_tokens(*examples_)),
      batch_size_(batch_size) {
  GRAFT_CHECK(batch_size_ > 0);
}

int64_t EvaluationBatches::size() const {
  return (static_cast<int64_t>(used_.size()) + batch_size_ - 1) / batch_size_;
}

Batch EvaluationBatches::get(int64_t index) const {
  const auto begin = static_cast<size_t>(index * batch_size_);
  GRAFT_CHECK(index >= 0 && begin < used_.size());
  const size_t end = std::min(begin + static_cast<size_t>(batch_size_), used_.size());
  std::vector<Sequence> sequences;
  for (size_t i = begin; i < end; ++i) sequences.push_back({&(*examples_)[used_[i]]});
  return make_batch(sequences, batch_size_, 1);
}

}  // namespace graft
