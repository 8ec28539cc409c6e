#version 460
// StateConv: a thread a channel of a row; state_conv.h says what is computed. Grid: rows and, behind them, what is left
// of the text in the slot; and stretches of as many channels as there are threads.
#define THREADS 128
#include "gpu/vulkan/kernel.glsl"
#include "gpu/vulkan/lane_math.glsl"
#include "ops/recurrent/vulkan/recurrent.glsl"

const int MOST_TAPS = 16;

struct StateConvPass {
  STATE_PASS
  Long taps, channels, stride;
  Floats x, weight, bias, y;
};
struct StateConvArgs {
  StateConvPass pass;
  StateSlots slots;
};
KERNEL(StateConvArgs)

#include "ops/recurrent/vulkan/recurrent_pass.glsl"

shared uvec2 rows_of_taps[MOST_TAPS];  // the last one last
shared int first_tap;

uvec2 row_of_pass(int row) { return advanced(uvec2(args.pass.x), uint(row), 4u * uint(low(args.pass.stride))); }

// The row before the one at `place`: rows of the pass count from 0, those before it from -1 downwards. Null: the text
// begins behind it.
uvec2 conv_row_before(inout int place) {
  StateHead head = args.slots.head;
  Ints parents = args.pass.parents;
  place = place > 0 ? parents.at[place] : place - 1;
  if (place >= 0) return row_of_pass(place);
  const int back = -place;  // 1: the last row before the pass
  if (back > head.past) return uvec2(0u);
  if (back <= head.advance_count) return uvec2(accepted_transition(head.advance_count - back));
  const int row = low(args.pass.taps) - 1 - (back - head.advance_count);
  return advanced(uvec2(read_slot()), uint(row), 4u * uint(low(args.pass.channels)));
}

// Of a row: itself and those before it. Of the slot: those before the first draft, or the row behind the last one.
int find_rows(int row, bool is_end) {
  int first = low(args.pass.taps) - 1, place = is_end ? certain_rows() : row;
  if (!is_end) rows_of_taps[first] = row_of_pass(row);
  while (first > 0) {
    uvec2 found;
    if (is_end && place > 0) {
      --place;  // certain rows follow one another
      found = row_of_pass(place);
    } else {
      found = conv_row_before(place);
    }
    if (is_null(found)) break;
    rows_of_taps[--first] = found;
  }
  return first;
}

void main() {
  const int row = block_x(), channels = low(args.pass.channels), taps = low(args.pass.taps);
  const bool is_end = row == low(args.pass.rows);
  if (thread() == 0) first_tap = find_rows(row, is_end);
  meet();
  const int first = first_tap, c = block_y() * THREADS + thread();
  if (c >= channels) return;
  if (is_end) {
    Floats written = written_slot();
    for (int i = first; i < taps - 1; ++i) written.at[i * channels + c] = Floats(rows_of_taps[i]).at[c];
    return;
  }
  Floats weight = args.pass.weight, bias = args.pass.bias, y = args.pass.y;
  float sum = is_null(uvec2(bias)) ? 0.0 : bias.at[c];
  [[dont_unroll]] for (int i = first; i < taps; ++i) {
    sum = fused(weight.at[i * channels + c], Floats(rows_of_taps[i]).at[c], sum);
  }
  y.at[row * channels + c] = vf_silu(sum);
  const int draft = row - certain_rows();
  if (draft >= 0) transition_of(written_slot(), draft).at[c] = Floats(rows_of_taps[taps - 1]).at[c];
}
