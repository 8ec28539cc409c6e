// The 16-lane vector types on NEON with the dot product instructions: four registers each. What the functions mean is
// in simd_scalar.h.
#pragma once

#if defined(__FAST_MATH__)
#error "edge-rt's kernels promise the same bits everywhere: build without -ffast-math"
#endif

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

#include "kernels/step_table.h"

#define EDGE_RT_INLINE inline __attribute__((always_inline))

namespace edge_rt {
namespace EDGE_RT_ISA_NAMESPACE {
namespace {

// Register i holds lanes 4i ... 4i + 3.
struct VF {
  float32x4_t v0, v1, v2, v3;
};
struct VI {
  int32x4_t v0, v1, v2, v3;
};
struct VB {
  int8x16_t v0, v1, v2, v3;
};

EDGE_RT_INLINE float s_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
EDGE_RT_INLINE float s_sqrt(float a) { return __builtin_sqrtf(a); }
EDGE_RT_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }

// The same instruction on all four registers.
#define EDGE_RT_UNARY(result, name, type, instruction)                                   \
  EDGE_RT_INLINE result name(type a) {                                                   \
    return {instruction(a.v0), instruction(a.v1), instruction(a.v2), instruction(a.v3)}; \
  }
#define EDGE_RT_BINARY(type, name, instruction)                                                                  \
  EDGE_RT_INLINE type name(type a, type b) {                                                                     \
    return {instruction(a.v0, b.v0), instruction(a.v1, b.v1), instruction(a.v2, b.v2), instruction(a.v3, b.v3)}; \
  }

EDGE_RT_INLINE VF all_lanes(float32x4_t a) { return {a, a, a, a}; }
EDGE_RT_INLINE VI all_lanes(int32x4_t a) { return {a, a, a, a}; }

EDGE_RT_INLINE VF vf_set1(float a) { return all_lanes(vdupq_n_f32(a)); }
EDGE_RT_INLINE VF vf_zero() { return vf_set1(0.0f); }
EDGE_RT_INLINE VF vf_load(const float* p) {
  return {vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)};
}
EDGE_RT_INLINE void vf_store(float* p, VF a) {
  vst1q_f32(p, a.v0);
  vst1q_f32(p + 4, a.v1);
  vst1q_f32(p + 8, a.v2);
  vst1q_f32(p + 12, a.v3);
}
EDGE_RT_INLINE VF vf_load_n(const float* p, int n) {
  if (n == 8) return {vld1q_f32(p), vld1q_f32(p + 4), vdupq_n_f32(0.0f), vdupq_n_f32(0.0f)};
  float lanes[16] = {};
  for (int l = 0; l < n && l < 16; ++l) lanes[l] = p[l];
  return vf_load(lanes);
}
EDGE_RT_INLINE void vf_store_n(float* p, VF a, int n) {
  float lanes[16];
  vf_store(lanes, a);
  for (int l = 0; l < n && l < 16; ++l) p[l] = lanes[l];
}

// NEON's own maximum prefers +0 to -0 and NaN to numbers; these take the second operand where neither is greater.
EDGE_RT_INLINE float32x4_t greater(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
EDGE_RT_INLINE float32x4_t smaller(float32x4_t a, float32x4_t b) { return vbslq_f32(vcltq_f32(a, b), a, b); }

EDGE_RT_BINARY(VF, vf_add, vaddq_f32)
EDGE_RT_BINARY(VF, vf_sub, vsubq_f32)
EDGE_RT_BINARY(VF, vf_mul, vmulq_f32)
EDGE_RT_BINARY(VF, vf_div, vdivq_f32)
EDGE_RT_BINARY(VF, vf_max, greater)
EDGE_RT_BINARY(VF, vf_min, smaller)
EDGE_RT_INLINE float32x4_t where_less(float32x4_t a, float32x4_t b, float32x4_t x, float32x4_t y) {
  return vbslq_f32(vcltq_f32(a, b), x, y);
}
EDGE_RT_INLINE VF vf_where_less(VF a, VF b, VF x, VF y) {
  return {where_less(a.v0, b.v0, x.v0, y.v0), where_less(a.v1, b.v1, x.v1, y.v1), where_less(a.v2, b.v2, x.v2, y.v2),
          where_less(a.v3, b.v3, x.v3, y.v3)};
}
EDGE_RT_UNARY(VF, vf_abs, VF, vabsq_f32)
EDGE_RT_UNARY(VF, vf_neg, VF, vnegq_f32)
EDGE_RT_UNARY(VF, vf_sqrt, VF, vsqrtq_f32)
EDGE_RT_INLINE VF vf_fma(VF a, VF b, VF c) {
  return {vfmaq_f32(c.v0, a.v0, b.v0), vfmaq_f32(c.v1, a.v1, b.v1), vfmaq_f32(c.v2, a.v2, b.v2),
          vfmaq_f32(c.v3, a.v3, b.v3)};
}
EDGE_RT_INLINE VF vf_fnma(VF a, VF b, VF c) {
  return {vfmsq_f32(c.v0, a.v0, b.v0), vfmsq_f32(c.v1, a.v1, b.v1), vfmsq_f32(c.v2, a.v2, b.v2),
          vfmsq_f32(c.v3, a.v3, b.v3)};
}

EDGE_RT_INLINE VI vi_set1(int a) { return all_lanes(vdupq_n_s32(a)); }
EDGE_RT_INLINE VI vi_zero() { return vi_set1(0); }
EDGE_RT_INLINE VI vi_load(const int32_t* p) {
  return {vld1q_s32(p), vld1q_s32(p + 4), vld1q_s32(p + 8), vld1q_s32(p + 12)};
}
EDGE_RT_INLINE void vi_store(int32_t* p, VI a) {
  vst1q_s32(p, a.v0);
  vst1q_s32(p + 4, a.v1);
  vst1q_s32(p + 8, a.v2);
  vst1q_s32(p + 12, a.v3);
}
EDGE_RT_BINARY(VI, vi_add, vaddq_s32)
EDGE_RT_BINARY(VI, vi_sub, vsubq_s32)
EDGE_RT_INLINE VI vi_shl(VI a, int count) {
  const int32x4_t by = vdupq_n_s32(count);
  return {vshlq_s32(a.v0, by), vshlq_s32(a.v1, by), vshlq_s32(a.v2, by), vshlq_s32(a.v3, by)};
}
EDGE_RT_UNARY(VF, vf_from_bits, VI, vreinterpretq_f32_s32)
EDGE_RT_UNARY(VI, vi_from_bits, VF, vreinterpretq_s32_f32)

EDGE_RT_UNARY(VI, vi_round, VF, vcvtnq_s32_f32)
EDGE_RT_UNARY(VF, vf_from_i32, VI, vcvtq_f32_s32)
EDGE_RT_INLINE VF vf_lookup(const StepTable& table, VI index) {
  int32_t at[16];
  float found[16];
  vi_store(at, index);
  for (int l = 0; l < 16; ++l) found[l] = table.values[static_cast<uint8_t>(static_cast<uint32_t>(at[l]) + 128)];
  return vf_load(found);
}
EDGE_RT_INLINE VF from_signed(int8x16_t bytes) {
  const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_high_s8(bytes);
  return vf_from_i32(
      {vmovl_s16(vget_low_s16(low)), vmovl_high_s16(low), vmovl_s16(vget_low_s16(high)), vmovl_high_s16(high)});
}
EDGE_RT_INLINE VF vf_from_i8(const int8_t* p) { return from_signed(vld1q_s8(p)); }
EDGE_RT_INLINE VF vf_from_i8_n(const int8_t* p, int n) {
  if (n == 8) return from_signed(vcombine_s8(vld1_s8(p), vdup_n_s8(0)));
  int8_t lanes[16] = {};
  for (int l = 0; l < n && l < 16; ++l) lanes[l] = p[l];
  return vf_from_i8(lanes);
}
EDGE_RT_INLINE void vf_to_i8(int8_t* p, VI a) {
  const int16x8_t low = vcombine_s16(vmovn_s32(a.v0), vmovn_s32(a.v1));
  const int16x8_t high = vcombine_s16(vmovn_s32(a.v2), vmovn_s32(a.v3));
  vst1q_s8(p, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
}
EDGE_RT_INLINE float32x4_t from_half(const uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
EDGE_RT_INLINE VF vf_from_half(const uint16_t* p) {
  return {from_half(p), from_half(p + 4), from_half(p + 8), from_half(p + 12)};
}
EDGE_RT_INLINE VF vf_from_half_n(const uint16_t* p, int n) {
  if (n == 8) return {from_half(p), from_half(p + 4), vdupq_n_f32(0.0f), vdupq_n_f32(0.0f)};
  uint16_t lanes[16] = {};
  for (int l = 0; l < n && l < 16; ++l) lanes[l] = p[l];
  return vf_from_half(lanes);
}
EDGE_RT_INLINE float32x4_t from_bfloat(const uint16_t* p) {
  return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}
EDGE_RT_INLINE VF vf_from_bfloat(const uint16_t* p) {
  return {from_bfloat(p), from_bfloat(p + 4), from_bfloat(p + 8), from_bfloat(p + 12)};
}
EDGE_RT_INLINE void to_half(uint16_t* p, float32x4_t a) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(a))); }
EDGE_RT_INLINE void vf_to_half(uint16_t* p, VF a) {
  const VF clamped = vf_min(vf_set1(65504.0f), vf_max(vf_set1(-65504.0f), a));
  to_half(p, clamped.v0);
  to_half(p + 4, clamped.v1);
  to_half(p + 8, clamped.v2);
  to_half(p + 12, clamped.v3);
}

EDGE_RT_INLINE float32x4_t sum_to_4(VF a) { return vaddq_f32(vaddq_f32(a.v0, a.v2), vaddq_f32(a.v1, a.v3)); }
EDGE_RT_INLINE int32x4_t sum_to_4(VI a) { return vaddq_s32(vaddq_s32(a.v0, a.v2), vaddq_s32(a.v1, a.v3)); }
EDGE_RT_INLINE float vf_sum(VF a) {
  const float32x4_t four = sum_to_4(a);
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
EDGE_RT_INLINE float vf_hmax(VF a) {
  const float32x4_t four = greater(greater(a.v0, a.v2), greater(a.v1, a.v3));
  const float32x4_t two = greater(four, vextq_f32(four, four, 2));
  return vgetq_lane_f32(greater(two, vextq_f32(two, two, 1)), 0);
}
struct VS {
  uint64x2_t v;
};
EDGE_RT_INLINE VS vs_zero() { return {vdupq_n_u64(0)}; }
EDGE_RT_INLINE VS vs_add(VS sums, VI a) {
  sums.v = vpadalq_u32(sums.v, vreinterpretq_u32_s32(a.v0));
  sums.v = vpadalq_u32(sums.v, vreinterpretq_u32_s32(a.v1));
  sums.v = vpadalq_u32(sums.v, vreinterpretq_u32_s32(a.v2));
  return {vpadalq_u32(sums.v, vreinterpretq_u32_s32(a.v3))};
}
EDGE_RT_INLINE uint64_t vs_total(VS sums) { return vgetq_lane_u64(sums.v, 0) + vgetq_lane_u64(sums.v, 1); }
EDGE_RT_INLINE int32_t vi_sum(VI a) { return vaddvq_s32(sum_to_4(a)); }

// The last two steps of four sums at once: lane j is the sum of v[j].
EDGE_RT_INLINE float32x4_t sum4(const VF v[4]) {
  float32x4_t pair[2];
  for (int j = 0; j < 2; ++j) {
    const float64x2_t p = vreinterpretq_f64_f32(sum_to_4(v[2 * j]));
    const float64x2_t q = vreinterpretq_f64_f32(sum_to_4(v[2 * j + 1]));
    pair[j] = vaddq_f32(vreinterpretq_f32_f64(vtrn1q_f64(p, q)), vreinterpretq_f32_f64(vtrn2q_f64(p, q)));
  }
  return vpaddq_f32(pair[0], pair[1]);
}
EDGE_RT_INLINE int32x4_t sum4(const VI v[4]) {
  return vpaddq_s32(vpaddq_s32(sum_to_4(v[0]), sum_to_4(v[1])), vpaddq_s32(sum_to_4(v[2]), sum_to_4(v[3])));
}
EDGE_RT_INLINE VF vf_hmax16(const VF v[16]) {
  float largest[16];
  for (int j = 0; j < 16; ++j) largest[j] = vf_hmax(v[j]);
  return vf_load(largest);
}
EDGE_RT_INLINE VF vf_sum16(const VF v[16]) { return {sum4(v), sum4(v + 4), sum4(v + 8), sum4(v + 12)}; }
EDGE_RT_INLINE VI vi_sum16(const VI v[16]) { return {sum4(v), sum4(v + 4), sum4(v + 8), sum4(v + 12)}; }

EDGE_RT_INLINE VB vb_load(const int8_t* p) {
  return {vld1q_s8(p), vld1q_s8(p + 16), vld1q_s8(p + 32), vld1q_s8(p + 48)};
}
EDGE_RT_INLINE VB vb_set1_4(const int8_t* p) {
  int32_t four;
  std::memcpy(&four, p, sizeof four);
  const int8x16_t a = vreinterpretq_s8_s32(vdupq_n_s32(four));
  return {a, a, a, a};
}
EDGE_RT_INLINE VI vi_dot4(VI acc, VB a, VB b) {
  return {vdotq_s32(acc.v0, a.v0, b.v0), vdotq_s32(acc.v1, a.v1, b.v1), vdotq_s32(acc.v2, a.v2, b.v2),
          vdotq_s32(acc.v3, a.v3, b.v3)};
}

EDGE_RT_INLINE float32x4_t butterfly(float32x4_t a, float32x4_t other, uint32x4_t second) {
  return vbslq_f32(second, vsubq_f32(other, a), vaddq_f32(a, other));
}
template <int Distance>
EDGE_RT_INLINE VF vf_butterfly(VF a) {
  if constexpr (Distance == 8) {
    return {vaddq_f32(a.v0, a.v2), vaddq_f32(a.v1, a.v3), vsubq_f32(a.v0, a.v2), vsubq_f32(a.v1, a.v3)};
  } else if constexpr (Distance == 4) {
    return {vaddq_f32(a.v0, a.v1), vsubq_f32(a.v0, a.v1), vaddq_f32(a.v2, a.v3), vsubq_f32(a.v2, a.v3)};
  } else if constexpr (Distance == 2) {
    const uint32x4_t second = {0, 0, ~0u, ~0u};
    const auto step = [&](float32x4_t x) { return butterfly(x, vextq_f32(x, x, 2), second); };
    return {step(a.v0), step(a.v1), step(a.v2), step(a.v3)};
  } else {
    const uint32x4_t second = {0, ~0u, 0, ~0u};
    const auto step = [&](float32x4_t x) { return butterfly(x, vrev64q_f32(x), second); };
    return {step(a.v0), step(a.v1), step(a.v2), step(a.v3)};
  }
}
template <int Lane>
EDGE_RT_INLINE VF vf_lane(VF a) {
  const float32x4_t four = Lane < 4 ? a.v0 : Lane < 8 ? a.v1 : Lane < 12 ? a.v2 : a.v3;
  const float32x4_t all = vdupq_laneq_f32(four, Lane % 4);
  return {all, all, all, all};
}
EDGE_RT_INLINE VF from_bytes(uint8x16_t bytes) {
  const uint16x8_t low = vmovl_u8(vget_low_u8(bytes)), high = vmovl_high_u8(bytes);
  return {vcvtq_f32_u32(vmovl_u16(vget_low_u16(low))), vcvtq_f32_u32(vmovl_high_u16(low)),
          vcvtq_f32_u32(vmovl_u16(vget_low_u16(high))), vcvtq_f32_u32(vmovl_high_u16(high))};
}
EDGE_RT_INLINE void vf_from_nibbles(const uint8_t* p, float scale, float minimum, VF* lower, VF* upper) {
  const uint8x16_t bytes = vld1q_u8(p);
  *lower = vf_fma(from_bytes(vandq_u8(bytes, vdupq_n_u8(15))), vf_set1(scale), vf_set1(minimum));
  *upper = vf_fma(from_bytes(vshrq_n_u8(bytes, 4)), vf_set1(scale), vf_set1(minimum));
}
EDGE_RT_INLINE void vf_from_nibble_pairs(const uint8_t* codes, const uint8_t* finer, float scale, float minimum,
                                         VF* lower, VF* upper) {
  const uint8x16_t a = vld1q_u8(codes), b = vld1q_u8(finer);
  *lower = vf_fma(from_bytes(vsliq_n_u8(b, a, 4)), vf_set1(scale), vf_set1(minimum));
  *upper = vf_fma(from_bytes(vsriq_n_u8(a, b, 4)), vf_set1(scale), vf_set1(minimum));
}
EDGE_RT_INLINE void vf_from_half_pairs(VI words, VF* lower, VF* upper) {
  const auto half = [](uint16x4_t x) { return vcvt_f32_f16(vreinterpret_f16_u16(x)); };
  const uint32x4_t a = vreinterpretq_u32_s32(words.v0), b = vreinterpretq_u32_s32(words.v1);
  const uint32x4_t c = vreinterpretq_u32_s32(words.v2), d = vreinterpretq_u32_s32(words.v3);
  *lower = {half(vmovn_u32(a)), half(vmovn_u32(b)), half(vmovn_u32(c)), half(vmovn_u32(d))};
  *upper = {half(vshrn_n_u32(a, 16)), half(vshrn_n_u32(b, 16)), half(vshrn_n_u32(c, 16)), half(vshrn_n_u32(d, 16))};
}
EDGE_RT_INLINE void vi_load_split(const void* p, VI* even, VI* odd) {
  int32x4_t v[8];
  for (int i = 0; i < 8; ++i) v[i] = vreinterpretq_s32_u8(vld1q_u8(static_cast<const uint8_t*>(p) + 16 * i));
  *even = {vuzp1q_s32(v[0], v[1]), vuzp1q_s32(v[2], v[3]), vuzp1q_s32(v[4], v[5]), vuzp1q_s32(v[6], v[7])};
  *odd = {vuzp2q_s32(v[0], v[1]), vuzp2q_s32(v[2], v[3]), vuzp2q_s32(v[4], v[5]), vuzp2q_s32(v[6], v[7])};
}

EDGE_RT_INLINE void vb_store(int8_t* p, VB a) {
  vst1q_s8(p, a.v0);
  vst1q_s8(p + 16, a.v1);
  vst1q_s8(p + 32, a.v2);
  vst1q_s8(p + 48, a.v3);
}
EDGE_RT_INLINE int8x16_t lower_half(int8x16_t a) { return vandq_s8(a, vdupq_n_s8(15)); }
EDGE_RT_INLINE int8x16_t upper_half(int8x16_t a) { return vreinterpretq_s8_u8(vshrq_n_u8(vreinterpretq_u8_s8(a), 4)); }
EDGE_RT_INLINE int8x16_t join_halves(int8x16_t upper, int8x16_t lower) { return vorrq_s8(vshlq_n_s8(upper, 4), lower); }
EDGE_RT_INLINE int8x16_t flip_sign(int8x16_t a) { return veorq_s8(a, vdupq_n_s8(-128)); }
EDGE_RT_UNARY(VB, vb_lower, VB, lower_half)
EDGE_RT_UNARY(VB, vb_upper, VB, upper_half)
EDGE_RT_BINARY(VB, vb_join, join_halves)
EDGE_RT_UNARY(VB, vb_flip, VB, flip_sign)

EDGE_RT_INLINE VI vi_dot4_positive(VI acc, VB a, VB b) { return vi_dot4(acc, a, b); }
constexpr int32_t kReadyBias = 0;
EDGE_RT_INLINE VB vb_ready(VB a) { return a; }
EDGE_RT_INLINE VI vi_dot4_ready(VI acc, VB a, VB b) { return vi_dot4(acc, a, b); }

#undef EDGE_RT_UNARY
#undef EDGE_RT_BINARY

}  // namespace
}  // namespace EDGE_RT_ISA_NAMESPACE
}  // namespace edge_rt
