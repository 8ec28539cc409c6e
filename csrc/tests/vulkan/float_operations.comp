#version 460
// y[i] = an operation of float_exact.glsl or lane_math.glsl on the bits a[i], b[i] and c[i]: the one of `choices`, whose
// bits vulkan_float_main.cc numbers. Those that a device may need are there on all.
#define THREADS 64
#include "gpu/vulkan/kernel.glsl"
#include "gpu/vulkan/lane_math.glsl"

struct FloatOperationsArgs {
  Words a;
  Words b;
  Words c;
  Words y;
};
KERNEL(FloatOperationsArgs)

bool is(int operation) { return choices == 1u << operation; }

uint result(uint a_bits, float a, float b, float c) {
  if (is(0)) return floatBitsToUint(fused(a, b, c));
  if (is(1)) return floatBitsToUint(fma_of_integers(a, b, c));
  if (is(2)) return floatBitsToUint(div_exact(a, b));
  if (is(3)) return floatBitsToUint(division_of_integers(a, b));
  if (is(4)) return floatBitsToUint(sqrt_exact(a));
  if (is(5)) return floatBitsToUint(sqrt_of_integers(a));
  if (is(6)) return floatBitsToUint(float_of_half(a_bits));
  if (is(7)) return floatBitsToUint(half_by_integers(a_bits));
  if (is(8)) return half_of_float(a);
  if (is(9)) return floatBitsToUint(a * b + c);
  if (is(10)) return floatBitsToUint(vf_exp(a));
  if (is(11)) return floatBitsToUint(vf_sigmoid(a));
  if (is(12)) return floatBitsToUint(vf_silu(a));
  if (is(13)) return floatBitsToUint(vf_gelu(a));
  if (is(14)) return floatBitsToUint(vf_tanh(a));
  if (is(15)) return floatBitsToUint(vf_softplus(a));
  if (is(16)) return floatBitsToUint(vf_max(a, b));
  if (is(17)) return floatBitsToUint(vf_min(a, b));
  if (is(18)) return floatBitsToUint(vf_sum(a));
  if (is(19)) return floatBitsToUint(vf_hmax(a));
  return uint(vi_sum(int(a_bits)));
}

// All threads have an element: sums join them.
void main() {
  const int i = block_x() * THREADS + thread();
  const uint a = args.a.at[i];
  args.y.at[i] = result(a, uintBitsToFloat(a), uintBitsToFloat(args.b.at[i]), uintBitsToFloat(args.c.at[i]));
}
