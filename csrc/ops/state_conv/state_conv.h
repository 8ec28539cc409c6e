// StateConv: a convolution over the rows of a text, for every channel by itself, before SiLU. What it remembers of a
// text, the last rows, is a state: how slots are read and written, ops/recurrent/recurrent.h says.
//
// What is computed for channel c of a row, in this order of operations on every instruction set:
// - y = bias, or 0; then y = fma(weight[j], x of the row taps - 1 - j before this one, y) for j = 0 ... taps - 1. Rows
//   before the beginning of the text are left out.
// - y = y * sigmoid(y).
// The rows before a row are its ancestors in the pass, then the drafts that became text, then the rows of the slot that
// is read. So its bits depend on its own text alone.
//
// A slot:
//   rows         [taps - 1][channels]   of the text, the last one last; rows before its beginning are anything
//   transitions  [drafts][channels]     a draft's row
#pragma once

#include "ops/recurrent/recurrent.h"

namespace edge_rt {

constexpr int kMaxStateTaps = 16;

// One sequence of a run of the op, checked.
struct StateConvPass : StatePass {
  int64_t taps, channels;
  int64_t stride;       // numbers from a row of x to the next one
  const float* x;       // [rows][channels]
  const float* weight;  // [taps][channels]
  const float* bias;    // [channels], or nullptr
  float* y;             // [rows][channels]
};

struct StateConvKernels {
  // y of rows [begin, end), and what is left of them in the slot that is written.
  void (*rows)(const StateConvPass& pass, int64_t begin, int64_t end);
};

}  // namespace edge_rt
