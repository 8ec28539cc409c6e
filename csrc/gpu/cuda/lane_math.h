// The functions of kernels/simd_math.inl in GPU kernels: a vector of 16 lanes is half a warp, and a thread one lane.
//
// So VF is a single number, and the source of exp and others is the CPU's. What loads or stores takes the pointer of a
// whole vector, as on the CPU; what joins lanes (vf_sum, vf_hmax) is called by whole warps, and gives the result to all
// lanes.
#pragma once

#include "gpu/cuda/device.h"

#ifndef EDGE_RT_INLINE
#define EDGE_RT_INLINE EDGE_RT_DEVICE
#endif

namespace edge_rt::gpu {
namespace {

using VF = float;
using VI = int32_t;

// The thread's number in its vector.
EDGE_RT_INLINE int vector_lane() { return thread() & 15; }

EDGE_RT_INLINE float s_fma(float a, float b, float c) { return fma(a, b, c); }
EDGE_RT_INLINE float s_sqrt(float a) { return sqrt(a); }

EDGE_RT_INLINE VF vf_set1(float a) { return a; }
EDGE_RT_INLINE VF vf_zero() { return 0.0f; }
EDGE_RT_INLINE VF vf_load(const float* p) { return p[vector_lane()]; }
EDGE_RT_INLINE VF vf_load_n(const float* p, int n) { return vector_lane() < n ? p[vector_lane()] : 0.0f; }
EDGE_RT_INLINE void vf_store(float* p, VF a) { p[vector_lane()] = a; }
EDGE_RT_INLINE void vf_store_n(float* p, VF a, int n) {
  if (vector_lane() < n) p[vector_lane()] = a;
}

EDGE_RT_INLINE VF vf_add(VF a, VF b) { return add(a, b); }
EDGE_RT_INLINE VF vf_sub(VF a, VF b) { return add(a, -b); }
EDGE_RT_INLINE VF vf_mul(VF a, VF b) { return mul(a, b); }
EDGE_RT_INLINE VF vf_div(VF a, VF b) { return div(a, b); }
EDGE_RT_INLINE VF vf_fma(VF a, VF b, VF c) { return fma(a, b, c); }
EDGE_RT_INLINE VF vf_fnma(VF a, VF b, VF c) { return fma(-a, b, c); }
EDGE_RT_INLINE VF vf_sqrt(VF a) { return sqrt(a); }
// The second operand where neither is greater, as on the CPU.
EDGE_RT_INLINE VF vf_max(VF a, VF b) { return a > b ? a : b; }
EDGE_RT_INLINE VF vf_min(VF a, VF b) { return a < b ? a : b; }
EDGE_RT_INLINE VF vf_abs(VF a) { return float_of_bits(bits_of_float(a) & 0x7fffffffu); }
EDGE_RT_INLINE VF vf_neg(VF a) { return float_of_bits(bits_of_float(a) ^ 0x80000000u); }

EDGE_RT_INLINE VI vi_set1(int a) { return a; }
EDGE_RT_INLINE VI vi_zero() { return 0; }
// Integers wrap around.
EDGE_RT_INLINE VI vi_add(VI a, VI b) { return static_cast<VI>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b)); }
EDGE_RT_INLINE VI vi_sub(VI a, VI b) { return static_cast<VI>(static_cast<uint32_t>(a) - static_cast<uint32_t>(b)); }
EDGE_RT_INLINE VI vi_shl(VI a, int count) { return static_cast<VI>(static_cast<uint32_t>(a) << count); }
EDGE_RT_INLINE VF vf_from_bits(VI a) { return float_of_bits(static_cast<uint32_t>(a)); }
EDGE_RT_INLINE VI vi_from_bits(VF a) { return static_cast<VI>(bits_of_float(a)); }
EDGE_RT_INLINE VI vi_round(VF a) { return round_to_int(a); }
EDGE_RT_INLINE VF vf_from_i32(VI a) { return from_int(a); }

// Trees of l + (l + 8), then l + (l + 4), l + (l + 2), l + (l + 1).
EDGE_RT_INLINE VF vf_sum(VF a) {
  for (int half = 8; half > 0; half /= 2) a = add(a, exchange(a, half));
  return a;
}
EDGE_RT_INLINE VI vi_sum(VI a) {
  for (int half = 8; half > 0; half /= 2) a = vi_add(a, exchange(a, half));
  return a;
}
EDGE_RT_INLINE VF vf_hmax(VF a) {
  for (int half = 8; half > 0; half /= 2) {
    const VF other = exchange(a, half);
    a = (thread() & half) == 0 ? vf_max(a, other) : vf_max(other, a);
  }
  return a;
}

#include "kernels/simd_math.inl"

}  // namespace
}  // namespace edge_rt::gpu
