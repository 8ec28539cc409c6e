// Functions of whole rows of numbers, and of single ones, over the 16-lane types; behind simd_math.inl.

EDGE_RT_INLINE float s_exp(float x) {
  float lanes[16];
  vf_store(lanes, vf_exp(vf_set1(x)));
  return lanes[0];
}

// Over n values. Four running sums hide the latency of fma; they are joined as (0 + 1) + (2 + 3), and the tail is
// padded with zeros, whatever the instruction set.
inline float sum_of_squares(const float* x, int n) {
  VF sums[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
  int i = 0;
  for (; i + 64 <= n; i += 64) {
    for (int k = 0; k < 4; ++k) {
      const VF a = vf_load(x + i + 16 * k);
      sums[k] = vf_fma(a, a, sums[k]);
    }
  }
  for (int k = 0; i < n; ++k, i += 16) {
    const VF a = vf_load_n(x + i, n - i < 16 ? n - i : 16);
    sums[k] = vf_fma(a, a, sums[k]);
  }
  return vf_sum(vf_add(vf_add(sums[0], sums[1]), vf_add(sums[2], sums[3])));
}

// 1 / sqrt(mean of x^2 + eps) over n values.
inline float rms_scale(const float* x, int n, float eps) {
  return 1.0f / s_sqrt(sum_of_squares(x, n) / static_cast<float>(n) + eps);
}

// What LayerNorm takes from n values, and what it multiplies them by: the mean, and 1 / sqrt(variance + eps).
struct LayerScale {
  float mean, scale;
};

// Both sums are in the order of sum_of_squares; the variance is that of differences from the mean.
inline LayerScale layer_scale(const float* x, int n, float eps) {
  VF sums[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
  for (int i = 0, k = 0; i < n; i += 16, k = (k + 1) % 4) {
    sums[k] = vf_add(sums[k], vf_load_n(x + i, n - i < 16 ? n - i : 16));
  }
  const float mean = vf_sum(vf_add(vf_add(sums[0], sums[1]), vf_add(sums[2], sums[3]))) / static_cast<float>(n);
  float means[16];
  vf_store(means, vf_set1(mean));
  for (int k = 0; k < 4; ++k) sums[k] = vf_zero();
  for (int i = 0, k = 0; i < n; i += 16, k = (k + 1) % 4) {
    const int count = n - i < 16 ? n - i : 16;
    const VF a = vf_sub(vf_load_n(x + i, count), vf_load_n(means, count));
    sums[k] = vf_fma(a, a, sums[k]);
  }
  const float total = vf_sum(vf_add(vf_add(sums[0], sums[1]), vf_add(sums[2], sums[3])));
  return {mean, 1.0f / s_sqrt(total / static_cast<float>(n) + eps)};
}
