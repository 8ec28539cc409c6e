// ShortConv: a short convolution over the rows of a text, for every channel by itself, between two gates.
//
// What is computed for channel c of a row, in this order of operations on every instruction set:
// - u = b * x, of this row; that of the rows before it is read from the cache, where they left theirs.
// - y = bias, or 0; then y = fma(weight[j], u of the row taps - 1 - j before this one, y) for j = 0 ... taps - 1. Rows
//   before the beginning of the text are left out.
// - y = gate * y.
// The rows before a row are its ancestors in the draft tree, and then the last committed ones. So its bits depend on
// its own text alone.
#pragma once

#include <cstdint>

#include "ops/pass_rows/pass_rows.h"

namespace edge_rt {

constexpr int kMaxTaps = 16;

// One sequence of a run of the op, checked; `window` is the number of taps.
struct ConvPass : PassRows {
  int64_t channels;
  const float* bcx;     // [rows][3][channels]: b, the gate, x
  const float* weight;  // [taps][channels]
  const float* bias;    // [channels], or nullptr
  float* cache;         // [capacity][channels]: u
  float* y;             // [rows][channels]
};

struct ShortConvKernels {
  // Computes rows [begin, end) of the pass, and writes their u to the cache. No row reads what another writes.
  void (*rows)(const ConvPass& pass, int64_t begin, int64_t end);
};

}  // namespace edge_rt
