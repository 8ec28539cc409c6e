// What a pass over states is in the memory of a GPU; recurrent_cuda.inl reads it.
//
// A recorded pass is started again with other numbers of the host: whatever depends on them is read there.
#pragma once

#include "gpu/launcher.h"
#include "ops/recurrent/recurrent.h"

namespace edge_rt::gpu {

// In device memory, behind it the steps of all rows.
struct StateHead {
  int32_t past, certain, advance_count, index, slot;

  StateStep* steps() { return reinterpret_cast<StateStep*>(this + 1); }
  const StateStep* steps() const { return reinterpret_cast<const StateStep*>(this + 1); }
};

constexpr int kHeadThreads = 128;

// Numbers of the host as StateNumbers (recurrent_check.h) has them, of one sequence, in device memory.
struct StateHeadArgs {
  const int32_t *past, *index, *slot, *advance, *certain, *parents;
  int64_t most, rows;
  StateHead* head;
};

inline size_t state_head_bytes(int64_t rows) {
  return sizeof(StateHead) + sizeof(StateStep) * static_cast<size_t>(rows);
}

// Writes what follows from checked numbers. False: the launcher could not.
bool enqueue_state_head(Launcher* launcher, const StateHeadArgs& args);

// Where the slots of a pass lie, and what the host says of it.
struct StateSlots {
  const StateHead* head;
  float *first, *second;  // the slots of state 0
  int64_t stride;         // floats from a state to the next one
};

// A pass of an operator with matrices as states. The pass itself lacks what the head has; its other pointers are of
// device memory. `scratch`: `levels` states.
template <class Pass>
struct MatrixArgs {
  Pass pass;
  StateSlots slots;
  float* scratch;
  int64_t levels;
};

// The case of kernels of columns: a column's numbers are 128 at most, 256 at most, or more.
inline uint32_t matrix_choices(const MatrixShape& shape) {
  return uint32_t{1} << (shape.key_dim <= 128 ? 0 : shape.key_dim <= 256 ? 1 : 2);
}

// States that drafts of so many rows take at most: one that is not the last to follow its parent takes a new one.
inline int64_t most_levels(int64_t rows) { return (rows + 1) / 2; }

}  // namespace edge_rt::gpu
