// StateConv on a GPU: a thread a channel of a row. See state_conv.h for what is computed.
#include "gpu/cuda/lane_math.h"
#include "ops/state_conv/state_conv_gpu.h"

namespace edge_rt::gpu {
namespace {

#include "ops/recurrent/recurrent_cuda.inl"

// The row before the one at `place`: rows of the pass count from 0, those before it from -1 downwards. nullptr: the
// text begins behind it.
EDGE_RT_DEVICE const float* conv_row_before(const StateConvPass& pass, int64_t* place) {
  *place = *place > 0 ? pass.parents[*place] : *place - 1;
  if (*place >= 0) return pass.x + *place * pass.stride;
  const int64_t back = -*place;  // 1: the last row before the pass
  if (back > pass.past) return nullptr;
  if (back <= pass.advance_count) return pass.accepted(pass.advance_count - back);
  return pass.read + (pass.taps - 1 - (back - pass.advance_count)) * pass.channels;
}

}  // namespace

// Grid: rows and, behind them, what is left of the text in the slot; and stretches of as many channels as there are
// threads.
EDGE_RT_KERNEL(state_conv_rows, kStateConvThreads, StateConvArgs) {
  EDGE_RT_SHARED const float* rows[kMaxStateTaps];  // the last one last
  EDGE_RT_SHARED int64_t shared_first;
  const StateConvPass pass = pass_now(args.pass, args.slots);
  const int64_t row = block_x(), channels = pass.channels, c = int64_t{block_y()} * kStateConvThreads + thread();
  const bool is_end = row == pass.rows;
  if (thread() == 0) {
    // Of a row: itself and those before it. Of the slot: those before the first draft, or the row behind the last one.
    int64_t first = pass.taps - 1, place = is_end ? pass.certain : row;
    const float* found = nullptr;
    if (!is_end) rows[first] = pass.x + row * pass.stride;
    while (first > 0) {
      if (is_end && place > 0) {
        --place;  // certain rows follow one another
        found = pass.x + place * pass.stride;
      } else {
        found = conv_row_before(pass, &place);
      }
      if (found == nullptr) break;
      rows[--first] = found;
    }
    shared_first = first;
  }
  barrier();
  if (c >= channels) return;
  const int64_t first = shared_first;
  if (is_end) {
    for (int64_t i = first; i < pass.taps - 1; ++i) pass.written[i * channels + c] = rows[i][c];
    return;
  }
  float sum = pass.bias != nullptr ? pass.bias[c] : 0.0f;
  for (int64_t i = first; i < pass.taps; ++i) sum = fma(pass.weight[i * channels + c], rows[i][c], sum);
  pass.y[row * channels + c] = vf_silu(sum);
  if (row >= pass.certain) pass.transition(pass.written, row - pass.certain)[c] = rows[pass.taps - 1][c];
}

}  // namespace edge_rt::gpu
