// The rows of a pass in the memory of a GPU, for operators with a cache.
#pragma once

#include <vector>

#include "gpu/pass_stream.h"
#include "ops/pass_rows/pass_rows_check.h"

namespace edge_rt::gpu {

// A sequence's map and parents in memory of the device, and the place where its past lies.
struct DeviceRows {
  const int32_t *past, *row_map, *parents;
};

// Copies what the host says of the checked sequences of a pass, once for all operators of it. From now on the pass is
// checked before every replay, too, once for operators alike. Empty: the stream has the error.
//   op: its name in messages; inputs, positions: of check_sequences
std::vector<DeviceRows> prepare_rows(const ort::OpContext& context, const char* op, const RowInputs& inputs,
                                     int64_t positions, PassStream& stream, const std::vector<PassRows>& sequences);
template <class Pass>
std::vector<DeviceRows> prepare_rows(const ort::OpContext& context, const char* op, const RowInputs& inputs,
                                     int64_t positions, PassStream& stream, const std::vector<Pass>& passes) {
  const std::vector<PassRows> sequences(passes.begin(), passes.end());
  return prepare_rows(context, op, inputs, positions, stream, sequences);
}

}  // namespace edge_rt::gpu
