// The 16-lane vector types on AVX2, FMA and F16C: two registers each. With AVX-VNNI (or AVX-512's VNNI on 256 bits) the
// integer dot product is one instruction. What the functions mean is in simd_scalar.h.
#pragma once

#if defined(__FAST_MATH__)
#error "edge-rt's kernels promise the same bits everywhere: build without -ffast-math"
#endif

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/step_table.h"

#define EDGE_RT_INLINE inline __attribute__((always_inline))

namespace edge_rt {
namespace EDGE_RT_ISA_NAMESPACE {
namespace {

// lo: lanes 0..7 (bytes 0..31), hi: the others.
struct VF {
  __m256 lo, hi;
};
struct VI {
  __m256i lo, hi;
};
struct VB {
  __m256i lo, hi;
};

EDGE_RT_INLINE float s_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
EDGE_RT_INLINE float s_sqrt(float a) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(a))); }
EDGE_RT_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }

EDGE_RT_INLINE __m256i load256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
EDGE_RT_INLINE __m128i load128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
EDGE_RT_INLINE __m256i first_lanes(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

// The first n words of 4 bytes, and zeros.
EDGE_RT_INLINE __m128i load_words_n(const void* p, int n) {
  return _mm_maskload_epi32(static_cast<const int*>(p), _mm256_castsi256_si128(first_lanes(n)));
}

EDGE_RT_INLINE VF vf_zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
EDGE_RT_INLINE VF vf_set1(float a) { return {_mm256_set1_ps(a), _mm256_set1_ps(a)}; }
EDGE_RT_INLINE VF vf_load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
EDGE_RT_INLINE VF vf_load_n(const float* p, int n) {
  return {_mm256_maskload_ps(p, first_lanes(n)), _mm256_maskload_ps(p + 8, first_lanes(n - 8))};
}
EDGE_RT_INLINE void vf_store(float* p, VF a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
EDGE_RT_INLINE void vf_store_n(float* p, VF a, int n) {
  _mm256_maskstore_ps(p, first_lanes(n), a.lo);
  _mm256_maskstore_ps(p + 8, first_lanes(n - 8), a.hi);
}

EDGE_RT_INLINE VF vf_add(VF a, VF b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
EDGE_RT_INLINE VF vf_sub(VF a, VF b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
EDGE_RT_INLINE VF vf_mul(VF a, VF b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
EDGE_RT_INLINE VF vf_div(VF a, VF b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
EDGE_RT_INLINE VF vf_fma(VF a, VF b, VF c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
EDGE_RT_INLINE VF vf_fnma(VF a, VF b, VF c) {
  return {_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)};
}
EDGE_RT_INLINE VF vf_max(VF a, VF b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
EDGE_RT_INLINE VF vf_min(VF a, VF b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
EDGE_RT_INLINE VF vf_abs(VF a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
EDGE_RT_INLINE VF vf_where_less(VF a, VF b, VF x, VF y) {
  return {_mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
          _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}
EDGE_RT_INLINE VF vf_neg(VF a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_xor_ps(sign, a.lo), _mm256_xor_ps(sign, a.hi)};
}
EDGE_RT_INLINE VF vf_sqrt(VF a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }

EDGE_RT_INLINE VI vi_zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
EDGE_RT_INLINE VI vi_set1(int a) { return {_mm256_set1_epi32(a), _mm256_set1_epi32(a)}; }
EDGE_RT_INLINE VI vi_load(const int32_t* p) { return {load256(p), load256(p + 8)}; }
EDGE_RT_INLINE void vi_store(int32_t* p, VI a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.lo);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), a.hi);
}
EDGE_RT_INLINE VI vi_add(VI a, VI b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
EDGE_RT_INLINE VI vi_sub(VI a, VI b) { return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)}; }
EDGE_RT_INLINE VI vi_shl(VI a, int count) {
  const __m128i by = _mm_cvtsi32_si128(count);
  return {_mm256_sll_epi32(a.lo, by), _mm256_sll_epi32(a.hi, by)};
}
EDGE_RT_INLINE VF vf_from_bits(VI a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }
EDGE_RT_INLINE VI vi_from_bits(VF a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }

// Rounds first, as conversion alone would follow the thread's rounding mode.
EDGE_RT_INLINE __m256i round256(__m256 a) {
  return _mm256_cvttps_epi32(_mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
EDGE_RT_INLINE VI vi_round(VF a) { return {round256(a.lo), round256(a.hi)}; }
EDGE_RT_INLINE VF vf_from_i32(VI a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
EDGE_RT_INLINE __m256 lookup(const StepTable& table, __m256i index) {
  const __m256i at = _mm256_and_si256(_mm256_add_epi32(index, _mm256_set1_epi32(128)), _mm256_set1_epi32(255));
  return _mm256_i32gather_ps(table.values, at, 4);
}
EDGE_RT_INLINE VF vf_lookup(const StepTable& table, VI index) {
  return {lookup(table, index.lo), lookup(table, index.hi)};
}
EDGE_RT_INLINE VF from_signed(__m128i bytes) {
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(bytes, bytes)))};
}
EDGE_RT_INLINE VF vf_from_i8(const int8_t* p) { return from_signed(load128(p)); }
EDGE_RT_INLINE VF vf_from_i8_n(const int8_t* p, int n) {
  if (n % 4 == 0) return from_signed(load_words_n(p, n / 4));
  int8_t lanes[16] = {};
  std::memcpy(lanes, p, static_cast<size_t>(n));
  return vf_from_i8(lanes);
}
EDGE_RT_INLINE void vf_to_i8(int8_t* p, VI a) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0xd8);
  const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}
EDGE_RT_INLINE VF vf_from_half(const uint16_t* p) {
  return {_mm256_cvtph_ps(load128(p)), _mm256_cvtph_ps(load128(p + 8))};
}
EDGE_RT_INLINE VF vf_from_half_n(const uint16_t* p, int n) {
  return {_mm256_cvtph_ps(load_words_n(p, n / 2)), _mm256_cvtph_ps(load_words_n(p + 8, n / 2 - 4))};
}
EDGE_RT_INLINE VF vf_from_bfloat(const uint16_t* p) {
  const auto half = [](const uint16_t* from) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load128(from)), 16));
  };
  return {half(p), half(p + 8)};
}
EDGE_RT_INLINE void vf_to_half(uint16_t* p, VF a) {
  const VF clamped = vf_min(vf_set1(65504.0f), vf_max(vf_set1(-65504.0f), a));
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(clamped.lo, kNearest));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(clamped.hi, kNearest));
}

EDGE_RT_INLINE float vf_sum(VF a) {
  const __m256 b = _mm256_add_ps(a.lo, a.hi);
  const __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  const __m128 d = _mm_add_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_add_ss(d, _mm_movehdup_ps(d)));
}
EDGE_RT_INLINE float vf_hmax(VF a) {
  const __m256 b = _mm256_max_ps(a.lo, a.hi);
  const __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  const __m128 d = _mm_max_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_max_ss(d, _mm_movehdup_ps(d)));
}
EDGE_RT_INLINE int32_t vi_sum(VI a) {
  const __m256i b = _mm256_add_epi32(a.lo, a.hi);
  const __m128i c = _mm_add_epi32(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1));
  const __m128i d = _mm_add_epi32(c, _mm_shuffle_epi32(c, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(d, _mm_shuffle_epi32(d, 0xb1)));
}

struct VS {
  __m256i v;
};
EDGE_RT_INLINE VS vs_zero() { return {_mm256_setzero_si256()}; }
EDGE_RT_INLINE __m256i halves256(__m256i a) {
  const __m256i lower = _mm256_and_si256(a, _mm256_set1_epi64x(0xffffffff));
  return _mm256_add_epi64(lower, _mm256_srli_epi64(a, 32));
}
EDGE_RT_INLINE VS vs_add(VS sums, VI a) {
  return {_mm256_add_epi64(sums.v, _mm256_add_epi64(halves256(a.lo), halves256(a.hi)))};
}
EDGE_RT_INLINE uint64_t vs_total(VS sums) {
  uint64_t lanes[4];
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes), sums.v);
  return lanes[0] + lanes[1] + lanes[2] + lanes[3];
}

// Sums 8 registers crosswise. A step joins two registers p and q into one: `stay` holds one half of p's groups of
// lanes and the other half of q's, `cross` the groups that those must be added to; one shuffle a step instead of two.
// Joining v[j] with v[j + 4], then distances 2, 1, leaves the sum of v[j] in lane j.
struct Joined {
  __m256 stay, cross;
};
EDGE_RT_INLINE Joined join4(__m256 p, __m256 q) {
  return {_mm256_blend_ps(p, q, 0xf0), _mm256_permute2f128_ps(p, q, 0x21)};
}
EDGE_RT_INLINE Joined join2(__m256 p, __m256 q) {
  return {_mm256_blend_ps(p, q, 0xcc),
          _mm256_castpd_ps(_mm256_shuffle_pd(_mm256_castps_pd(p), _mm256_castps_pd(q), 0x5))};
}
EDGE_RT_INLINE Joined join1(__m256 p, __m256 q) {
  return {_mm256_blend_ps(p, q, 0xaa), _mm256_permute_ps(_mm256_blend_ps(p, q, 0x55), 0xb1)};
}
EDGE_RT_INLINE __m256 add(Joined j) { return _mm256_add_ps(j.stay, j.cross); }
EDGE_RT_INLINE __m256 sum8(const VF v[8]) {
  __m256 a[4], b[2];
  for (int j = 0; j < 4; ++j) {
    a[j] = add(join4(_mm256_add_ps(v[j].lo, v[j].hi), _mm256_add_ps(v[j + 4].lo, v[j + 4].hi)));
  }
  for (int j = 0; j < 2; ++j) b[j] = add(join2(a[j], a[j + 2]));
  return add(join1(b[0], b[1]));
}
EDGE_RT_INLINE VF vf_sum16(const VF v[16]) { return {sum8(v), sum8(v + 8)}; }

EDGE_RT_INLINE __m256 larger(Joined j) { return _mm256_max_ps(j.stay, j.cross); }
EDGE_RT_INLINE __m256 max8(const VF v[8]) {
  __m256 a[4], b[2];
  for (int j = 0; j < 4; ++j) {
    a[j] = larger(join4(_mm256_max_ps(v[j].lo, v[j].hi), _mm256_max_ps(v[j + 4].lo, v[j + 4].hi)));
  }
  for (int j = 0; j < 2; ++j) b[j] = larger(join2(a[j], a[j + 2]));
  return larger(join1(b[0], b[1]));
}
EDGE_RT_INLINE VF vf_hmax16(const VF v[16]) { return {max8(v), max8(v + 8)}; }

EDGE_RT_INLINE __m256i add_bits(Joined j) {
  return _mm256_add_epi32(_mm256_castps_si256(j.stay), _mm256_castps_si256(j.cross));
}
EDGE_RT_INLINE __m256 halves_added(VI a) { return _mm256_castsi256_ps(_mm256_add_epi32(a.lo, a.hi)); }
EDGE_RT_INLINE __m256i sum8(const VI v[8]) {
  __m256 a[4], b[2];
  for (int j = 0; j < 4; ++j) {
    a[j] = _mm256_castsi256_ps(add_bits(join4(halves_added(v[j]), halves_added(v[j + 4]))));
  }
  for (int j = 0; j < 2; ++j) b[j] = _mm256_castsi256_ps(add_bits(join2(a[j], a[j + 2])));
  return add_bits(join1(b[0], b[1]));
}
EDGE_RT_INLINE VI vi_sum16(const VI v[16]) { return {sum8(v), sum8(v + 8)}; }

EDGE_RT_INLINE VB vb_load(const int8_t* p) { return {load256(p), load256(p + 32)}; }
EDGE_RT_INLINE VB vb_set1_4(const int8_t* p) {
  int32_t four;
  std::memcpy(&four, p, sizeof four);
  return {_mm256_set1_epi32(four), _mm256_set1_epi32(four)};
}
// The instructions multiply unsigned by signed bytes: |a| by b with a's sign. Without VNNI pairs are added in 16 bits,
// which holds them: 2 * 128 * 127 < 2^15.
EDGE_RT_INLINE __m256i dot4(__m256i acc, __m256i a, __m256i b) {
  const __m256i size = _mm256_abs_epi8(a), signed_b = _mm256_sign_epi8(b, a);
#if defined(__AVXVNNI__)
  return _mm256_dpbusd_avx_epi32(acc, size, signed_b);
#elif defined(__AVX512VNNI__) && defined(__AVX512VL__)
  return _mm256_dpbusd_epi32(acc, size, signed_b);
#else
  const __m256i pairs = _mm256_maddubs_epi16(size, signed_b);
  return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#endif
}
EDGE_RT_INLINE VI vi_dot4(VI acc, VB a, VB b) { return {dot4(acc.lo, a.lo, b.lo), dot4(acc.hi, a.hi, b.hi)}; }

template <int Distance>
EDGE_RT_INLINE __m256 butterfly(__m256 a) {
  if constexpr (Distance == 4) {
    const __m256 other = _mm256_permute2f128_ps(a, a, 1);
    return _mm256_blend_ps(_mm256_add_ps(a, other), _mm256_sub_ps(other, a), 0xf0);
  } else if constexpr (Distance == 2) {
    const __m256 other = _mm256_permute_ps(a, 0x4e);
    return _mm256_blend_ps(_mm256_add_ps(a, other), _mm256_sub_ps(other, a), 0xcc);
  } else {
    const __m256 other = _mm256_permute_ps(a, 0xb1);
    return _mm256_blend_ps(_mm256_add_ps(a, other), _mm256_sub_ps(other, a), 0xaa);
  }
}
template <int Distance>
EDGE_RT_INLINE VF vf_butterfly(VF a) {
  if constexpr (Distance == 8) {
    return {_mm256_add_ps(a.lo, a.hi), _mm256_sub_ps(a.lo, a.hi)};
  } else {
    return {butterfly<Distance>(a.lo), butterfly<Distance>(a.hi)};
  }
}
template <int Lane>
EDGE_RT_INLINE VF vf_lane(VF a) {
  const __m256 all = _mm256_permutevar8x32_ps(Lane < 8 ? a.lo : a.hi, _mm256_set1_epi32(Lane % 8));
  return {all, all};
}
EDGE_RT_INLINE VI words_of(const uint8_t* p) {
  const __m128i bytes = load128(p);
  return {_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_unpackhi_epi64(bytes, bytes))};
}
EDGE_RT_INLINE void vf_from_nibbles(const uint8_t* p, float scale, float minimum, VF* lower, VF* upper) {
  const VI words = words_of(p);
  const __m256i last = _mm256_set1_epi32(15);
  const VF low = vf_from_i32({_mm256_and_si256(words.lo, last), _mm256_and_si256(words.hi, last)});
  const VF high = vf_from_i32({_mm256_srli_epi32(words.lo, 4), _mm256_srli_epi32(words.hi, 4)});
  *lower = vf_fma(low, vf_set1(scale), vf_set1(minimum));
  *upper = vf_fma(high, vf_set1(scale), vf_set1(minimum));
}
EDGE_RT_INLINE VF from_bytes(__m128i bytes) {
  return vf_from_i32({_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_unpackhi_epi64(bytes, bytes))});
}
EDGE_RT_INLINE void vf_from_nibble_pairs(const uint8_t* codes, const uint8_t* finer, float scale, float minimum,
                                         VF* lower, VF* upper) {
  const __m128i a = load128(codes), b = load128(finer), last = _mm_set1_epi8(15);
  const __m128i low = _mm_or_si128(_mm_slli_epi16(_mm_and_si128(a, last), 4), _mm_and_si128(b, last));
  const __m128i high = _mm_or_si128(_mm_andnot_si128(last, a), _mm_and_si128(_mm_srli_epi16(b, 4), last));
  *lower = vf_fma(from_bytes(low), vf_set1(scale), vf_set1(minimum));
  *upper = vf_fma(from_bytes(high), vf_set1(scale), vf_set1(minimum));
}
EDGE_RT_INLINE void vf_from_half_pairs(VI words, VF* lower, VF* upper) {
  // Without signs, so that packing takes the words as they are.
  const __m256i a = words.lo, b = words.hi, first = _mm256_set1_epi32(0xffff);
  const auto pack = [](__m256i x, __m256i y) { return _mm256_permute4x64_epi64(_mm256_packus_epi32(x, y), 0xd8); };
  const __m256i low = pack(_mm256_and_si256(a, first), _mm256_and_si256(b, first));
  const __m256i high = pack(_mm256_srli_epi32(a, 16), _mm256_srli_epi32(b, 16));
  *lower = {_mm256_cvtph_ps(_mm256_castsi256_si128(low)), _mm256_cvtph_ps(_mm256_extracti128_si256(low, 1))};
  *upper = {_mm256_cvtph_ps(_mm256_castsi256_si128(high)), _mm256_cvtph_ps(_mm256_extracti128_si256(high, 1))};
}
EDGE_RT_INLINE void vi_load_split(const void* p, VI* even, VI* odd) {
  const auto half = [](const char* from, __m256i* first, __m256i* second) {
    const __m256 a = _mm256_loadu_ps(reinterpret_cast<const float*>(from));
    const __m256 b = _mm256_loadu_ps(reinterpret_cast<const float*>(from + 32));
    *first = _mm256_permute4x64_epi64(_mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88)), 0xd8);
    *second = _mm256_permute4x64_epi64(_mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd)), 0xd8);
  };
  half(static_cast<const char*>(p), &even->lo, &odd->lo);
  half(static_cast<const char*>(p) + 64, &even->hi, &odd->hi);
}

EDGE_RT_INLINE void vb_store(int8_t* p, VB a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.lo);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 32), a.hi);
}
EDGE_RT_INLINE VB vb_lower(VB a) {
  const __m256i last = _mm256_set1_epi8(15);
  return {_mm256_and_si256(a.lo, last), _mm256_and_si256(a.hi, last)};
}
EDGE_RT_INLINE VB vb_upper(VB a) { return vb_lower({_mm256_srli_epi16(a.lo, 4), _mm256_srli_epi16(a.hi, 4)}); }
EDGE_RT_INLINE VB vb_join(VB upper, VB lower) {
  return {_mm256_or_si256(_mm256_slli_epi16(upper.lo, 4), lower.lo),
          _mm256_or_si256(_mm256_slli_epi16(upper.hi, 4), lower.hi)};
}
EDGE_RT_INLINE VB vb_flip(VB a) {
  const __m256i sign = _mm256_set1_epi8(-128);
  return {_mm256_xor_si256(a.lo, sign), _mm256_xor_si256(a.hi, sign)};
}

#if defined(__AVXVNNI__) || (defined(__AVX512VNNI__) && defined(__AVX512VL__))
EDGE_RT_INLINE VI vi_dot4_positive(VI acc, VB a, VB b) {
#if defined(__AVXVNNI__)
  return {_mm256_dpbusd_avx_epi32(acc.lo, a.lo, b.lo), _mm256_dpbusd_avx_epi32(acc.hi, a.hi, b.hi)};
#else
  return {_mm256_dpbusd_epi32(acc.lo, a.lo, b.lo), _mm256_dpbusd_epi32(acc.hi, a.hi, b.hi)};
#endif
}
constexpr int32_t kReadyBias = 128;
EDGE_RT_INLINE VB vb_ready(VB a) { return vb_flip(a); }
EDGE_RT_INLINE VI vi_dot4_ready(VI acc, VB a, VB b) { return vi_dot4_positive(acc, a, b); }
#else
EDGE_RT_INLINE __m256i dot4_positive(__m256i acc, __m256i a, __m256i b) {
  return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1)));
}
EDGE_RT_INLINE VI vi_dot4_positive(VI acc, VB a, VB b) {
  return {dot4_positive(acc.lo, a.lo, b.lo), dot4_positive(acc.hi, a.hi, b.hi)};
}
// Unsigned bytes above 127 would not fit the sums of 16 bits.
constexpr int32_t kReadyBias = 0;
EDGE_RT_INLINE VB vb_ready(VB a) { return a; }
EDGE_RT_INLINE VI vi_dot4_ready(VI acc, VB a, VB b) { return vi_dot4(acc, a, b); }
#endif

}  // namespace
}  // namespace EDGE_RT_ISA_NAMESPACE
}  // namespace edge_rt
