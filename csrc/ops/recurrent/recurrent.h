// What operators have in common that keep a state of a text, which can not be cut back to an earlier length.
//
// A row's effect on a state is its transition. Applied to a state it gives the bits of computing the row again.
//
// A sequence has two slots. Each holds a state, behind it transitions of the rows that were drafts in the pass that
// wrote it. A pass reads one slot and writes the other: its state, then the transitions that are numbered in `advance`,
// then its first `certain` rows; and the transitions of the others, its drafts. A draft's state lives in scratch
// memory, as long as rows follow it. So whoever does not want a pass goes on with the slot it has read, and what drafts
// were wrong costs nothing. The slot that is read is not written to, by no pass.
//
// Of GatedDelta and SsmScan the state of a head is a matrix S [key_dim, value_dim], which a row shrinks, adds a product
// of two vectors to, and reads with a third. Of a column of S, in this order of operations on every instruction set:
//   S = fma(k, d, decay * S); o = sum of q S
// with a number decay of the row's head, k and q of key_dim numbers, and one number d of the row and the column. The
// sum is four running ones, of the rows 0, 4, 8 ... of S, of 1, 5, 9 ... and so on, joined as (0 + 1) + (2 + 3). A lane
// is a column, so none goes across lanes. Their slots are
//   S            [value_heads][value_dim / 16][key_dim][16]     a stripe is 16 columns of S
//   transitions  [drafts][decay: value_heads | k: key_heads * key_dim | d: value_heads * value_dim]
#pragma once

#include <cstdint>

#include "common/flag.h"

namespace edge_rt {

constexpr int kStripe = 16;                               // columns
constexpr int64_t kMaxStateHeads = 1024;                  // of a kind
constexpr int64_t kMaxKeyDim = 512, kMaxValueDim = 1024;  // the second a multiple of 16

struct MatrixShape {
  int64_t key_heads, value_heads, key_dim, value_dim;
  Flag is_tiled;  // V head v has K head v mod key_heads; otherwise v / (value_heads / key_heads)

  int64_t keys() const { return key_heads * key_dim; }
  int64_t values() const { return value_heads * value_dim; }
  int64_t state_floats() const { return values() * key_dim; }
  int64_t transition_floats() const { return value_heads + keys() + values(); }
  int64_t stripe_floats() const { return key_dim * kStripe; }
  int64_t stripes() const { return value_dim / kStripe; }  // of a head
  int64_t key_head_of(int64_t value_head) const {
    return is_tiled ? value_head % key_heads : value_head / (value_heads / key_heads);
  }
};

// Which state a row starts from, and where it leaves its own.
struct StateStep {
  int32_t from, to;  // levels of scratch memory; -1: the slot that is written
  Flag is_followed;  // by the row behind it
};

// One sequence of a run of such an op, or of another one that keeps states and transitions in slots, checked.
struct StatePass {
  int64_t state_floats, transition_floats;
  int64_t rows, past, certain;
  const float* read;       // a slot; nullptr: the text begins, S is 0
  float* written;          // the other
  const int32_t* advance;  // numbers of transitions of the slot that is read
  int64_t advance_count;
  const int32_t* parents;  // [rows]
  const StateStep* steps;  // [rows]

  float* transition(float* slot, int64_t draft) const { return slot + state_floats + draft * transition_floats; }
  const float* accepted(int64_t number) const {
    return read + state_floats + static_cast<int64_t>(advance[number]) * transition_floats;
  }
};

struct MatrixPass : StatePass {
  MatrixShape shape;
  float* prepared;  // [rows][row_floats of the op]
  float* y;         // [rows][values]
};

template <class Pass>
struct MatrixKernels {
  // Makes what all heads need of a row; of a draft, the decay and k of its transition too.
  void (*prepare)(const Pass& pass, int64_t row);
  // o of all rows, and 16 columns of the states of a V head; behind `prepare` of all rows. `scratch` has as many
  // stripes as the steps say.
  void (*stripe)(const Pass& pass, int64_t head, int64_t stripe, float* scratch);
  // y of a row; behind all stripes.
  void (*finish)(const Pass& pass, int64_t row);
};

}  // namespace edge_rt
