// The 16-lane vector types in plain C++: what every other set of types must equal, bit for bit.
//
// Kernels are written once over these names and compiled once per instruction set. One virtual width of 16 lanes, one
// order of every sum and IEEE operations only give the same bits on every CPU; only NaN need not agree.
// The build defines EDGE_RT_ISA_NAMESPACE, which keeps the sets apart in one library.
#pragma once

#if defined(__FAST_MATH__)
#error "edge-rt's kernels promise the same bits everywhere: build without -ffast-math"
#endif

#include <cstdint>
#include <cstring>

#include "kernels/step_table.h"

#define EDGE_RT_INLINE inline __attribute__((always_inline))

namespace edge_rt {
namespace EDGE_RT_ISA_NAMESPACE {
namespace {

struct VF {
  float v[16];
};
struct VI {
  int32_t v[16];
};
struct VB {
  int8_t v[64];
};

EDGE_RT_INLINE float s_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
EDGE_RT_INLINE float s_sqrt(float a) { return __builtin_sqrtf(a); }
EDGE_RT_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }

// Each body sees the lane l and sets out.v[l].
#define EDGE_RT_LANES(type, expression)                 \
  type out;                                             \
  for (int l = 0; l < 16; ++l) out.v[l] = (expression); \
  return out

EDGE_RT_INLINE VF vf_set1(float a) { EDGE_RT_LANES(VF, a); }
EDGE_RT_INLINE VF vf_zero() { return vf_set1(0.0f); }
EDGE_RT_INLINE VF vf_load(const float* p) { EDGE_RT_LANES(VF, p[l]); }
EDGE_RT_INLINE VF vf_load_n(const float* p, int n) { EDGE_RT_LANES(VF, l < n ? p[l] : 0.0f); }
EDGE_RT_INLINE void vf_store(float* p, VF a) { std::memcpy(p, a.v, sizeof a.v); }
EDGE_RT_INLINE void vf_store_n(float* p, VF a, int n) {
  for (int l = 0; l < n && l < 16; ++l) p[l] = a.v[l];
}

EDGE_RT_INLINE VF vf_add(VF a, VF b) { EDGE_RT_LANES(VF, a.v[l] + b.v[l]); }
EDGE_RT_INLINE VF vf_sub(VF a, VF b) { EDGE_RT_LANES(VF, a.v[l] - b.v[l]); }
EDGE_RT_INLINE VF vf_mul(VF a, VF b) { EDGE_RT_LANES(VF, a.v[l] * b.v[l]); }
EDGE_RT_INLINE VF vf_div(VF a, VF b) { EDGE_RT_LANES(VF, a.v[l] / b.v[l]); }
EDGE_RT_INLINE VF vf_fma(VF a, VF b, VF c) { EDGE_RT_LANES(VF, s_fma(a.v[l], b.v[l], c.v[l])); }
EDGE_RT_INLINE VF vf_fnma(VF a, VF b, VF c) { EDGE_RT_LANES(VF, s_fma(-a.v[l], b.v[l], c.v[l])); }
EDGE_RT_INLINE VF vf_sqrt(VF a) { EDGE_RT_LANES(VF, s_sqrt(a.v[l])); }
// The second operand where neither is greater: settles which zero comes out, and lets a NaN through in `b`.
EDGE_RT_INLINE VF vf_max(VF a, VF b) { EDGE_RT_LANES(VF, a.v[l] > b.v[l] ? a.v[l] : b.v[l]); }
EDGE_RT_INLINE VF vf_min(VF a, VF b) { EDGE_RT_LANES(VF, a.v[l] < b.v[l] ? a.v[l] : b.v[l]); }
// x where a < b, else y; y where one of them is no number.
EDGE_RT_INLINE VF vf_where_less(VF a, VF b, VF x, VF y) { EDGE_RT_LANES(VF, a.v[l] < b.v[l] ? x.v[l] : y.v[l]); }

EDGE_RT_INLINE VI vi_set1(int a) { EDGE_RT_LANES(VI, a); }
EDGE_RT_INLINE VI vi_zero() { return vi_set1(0); }
EDGE_RT_INLINE VI vi_load(const int32_t* p) { EDGE_RT_LANES(VI, p[l]); }
EDGE_RT_INLINE void vi_store(int32_t* p, VI a) { std::memcpy(p, a.v, sizeof a.v); }
// Integers wrap around.
EDGE_RT_INLINE int32_t wrap(uint32_t a) { return static_cast<int32_t>(a); }
EDGE_RT_INLINE uint32_t word(int32_t a) { return static_cast<uint32_t>(a); }
EDGE_RT_INLINE VI vi_add(VI a, VI b) { EDGE_RT_LANES(VI, wrap(word(a.v[l]) + word(b.v[l]))); }
EDGE_RT_INLINE VI vi_sub(VI a, VI b) { EDGE_RT_LANES(VI, wrap(word(a.v[l]) - word(b.v[l]))); }
EDGE_RT_INLINE VI vi_shl(VI a, int count) { EDGE_RT_LANES(VI, wrap(word(a.v[l]) << count)); }

EDGE_RT_INLINE VF vf_from_bits(VI a) {
  VF out;
  std::memcpy(out.v, a.v, sizeof out.v);
  return out;
}
EDGE_RT_INLINE VI vi_from_bits(VF a) {
  VI out;
  std::memcpy(out.v, a.v, sizeof out.v);
  return out;
}
EDGE_RT_INLINE VF vf_abs(VF a) {
  VI bits = vi_from_bits(a);
  for (int l = 0; l < 16; ++l) bits.v[l] &= 0x7fffffff;
  return vf_from_bits(bits);
}
EDGE_RT_INLINE VF vf_neg(VF a) {
  VI bits = vi_from_bits(a);
  for (int l = 0; l < 16; ++l) bits.v[l] = wrap(word(bits.v[l]) ^ 0x80000000u);
  return vf_from_bits(bits);
}

// To the nearest integer, ties to even. Values whose integer needs more than 32 bits give any integer.
EDGE_RT_INLINE int32_t round_to_int(float a) {
  constexpr float kWhole = 8388608.0f;  // 2^23: from here on every float is an integer, below it adding it rounds
  if (!(a > -2147483648.0f && a < 2147483648.0f)) return INT32_MIN;
  const float shift = a < 0.0f ? -kWhole : kWhole;
  if (a > -kWhole && a < kWhole) a = (a + shift) - shift;
  return static_cast<int32_t>(a);
}
EDGE_RT_INLINE VI vi_round(VF a) { EDGE_RT_LANES(VI, round_to_int(a.v[l])); }
EDGE_RT_INLINE VF vf_from_i32(VI a) { EDGE_RT_LANES(VF, static_cast<float>(a.v[l])); }
// Integers beyond -128..127 give any of the values.
EDGE_RT_INLINE VF vf_lookup(const StepTable& table, VI index) {
  EDGE_RT_LANES(VF, table.values[static_cast<uint8_t>(word(index.v[l]) + 128)]);
}
EDGE_RT_INLINE VF vf_from_i8(const int8_t* p) { EDGE_RT_LANES(VF, static_cast<float>(p[l])); }
// The first n lanes, and zeros; nothing behind n is read. n is even.
EDGE_RT_INLINE VF vf_from_i8_n(const int8_t* p, int n) { EDGE_RT_LANES(VF, l < n ? static_cast<float>(p[l]) : 0.0f); }
// Values outside of -127..127 give any byte.
EDGE_RT_INLINE void vf_to_i8(int8_t* p, VI a) {
  for (int l = 0; l < 16; ++l) p[l] = static_cast<int8_t>(a.v[l]);
}

EDGE_RT_INLINE float float_of_bits(uint32_t bits) {
  float out;
  std::memcpy(&out, &bits, sizeof out);
  return out;
}
EDGE_RT_INLINE float float_of_half(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16, exponent = (half >> 10) & 31, rest = half & 0x3ff;
  if (exponent == 31) return float_of_bits(sign | 0x7f800000u | rest << 13);
  if (exponent != 0) return float_of_bits(sign | (exponent + 112) << 23 | rest << 13);
  const float small = static_cast<float>(rest) * 5.9604644775390625e-08f;  // 2^-24: exact
  return sign != 0 ? -small : small;
}
EDGE_RT_INLINE uint16_t half_of_float(float a) {
  constexpr float kLargest = 65504.0f;
  uint32_t bits;
  std::memcpy(&bits, &a, sizeof bits);
  const uint32_t sign = (bits >> 16) & 0x8000;
  bits &= 0x7fffffff;
  if (bits > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00);
  float size = float_of_bits(bits);
  if (size > kLargest) size = kLargest;
  if (size < 6.103515625e-05f) {  // 2^-14: what is below is a multiple of 2^-24
    return static_cast<uint16_t>(sign | word(round_to_int(size * 16777216.0f)));
  }
  std::memcpy(&bits, &size, sizeof bits);
  bits += 0xfff + ((bits >> 13) & 1);  // ties to even
  return static_cast<uint16_t>(sign | ((bits >> 13) - (112u << 10)));
}
EDGE_RT_INLINE VF vf_from_half(const uint16_t* p) { EDGE_RT_LANES(VF, float_of_half(p[l])); }
EDGE_RT_INLINE VF vf_from_half_n(const uint16_t* p, int n) { EDGE_RT_LANES(VF, l < n ? float_of_half(p[l]) : 0.0f); }
EDGE_RT_INLINE VF vf_from_bfloat(const uint16_t* p) {
  VI words;
  for (int l = 0; l < 16; ++l) words.v[l] = wrap(uint32_t{p[l]} << 16);
  return vf_from_bits(words);
}
// To nearest, ties to even; what lies beyond +-65504, infinity too, becomes +-65504.
EDGE_RT_INLINE void vf_to_half(uint16_t* p, VF a) {
  for (int l = 0; l < 16; ++l) p[l] = half_of_float(a.v[l]);
}

// Sums are trees: l + (l+8), then l + (l+4), l + (l+2), l + (l+1).
EDGE_RT_INLINE float vf_sum(VF a) {
  for (int half = 8; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) a.v[l] = a.v[l] + a.v[l + half];
  }
  return a.v[0];
}
EDGE_RT_INLINE float vf_hmax(VF a) {
  for (int half = 8; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) a.v[l] = a.v[l] > a.v[l + half] ? a.v[l] : a.v[l + half];
  }
  return a.v[0];
}
EDGE_RT_INLINE int32_t vi_sum(VI a) {
  uint32_t sum = 0;
  for (int l = 0; l < 16; ++l) sum += word(a.v[l]);
  return wrap(sum);
}
// Sums of words taken for unsigned, in 64 bits: in whatever order, they are exact.
struct VS {
  uint64_t v;
};
EDGE_RT_INLINE VS vs_zero() { return {0}; }
EDGE_RT_INLINE VS vs_add(VS sums, VI a) {
  for (int l = 0; l < 16; ++l) sums.v += word(a.v[l]);
  return sums;
}
EDGE_RT_INLINE uint64_t vs_total(VS sums) { return sums.v; }
// Lane j is the sum of v[j].
EDGE_RT_INLINE VF vf_sum16(const VF v[16]) { EDGE_RT_LANES(VF, vf_sum(v[l])); }
// Lane j: the largest lane of v[j].
EDGE_RT_INLINE VF vf_hmax16(const VF v[16]) { EDGE_RT_LANES(VF, vf_hmax(v[l])); }
EDGE_RT_INLINE VI vi_sum16(const VI v[16]) { EDGE_RT_LANES(VI, vi_sum(v[l])); }

EDGE_RT_INLINE VB vb_load(const int8_t* p) {
  VB out;
  std::memcpy(out.v, p, sizeof out.v);
  return out;
}
EDGE_RT_INLINE VB vb_set1_4(const int8_t* p) {
  VB out;
  for (int l = 0; l < 16; ++l) std::memcpy(out.v + 4 * l, p, 4);
  return out;
}
// acc[l] + the sum over k < 4 of a[4l + k] * b[4l + k], exact: a in -128..127, b in -127..127.
EDGE_RT_INLINE VI vi_dot4(VI acc, VB a, VB b) {
  for (int l = 0; l < 16; ++l) {
    int32_t sum = 0;
    for (int k = 0; k < 4; ++k) sum += a.v[4 * l + k] * b.v[4 * l + k];
    acc.v[l] = wrap(word(acc.v[l]) + word(sum));
  }
  return acc;
}

// a[l] + a[l + Distance] in the lower lane of every pair of lanes Distance apart, a[l - Distance] - a[l] in the other.
template <int Distance>
EDGE_RT_INLINE VF vf_butterfly(VF a) {
  EDGE_RT_LANES(VF, (l & Distance) == 0 ? a.v[l] + a.v[l ^ Distance] : a.v[l ^ Distance] - a.v[l]);
}
// One lane in all lanes.
template <int Lane>
EDGE_RT_INLINE VF vf_lane(VF a) {
  return vf_set1(a.v[Lane]);
}
// fma(code, scale, minimum) of 16 bytes' lower halves, and of their upper ones.
EDGE_RT_INLINE void vf_from_nibbles(const uint8_t* p, float scale, float minimum, VF* lower, VF* upper) {
  for (int l = 0; l < 16; ++l) {
    lower->v[l] = s_fma(static_cast<float>(p[l] & 15), scale, minimum);
    upper->v[l] = s_fma(static_cast<float>(p[l] >> 4), scale, minimum);
  }
}
// The same of codes of 8 bits, whose upper halves are `codes` and whose lower ones `finer`.
EDGE_RT_INLINE void vf_from_nibble_pairs(const uint8_t* codes, const uint8_t* finer, float scale, float minimum,
                                         VF* lower, VF* upper) {
  for (int l = 0; l < 16; ++l) {
    lower->v[l] = s_fma(static_cast<float>((codes[l] & 15) * 16 + (finer[l] & 15)), scale, minimum);
    upper->v[l] = s_fma(static_cast<float>((codes[l] & 0xf0) + (finer[l] >> 4)), scale, minimum);
  }
}
// The halves that lie in the lower, and in the upper two bytes of words.
EDGE_RT_INLINE void vf_from_half_pairs(VI words, VF* lower, VF* upper) {
  for (int l = 0; l < 16; ++l) {
    lower->v[l] = float_of_half(static_cast<uint16_t>(word(words.v[l])));
    upper->v[l] = float_of_half(static_cast<uint16_t>(word(words.v[l]) >> 16));
  }
}
// Words 0, 2, 4 ... and 1, 3, 5 ... of 32; p need not be aligned.
EDGE_RT_INLINE void vi_load_split(const void* p, VI* even, VI* odd) {
  for (int l = 0; l < 16; ++l) {
    std::memcpy(&even->v[l], static_cast<const char*>(p) + 8 * l, 4);
    std::memcpy(&odd->v[l], static_cast<const char*>(p) + 8 * l + 4, 4);
  }
}

EDGE_RT_INLINE void vb_store(int8_t* p, VB a) { std::memcpy(p, a.v, sizeof a.v); }
#define EDGE_RT_BYTES(expression)                                          \
  VB out;                                                                  \
  for (int l = 0; l < 64; ++l) out.v[l] = static_cast<int8_t>(expression); \
  return out
// The lower half of every byte; the upper one; a byte of two halves, both 0 to 15.
EDGE_RT_INLINE VB vb_lower(VB a) { EDGE_RT_BYTES(a.v[l] & 15); }
EDGE_RT_INLINE VB vb_upper(VB a) { EDGE_RT_BYTES((a.v[l] >> 4) & 15); }
EDGE_RT_INLINE VB vb_join(VB upper, VB lower) { EDGE_RT_BYTES(upper.v[l] * 16 + lower.v[l]); }
// Adds 128 to every byte, or takes it away: between signed bytes and unsigned ones.
EDGE_RT_INLINE VB vb_flip(VB a) { EDGE_RT_BYTES(a.v[l] ^ 0x80); }
#undef EDGE_RT_BYTES

// vi_dot4 with a in 0..127.
EDGE_RT_INLINE VI vi_dot4_positive(VI acc, VB a, VB b) { return vi_dot4(acc, a, b); }
// vi_dot4 for many b: vi_dot4_ready(acc, vb_ready(a), b) is vi_dot4(acc, a, b) plus kReadyBias * (the sum of b's four).
constexpr int32_t kReadyBias = 0;
EDGE_RT_INLINE VB vb_ready(VB a) { return a; }
EDGE_RT_INLINE VI vi_dot4_ready(VI acc, VB a, VB b) { return vi_dot4(acc, a, b); }

#undef EDGE_RT_LANES

}  // namespace
}  // namespace EDGE_RT_ISA_NAMESPACE
}  // namespace edge_rt
