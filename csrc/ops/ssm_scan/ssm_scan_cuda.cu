// SsmScan on a GPU. See ssm_scan.h for what is computed.
#include "gpu/cuda/block_rows.h"
#include "ops/ssm_scan/ssm_scan_gpu.h"

namespace edge_rt::gpu {
namespace {

#include "ops/recurrent/recurrent_cuda.inl"

constexpr int kRowThreads = 256;

// A row as a column of a head sees it.
struct SsmColumn {
  static constexpr bool kCorrects = false;
  const float *x, *b, *of_head;  // of the first row
  int64_t keys, heads, width, row_floats;

  EDGE_RT_DEVICE SsmColumn(const SsmPass& pass, int64_t head, int64_t key, int64_t column)
      : x(pass.xbc + column), b(pass.xbc + pass.shape.values() + key), of_head(pass.prepared + head),
        keys(pass.shape.keys()), heads(pass.shape.value_heads), width(pass.width()), row_floats(pass.row_floats()) {}
  EDGE_RT_DEVICE const float* key(int64_t row) const { return b + row * width; }
  EDGE_RT_DEVICE const float* query(int64_t row) const { return key(row) + keys; }
  EDGE_RT_DEVICE float decay(int64_t row) const { return of_head[row * row_floats]; }
  EDGE_RT_DEVICE float d(int64_t row, float, float) const {
    return mul(of_head[heads + row * row_floats], x[row * width]);
  }
};

}  // namespace

// Grid: rows.
EDGE_RT_KERNEL(ssm_scan_prepare, kRowThreads, SsmArgs) {
  const SsmPass pass = pass_now(args.pass, args.slots);
  const int64_t row = block_x(), heads = pass.shape.value_heads, keys = pass.shape.keys();
  float *const decays = pass.prepared + row * pass.row_floats(), *const steps = decays + heads;
  float* const noted = row < pass.certain ? nullptr : pass.transition(pass.written, row - pass.certain);
  for (int64_t h = thread(); h < heads; h += kRowThreads) {
    const float step = vf_softplus(add(pass.t[row * pass.t_stride + h], pass.dt_bias[h]));
    decays[h] = vf_exp(mul(pass.a_scale[h], step));
    steps[h] = step;
    if (noted != nullptr) noted[h] = decays[h];
  }
  if (noted == nullptr) return;
  const float* const b = pass.xbc + row * pass.width() + pass.shape.values();
  for (int64_t i = thread(); i < keys; i += kRowThreads) noted[heads + i] = b[i];
}

EDGE_RT_KERNEL(ssm_scan_columns, kMatrixThreads, SsmArgs) {
  EDGE_RT_SHARED float state[kMaxKeyDim * kColumns];
  matrix_columns<SsmColumn>(args, state);
}

// Grid: rows, and groups.
EDGE_RT_KERNEL(ssm_scan_finish, kRowThreads, SsmArgs) {
  const SsmPass& pass = args.pass;
  const MatrixShape& shape = pass.shape;
  const int64_t row = block_x(), count = shape.values() / shape.key_heads, first = block_y() * count;
  const float *const x = pass.xbc + row * pass.width(), *const z = pass.z + row * pass.z_stride;
  float* const y = pass.y + row * shape.values();
  const bool gates_first = pass.order != GateOrder::kNormGate;
  for (int64_t i = first + thread(); i < first + count; i += kRowThreads) {
    const float value = fma(pass.skip[i / shape.value_dim], x[i], y[i]);
    y[i] = gates_first ? mul(value, vf_silu(z[i])) : value;
  }
  if (pass.order == GateOrder::kGate) return;
  barrier();
  const float scale = rms_scale(y + first, static_cast<int>(count), pass.epsilon);
  for (int64_t i = first + thread(); i < first + count; i += kRowThreads) {
    const float value = mul(mul(y[i], scale), pass.norm[i]);
    y[i] = gates_first ? value : mul(value, vf_silu(z[i]));
  }
}

}  // namespace edge_rt::gpu
