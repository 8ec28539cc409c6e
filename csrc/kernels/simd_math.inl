// Functions over the 16-lane types, written once: fused multiply-adds and integer steps only, so the bits are the same
// on every instruction set. Included after one simd_*.h, inside the namespaces of that instruction set; and by GPU
// kernels after gpu/cuda/lane_math.h, where a thread is a lane.

// exp(x) in two steps, x clamped to [-87.3, 88.3], where 2^n is a normal float: returns exp(r) - 1 and sets *power to
// 2^n, x = n * ln 2 + r. The polynomial's own relative error is 3e-9; rounding adds less than 1.2e-7.
EDGE_RT_INLINE VF exp_steps(VF x, VF* power) {
  x = vf_min(vf_set1(88.3f), vf_max(vf_set1(-87.3f), x));
  const VI n = vi_round(vf_mul(x, vf_set1(0x1.715476p+0f)));
  const VF whole = vf_from_i32(n);
  VF r = vf_fnma(whole, vf_set1(0x1.62e430p-1f), x);  // ln 2 as a float
  r = vf_fnma(whole, vf_set1(-0x1.05c610p-29f), r);   // and what that lacks
  VF p = vf_set1(0x1.6a2352p-10f);
  p = vf_fma(p, r, vf_set1(0x1.123a6cp-7f));
  p = vf_fma(p, r, vf_set1(0x1.5558f4p-5f));
  p = vf_fma(p, r, vf_set1(0x1.555490p-3f));
  p = vf_fma(p, r, vf_set1(0x1.fffffcp-2f));
  *power = vf_from_bits(vi_shl(vi_add(n, vi_set1(127)), 23));
  return vf_fma(vf_mul(r, r), p, r);
}

// Relative error below 2e-7 on [-87.3, 88.3]; beyond, the value at the nearer end.
EDGE_RT_INLINE VF vf_exp(VF x) {
  VF power;
  const VF rest = exp_steps(x, &power);
  return vf_mul(vf_add(vf_set1(1.0f), rest), power);
}

EDGE_RT_INLINE VF vf_sigmoid(VF x) {
  const VF one = vf_set1(1.0f);
  return vf_div(one, vf_add(one, vf_exp(vf_neg(x))));
}

EDGE_RT_INLINE VF vf_silu(VF x) { return vf_div(x, vf_add(vf_set1(1.0f), vf_exp(vf_neg(x)))); }

// 0.5 x (1 + tanh(u)) with u = sqrt(2 / pi) * (x + 0.044715 x^3), as x / (1 + exp(-2u)): nothing is lost where tanh is
// near -1. The constants are 2 sqrt(2 / pi) and 0.044715 times that.
EDGE_RT_INLINE VF vf_gelu(VF x) {
  const VF twice = vf_mul(x, vf_fma(vf_mul(x, x), vf_set1(0.0713548162726f), vf_set1(1.59576912161f)));
  return vf_div(x, vf_add(vf_set1(1.0f), vf_exp(vf_neg(twice))));
}

// e / (e + 2) with e = exp(2x) - 1, which loses nothing near 0: relative error below 1e-6.
EDGE_RT_INLINE VF vf_tanh(VF x) {
  VF power;
  const VF rest = exp_steps(vf_add(x, x), &power);
  const VF e = vf_fma(power, rest, vf_sub(power, vf_set1(1.0f)));
  return vf_div(e, vf_add(e, vf_set1(2.0f)));
}

// log(1 + exp(x)) as max(x, 0) + log(1 + u) with u = exp(-|x|), which overflows nowhere: log(1 + u) is twice the series
// of atanh(s), s = u / (2 + u) being a third at most. Relative error below 1e-6 above -87; below, the value there.
EDGE_RT_INLINE VF vf_softplus(VF x) {
  const VF u = vf_exp(vf_neg(vf_abs(x))), s = vf_div(u, vf_add(u, vf_set1(2.0f))), square = vf_mul(s, s);
  VF series = vf_set1(1.0f / 15);
  series = vf_fma(series, square, vf_set1(1.0f / 13));
  series = vf_fma(series, square, vf_set1(1.0f / 11));
  series = vf_fma(series, square, vf_set1(1.0f / 9));
  series = vf_fma(series, square, vf_set1(1.0f / 7));
  series = vf_fma(series, square, vf_set1(1.0f / 5));
  series = vf_fma(series, square, vf_set1(1.0f / 3));
  series = vf_fma(series, square, vf_set1(1.0f));
  return vf_fma(vf_add(s, s), series, vf_max(vf_zero(), x));
}

// Natural logarithm of a positive finite number: series of atanh in double, so that no library's rounding shows.
EDGE_RT_INLINE float s_log(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  int exponent = static_cast<int>(bits >> 23) - 127;
  bits = (bits & 0x007fffff) | 0x3f800000;
  float mantissa;
  __builtin_memcpy(&mantissa, &bits, 4);
  double m = mantissa;
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  const double s = (m - 1.0) / (m + 1.0), square = s * s;
  double series = 0.0;
  for (int n = 23; n >= 1; n -= 2) series = series * square + 1.0 / n;
  return static_cast<float>(exponent * 0.6931471805599453 + 2.0 * s * series);
}
