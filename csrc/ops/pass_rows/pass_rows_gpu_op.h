// The rows of a pass in the memory of a GPU, for operators with a cache.
#pragma once

#include "gpu/pass_stream.h"
#include "ops/pass_rows/pass_rows_check.h"

namespace edge_rt::gpu {

// Fails if a pass has several sequences: one has a pass here.
abi::Status* check_one_sequence(const ort::OpContext& context, size_t sequences);

// Gives a checked pass of one sequence the memory of the device that all operators of a pass share: its map and its
// parents, and at the place that is returned its past. From now on it is checked before every replay, too, once for
// operators alike. nullptr: the stream has the error.
//   op: its name in messages; inputs, positions: of check_sequences
const int32_t* prepare_rows(const ort::OpContext& context, const char* op, const RowInputs& inputs, int64_t positions,
                            PassStream& stream, PassRows* pass);

}  // namespace edge_rt::gpu
