// GatedDelta: heads whose memory of a text is a matrix S [dk, dv], which every row shrinks, and corrects where its key
// points (the gated delta rule).
//
// What is computed of a row, in this order of operations on every instruction set:
// - of a K head: k / sqrt(sum of k^2 + key_epsilon), and q likewise, then times 1 / sqrt(dk). The sums are in the order
// of
//   sum_of_squares; the scale is made first, and a number multiplied with it once.
// - of a V head: decay = exp(a_scale * softplus(a + dt_bias)), beta = sigmoid(b).
// - of a column of S: d = beta * (v - decay * (sum of k S)); S = fma(k, d, decay * S); o = sum of q S. These two sums
// are
//   four running ones, of the rows 0, 4, 8 ... of S, of 1, 5, 9 ... and so on, joined as (0 + 1) + (2 + 3). A lane is a
//   column, so none goes across lanes.
// - of a V head: y = ((o * (1 / sqrt(mean of o^2 + epsilon))) * norm) * silu(z).
//
// A row's effect on S is its transition: decay, k and d. Applied to a state it gives the bits of computing the row
// again.
//
// A sequence has two slots. Each holds S, behind it transitions of the rows that were drafts in the pass that wrote it:
//   S            [value_heads][dv / 16][dk][16]     a stripe is 16 columns of S
//   transitions  [drafts][decay: value_heads | k: key_heads * dk | d: value_heads * dv]
// A pass reads one slot and writes the other: S = its S, then the transitions that are numbered in `advance`, then its
// first `certain` rows; and the transitions of the others, its drafts. A draft's S lives in scratch memory, as long as
// rows follow it. So whoever does not want a pass goes on with the slot it has read, and what drafts were wrong costs
// nothing. The slot that is read is not written to, by no pass.
#pragma once

#include <cstdint>

namespace edge_rt {

constexpr int kStripe = 16;                               // columns
constexpr int64_t kMaxDeltaHeads = 1024;                  // of a kind
constexpr int64_t kMaxKeyDim = 512, kMaxValueDim = 1024;  // both multiples of 16

struct DeltaShape {
  int64_t key_heads, value_heads, key_dim, value_dim;
  bool is_tiled;  // V head v has K head v mod key_heads; otherwise v / (value_heads / key_heads)
  float epsilon, key_epsilon;

  int64_t keys() const { return key_heads * key_dim; }
  int64_t values() const { return value_heads * value_dim; }
  int64_t state_floats() const { return values() * key_dim; }
  int64_t transition_floats() const { return value_heads + keys() + values(); }
  int64_t stripe_floats() const { return key_dim * kStripe; }
  int64_t stripes() const { return value_dim / kStripe; }
  int64_t key_head_of(int64_t value_head) const {
    return is_tiled ? value_head % key_heads : value_head / (value_heads / key_heads);
  }
  // What rows need once for all tasks: q and k, decay and beta.
  int64_t row_floats() const { return 2 * keys() + 2 * value_heads; }
};

// Which state a row starts from, and where it leaves its own.
struct DeltaStep {
  int32_t from, to;  // stripes of scratch memory; -1: the slot that is written
  bool is_followed;  // by the row behind it
};

// One sequence of a run of the op, checked.
struct DeltaPass {
  DeltaShape shape;
  int64_t rows, certain;
  const float *qkv, *z, *b, *a;           // [rows][2 keys + values], [rows][values], [rows][value_heads] twice
  const float *a_scale, *dt_bias, *norm;  // [value_heads] twice, [value_dim]
  const float* read;                      // a slot; nullptr: the text begins, S is 0
  float* written;                         // the other
  const int32_t* advance;                 // numbers of transitions of the slot that is read
  int64_t advance_count;
  const DeltaStep* steps;  // [rows]
  float* prepared;         // [rows][row_floats]
  float* y;                // [rows][values]

  float* transition(float* slot, int64_t draft) const {
    return slot + shape.state_floats() + draft * shape.transition_floats();
  }
};

struct GatedDeltaKernels {
  // Makes what all heads need of a row; of a draft, the decay and k of its transition too.
  void (*prepare)(const DeltaPass& pass, int64_t row);
  // o of all rows, and 16 columns of the states of a V head; behind `prepare` of all rows. `scratch` has as many
  // stripes as the steps say.
  void (*stripe)(const DeltaPass& pass, int64_t head, int64_t stripe, float* scratch);
  // y of a row; behind all stripes.
  void (*finish)(const DeltaPass& pass, int64_t row);
};

}  // namespace edge_rt
