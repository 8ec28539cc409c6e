#version 460
// y[i] = an operation of float_exact.glsl or lane_math.glsl on the bits a[i], b[i] and c[i].
#define THREADS 64
#include "gpu/vulkan/kernel.glsl"
#include "gpu/vulkan/lane_math.glsl"

struct FloatOperationsArgs {
  Words a;
  Words b;
  Words c;
  Words y;
  int count;
  int operation;
};
KERNEL(FloatOperationsArgs)

uint result(int operation, uint a_bits, float a, float b, float c) {
  switch (operation) {
    case 0: return floatBitsToUint(fused(a, b, c));
    case 1: return floatBitsToUint(div_exact(a, b));
    case 2: return floatBitsToUint(sqrt_exact(a));
    case 3: return floatBitsToUint(float_of_half(a_bits));
    case 4: return half_of_float(a);
    case 5: return floatBitsToUint(vf_exp(a));
    case 6: return floatBitsToUint(vf_sigmoid(a));
    case 7: return floatBitsToUint(vf_silu(a));
    case 8: return floatBitsToUint(vf_gelu(a));
    case 9: return floatBitsToUint(vf_tanh(a));
    case 10: return floatBitsToUint(vf_softplus(a));
    case 11: return floatBitsToUint(vf_max(a, b));
    case 12: return floatBitsToUint(vf_min(a, b));
    case 13: return floatBitsToUint(a * b + c);
  }
  return 0u;
}

void main() {
  const int i = block_x() * THREADS + thread();
  const bool is_in = i < args.count;
  const uint a = is_in ? args.a.at[i] : 0u, b = is_in ? args.b.at[i] : 0u, c = is_in ? args.c.at[i] : 0u;
  uint y;
  if (args.operation == 14) {
    y = floatBitsToUint(vf_sum(uintBitsToFloat(a)));
  } else if (args.operation == 15) {
    y = floatBitsToUint(vf_hmax(uintBitsToFloat(a)));
  } else if (args.operation == 16) {
    y = uint(vi_sum(int(a)));
  } else {
    y = result(args.operation, a, uintBitsToFloat(a), uintBitsToFloat(b), uintBitsToFloat(c));
  }
  if (is_in) args.y.at[i] = y;
}
