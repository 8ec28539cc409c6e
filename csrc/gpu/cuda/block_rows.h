// The functions of kernels/simd_rows.inl in GPU kernels: all threads of a block, 64 or more, call them together for one
// row, and get the same result. Shared memory of theirs is free again at the block's next barrier.
#pragma once

#include "gpu/cuda/lane_math.h"

namespace edge_rt::gpu {
namespace {

// Sums over a row in the CPU's order: four vectors take turns, so 64 threads hold a running sum each. `step` returns
// the sum behind number i.
template <class Step>
EDGE_RT_INLINE float sum_of_row(float* shared, int n, Step step) {
  float sum = 0.0f;
  if (thread() < 64) {
    EDGE_RT_UNROLL(8)
    for (int i = thread(); i < n; i += 64) sum = step(i, sum);
  }
  barrier();
  if (thread() < 64) shared[thread()] = sum;
  barrier();
  const VF first = vf_add(vf_load(shared), vf_load(shared + 16));
  return vf_sum(vf_add(first, vf_add(vf_load(shared + 32), vf_load(shared + 48))));
}

// 1 / sqrt(mean of x^2 + eps).
EDGE_RT_INLINE float rms_scale(const float* x, int n, float eps) {
  EDGE_RT_SHARED float shared[64];
  const float total = sum_of_row(shared, n, [x](int i, float sum) { return fma(x[i], x[i], sum); });
  return div(1.0f, sqrt(add(div(total, from_int(n)), eps)));
}

struct LayerScale {
  float mean, scale;
};

// The mean, and 1 / sqrt(variance + eps).
EDGE_RT_INLINE LayerScale layer_scale(const float* x, int n, float eps) {
  EDGE_RT_SHARED float shared[64];
  const float mean = div(sum_of_row(shared, n, [x](int i, float sum) { return add(sum, x[i]); }), from_int(n));
  const float total = sum_of_row(shared, n, [x, mean](int i, float sum) {
    const float a = add(x[i], -mean);
    return fma(a, a, sum);
  });
  return {mean, div(1.0f, sqrt(add(div(total, from_int(n)), eps)))};
}

}  // namespace
}  // namespace edge_rt::gpu
