// A pass over states as operators that have some run it on a GPU.
#pragma once

#include <algorithm>
#include <vector>

#include "gpu/pass_stream.h"
#include "ops/recurrent/recurrent_check.h"
#include "ops/recurrent/recurrent_gpu.h"

namespace edge_rt::gpu {

// Inputs that the host checks before every pass.
inline constexpr int kStatesOnHost[] = {kPast, kStateIndex, kSlot, kAdvance, kCertain, kParents, kSequenceRows};

// What the host says of a sequence, in memory of the device, and its slots.
struct DeviceState {
  const int32_t *advance, *parents;
  StateSlots slots;

  void give(StatePass* pass) const {
    pass->advance = advance;
    pass->parents = parents;
  }
};

// Copies what the host says of the checked sequences of a run, once for all operators of a pass. From now on it is
// checked before every replay, too, once for operators alike. Empty: the stream has the error.
//   op: its name in messages
std::vector<DeviceState> prepare_states(const ort::OpContext& context, const char* op, PassStream& stream,
                                        const StateRun& run);

// Rows of the largest pass that is usually recorded.
constexpr int64_t kMostRecorded = 16;

// Runs an operator with matrices as states, a sequence behind the other in the same scratch memory. That is for what
// rows need once, and for the states of drafts: those of the pass's trees, or if it is recorded of any tree of so many
// rows, so that all recorded passes share the memory.
//   enqueue: starts a pass
template <class Pass>
abi::Status* enqueue_matrices(ort::OpContext& context, const char* op, PassStream& stream, const StateRun& run,
                              const std::vector<Pass>& passes,
                              bool (*enqueue)(Launcher* launcher, const MatrixArgs<Pass>& args)) {
  int64_t rows = 0;
  for (const Pass& pass : passes) rows = std::max(rows, pass.rows);
  const Pass& any = passes.front();
  const int64_t levels = stream.is_recorded() ? most_levels(std::max(rows, kMostRecorded)) : run.levels;
  const int64_t states = levels * any.state_floats, prepared = rows * any.row_floats();
  ort::Scratch scratch;
  if (abi::Status* bad = context.scratch(static_cast<size_t>(states + prepared) * sizeof(float), &scratch)) return bad;
  // An error stays in the stream, where whoever runs the kernel finds it.
  const std::vector<DeviceState> of_sequences = prepare_states(context, op, stream, run);
  for (size_t i = 0; i < of_sequences.size(); ++i) {
    MatrixArgs<Pass> args{passes[i], of_sequences[i].slots, scratch.as<float>(), levels};
    of_sequences[i].give(&args.pass);
    args.pass.prepared = args.scratch + states;
    if (!enqueue(&stream, args)) break;
  }
  return nullptr;
}

}  // namespace edge_rt::gpu
