// SsmScan: heads whose memory of a text is a matrix S [N, P], which every row shrinks and adds to (state spaces with
// one decay per head: Mamba-2, Dao and Gu, arXiv 2405.21060). How S is kept, and what drafts leave:
// ops/recurrent/recurrent.h, whose K heads are groups, with k = b and q = c, and whose V heads are heads.
//
// What is computed of a row, in this order of operations on every instruction set:
// - of a head: step = softplus(t + dt_bias), decay = exp(a_scale * step).
// - of a column of S: d = step * x; then S and o.
// - of a number: y = fma(skip, x, o), skip being one of its head; then, by the order of gate and norm,
//     gate, norm:  y = ((y * silu(z)) * scale) * norm
//     norm, gate:  y = ((y * scale) * norm) * silu(z)
//     gate alone:  y = y * silu(z)
//   with scale = 1 / sqrt(mean of what it is multiplied with, squared, + epsilon), of a group of neighbouring heads.
//   The sum is in the order of sum_of_squares.
#pragma once

#include "ops/recurrent/recurrent.h"

namespace edge_rt {

enum class GateOrder { kGateNorm, kNormGate, kGate };

// One sequence of a run of the op, checked. N is a multiple of 4, P one of 16.
struct SsmPass : MatrixPass {
  GateOrder order;
  float epsilon;
  const float* xbc;                       // [rows][values + 2 keys]
  const float *z, *t;                     // of the first row: [values], [value_heads]
  int64_t z_stride, t_stride;             // from a row to the next one
  const float *a_scale, *skip, *dt_bias;  // [value_heads]
  const float* norm;                      // [values], or nullptr for kGate

  int64_t width() const { return shape.values() + 2 * shape.keys(); }
  // What rows need once for all tasks: decay and step.
  int64_t row_floats() const { return 2 * shape.value_heads; }
};

using SsmScanKernels = MatrixKernels<SsmPass>;

}  // namespace edge_rt
