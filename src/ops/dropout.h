#pragma once
// Dropout from counter-based random numbers: the same mask on any executor, thread count or mesh.

#include "ir/graph.h"

namespace graft {

// Keeps element e of a row if its u32 >= floor(p 2^32) and scales by 1 / (1 - p).
// Philox4x32-10 with key = seed; counter = (e / 4 within the row, global row, step, name hash);
// lane = e mod 4; a row is one sequence of the batch: [S x features].
//   operands: x [B, S, d], seed u32 [2], first_row u32 [] (global index of row 0), step u32 [],
//             name_hash u32 [] (FNV-1a of the module's full name)
//   attribute: p f64 in [0, 1)
// Its gradient is dropout of the cotangent with the same counters.
extern const Op kDropout;

struct DropoutCounters {
  Value seed, first_row, step, name_hash;
};
Value dropout(Value x, double p, const DropoutCounters& counters);

}  // namespace graft
