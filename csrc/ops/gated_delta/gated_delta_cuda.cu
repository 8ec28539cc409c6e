// GatedDelta on a GPU. See gated_delta.h for what is computed.
#include "gpu/cuda/block_rows.h"
#include "ops/gated_delta/gated_delta_gpu.h"

namespace edge_rt::gpu {
namespace {

#include "ops/recurrent/recurrent_cuda.inl"

constexpr int kHeadLanes = 64;

// A head of a row, times `factor` over its length, by all threads of a block.
EDGE_RT_DEVICE void delta_unit(const float* x, const DeltaPass& pass, float factor, float* shared, float* out,
                               float* noted) {
  const int n = static_cast<int>(pass.shape.key_dim);
  const float total = sum_of_row(shared, n, [x](int i, float sum) { return fma(x[i], x[i], sum); });
  const float scale = mul(div(1.0f, sqrt(add(total, pass.key_epsilon))), factor);
  for (int i = thread(); i < n; i += kHeadLanes) {
    out[i] = mul(x[i], scale);
    if (noted != nullptr) noted[i] = out[i];
  }
}

// A row as a column of a head sees it.
struct DeltaColumn {
  static constexpr bool kCorrects = true;
  const float *q, *v, *of_head;  // of the first row
  int64_t keys, heads, row_floats, width;

  EDGE_RT_DEVICE DeltaColumn(const DeltaPass& pass, int64_t head, int64_t key, int64_t column)
      : q(pass.prepared + key), v(pass.qkv + 2 * pass.shape.keys() + column),
        of_head(pass.prepared + 2 * pass.shape.keys() + head), keys(pass.shape.keys()), heads(pass.shape.value_heads),
        row_floats(pass.row_floats()), width(2 * keys + pass.shape.values()) {}
  EDGE_RT_DEVICE const float* query(int64_t row) const { return q + row * row_floats; }
  EDGE_RT_DEVICE const float* key(int64_t row) const { return query(row) + keys; }
  EDGE_RT_DEVICE float decay(int64_t row) const { return of_head[row * row_floats]; }
  EDGE_RT_DEVICE float d(int64_t row, float shrink, float dot) const {
    return mul(of_head[heads + row * row_floats], fma(-shrink, dot, v[row * width]));
  }
};

}  // namespace

// Grid: rows, and K heads; behind these what V heads need of a row.
EDGE_RT_KERNEL(gated_delta_prepare, kHeadLanes, DeltaArgs) {
  EDGE_RT_SHARED float shared[64];
  const DeltaPass pass = pass_now(args.pass, args.slots);
  const MatrixShape& shape = pass.shape;
  const int64_t row = block_x(), key_head = block_y(), keys = shape.keys(), heads = shape.value_heads;
  float* const q = pass.prepared + row * pass.row_floats();
  float* const noted = row < pass.certain ? nullptr : pass.transition(pass.written, row - pass.certain);
  if (key_head < shape.key_heads) {
    const int64_t at = key_head * shape.key_dim;
    const float* const q_in = pass.qkv + row * (2 * keys + shape.values()) + at;
    delta_unit(q_in, pass, div(1.0f, sqrt(from_int(static_cast<int>(shape.key_dim)))), shared, q + at, nullptr);
    delta_unit(q_in + keys, pass, 1.0f, shared, q + keys + at, noted == nullptr ? nullptr : noted + heads + at);
    return;
  }
  float *const decays = q + 2 * keys, *const betas = decays + heads;
  for (int64_t h = thread(); h < heads; h += kHeadLanes) {
    const float step = vf_softplus(add(pass.a[row * heads + h], pass.dt_bias[h]));
    decays[h] = vf_exp(mul(pass.a_scale[h], step));
    betas[h] = vf_sigmoid(pass.b[row * heads + h]);
    if (noted != nullptr) noted[h] = decays[h];
  }
}

EDGE_RT_KERNEL(gated_delta_columns, kMatrixThreads, DeltaArgs) {
  EDGE_RT_SHARED float state[kMaxKeyDim * kColumns];
  matrix_columns<DeltaColumn>(args, state);
}

// Grid: rows, and V heads.
EDGE_RT_KERNEL(gated_delta_finish, kHeadLanes, DeltaArgs) {
  const DeltaPass& pass = args.pass;
  const int dim = static_cast<int>(pass.shape.value_dim);
  const int64_t first = block_x() * pass.shape.values() + block_y() * int64_t{dim};
  float* const y = pass.y + first;
  const float scale = rms_scale(y, dim, pass.epsilon);
  for (int i = thread(); i < dim; i += kHeadLanes) {
    y[i] = mul(mul(mul(y[i], scale), pass.norm[i]), vf_silu(pass.z[first + i]));
  }
}

}  // namespace edge_rt::gpu
