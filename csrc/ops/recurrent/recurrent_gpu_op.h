// A pass over states as operators that have some run it on a GPU.
#pragma once

#include <algorithm>

#include "gpu/pass_stream.h"
#include "ops/recurrent/recurrent_check.h"
#include "ops/recurrent/recurrent_gpu.h"

namespace edge_rt::gpu {

// Inputs that the host checks before every pass.
inline constexpr int kStatesOnHost[] = {kPast, kStateIndex, kSlot, kAdvance, kCertain, kParents, kSequenceRows};

// Gives a checked pass of one sequence the memory of the device that all operators of a pass share. From now on it is
// checked before every replay, too, once for operators alike. False: the stream has the error.
//   op: its name in messages
bool prepare_states(const ort::OpContext& context, const char* op, PassStream& stream, StatePass* pass,
                    StateSlots* slots);

// Rows of the largest pass that is usually recorded.
constexpr int64_t kMostRecorded = 16;

// Takes scratch memory for what rows need once, and for the states of drafts: those of the pass's tree, or if it is
// recorded of any tree of so many rows, so that all recorded passes share the memory.
template <class Pass>
abi::Status* take_matrix_scratch(ort::OpContext& context, const StateRun& run, const PassStream& stream,
                                 ort::Scratch* scratch, MatrixArgs<Pass>* args) {
  Pass& pass = args->pass;
  args->levels = stream.is_recorded() ? most_levels(std::max(pass.rows, kMostRecorded)) : run.levels;
  const int64_t states = args->levels * pass.state_floats, prepared = pass.rows * pass.row_floats();
  if (abi::Status* bad = context.scratch(static_cast<size_t>(states + prepared) * sizeof(float), scratch)) return bad;
  args->scratch = scratch->template as<float>();
  pass.prepared = args->scratch + states;
  return nullptr;
}

}  // namespace edge_rt::gpu
