// GatedDelta: heads whose memory of a text is a matrix S [dk, dv], which every row shrinks, and corrects where its key
// points (the gated delta rule). How S is kept, and what drafts leave: ops/recurrent/recurrent.h.
//
// What is computed of a row, in this order of operations on every instruction set:
// - of a K head: k / sqrt(sum of k^2 + key_epsilon), and q likewise, then times 1 / sqrt(dk). The sums are in the order
//   of sum_of_squares; the scale is made first, and a number multiplied with it once.
// - of a V head: decay = exp(a_scale * softplus(a + dt_bias)), beta = sigmoid(b).
// - of a column of S: d = beta * (v - decay * (sum of k S)), that sum being like that of o; then S and o.
// - of a V head: y = ((o * (1 / sqrt(mean of o^2 + epsilon))) * norm) * silu(z).
#pragma once

#include "ops/recurrent/recurrent.h"

namespace edge_rt {

// One sequence of a run of the op, checked. dk and dv are multiples of 16.
struct DeltaPass : MatrixPass {
  float epsilon, key_epsilon;
  const float *qkv, *z, *b, *a;           // [rows][2 keys + values], [rows][values], [rows][value_heads] twice
  const float *a_scale, *dt_bias, *norm;  // [value_heads] twice, [value_dim]

  // What rows need once for all tasks: q and k, decay and beta.
  int64_t row_floats() const { return 2 * shape.keys() + 2 * shape.value_heads; }
};

using GatedDeltaKernels = MatrixKernels<DeltaPass>;

}  // namespace edge_rt
