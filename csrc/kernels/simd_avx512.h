// The 16-lane vector types on AVX-512 with VNNI: one register each. What the functions mean is in simd_scalar.h.
#pragma once

#if defined(__FAST_MATH__)
#error "edge-rt's kernels promise the same bits everywhere: build without -ffast-math"
#endif

// GCC 12 takes the deliberately undefined registers inside of its own intrinsics for a mistake of their callers.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#else
#include <immintrin.h>
#endif

#include <cstdint>
#include <cstring>

#include "kernels/step_table.h"

#define EDGE_RT_INLINE inline __attribute__((always_inline))

namespace edge_rt {
namespace EDGE_RT_ISA_NAMESPACE {
namespace {

struct VF {
  __m512 v;
};
struct VI {
  __m512i v;
};
struct VB {
  __m512i v;
};

EDGE_RT_INLINE float s_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
EDGE_RT_INLINE float s_sqrt(float a) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(a))); }
EDGE_RT_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }

EDGE_RT_INLINE __mmask16 first_lanes(int n) { return static_cast<__mmask16>((1u << n) - 1); }

EDGE_RT_INLINE VF vf_zero() { return {_mm512_setzero_ps()}; }
EDGE_RT_INLINE VF vf_set1(float a) { return {_mm512_set1_ps(a)}; }
EDGE_RT_INLINE VF vf_load(const float* p) { return {_mm512_loadu_ps(p)}; }
EDGE_RT_INLINE VF vf_load_n(const float* p, int n) { return {_mm512_maskz_loadu_ps(first_lanes(n), p)}; }
EDGE_RT_INLINE void vf_store(float* p, VF a) { _mm512_storeu_ps(p, a.v); }
EDGE_RT_INLINE void vf_store_n(float* p, VF a, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), a.v); }

EDGE_RT_INLINE VF vf_add(VF a, VF b) { return {_mm512_add_ps(a.v, b.v)}; }
EDGE_RT_INLINE VF vf_sub(VF a, VF b) { return {_mm512_sub_ps(a.v, b.v)}; }
EDGE_RT_INLINE VF vf_mul(VF a, VF b) { return {_mm512_mul_ps(a.v, b.v)}; }
EDGE_RT_INLINE VF vf_div(VF a, VF b) { return {_mm512_div_ps(a.v, b.v)}; }
EDGE_RT_INLINE VF vf_fma(VF a, VF b, VF c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
EDGE_RT_INLINE VF vf_fnma(VF a, VF b, VF c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }
EDGE_RT_INLINE VF vf_max(VF a, VF b) { return {_mm512_max_ps(a.v, b.v)}; }
EDGE_RT_INLINE VF vf_min(VF a, VF b) { return {_mm512_min_ps(a.v, b.v)}; }
EDGE_RT_INLINE VF vf_where_less(VF a, VF b, VF x, VF y) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), y.v, x.v)};
}
EDGE_RT_INLINE VF vf_abs(VF a) { return {_mm512_abs_ps(a.v)}; }
EDGE_RT_INLINE VF vf_neg(VF a) { return {_mm512_xor_ps(a.v, _mm512_set1_ps(-0.0f))}; }
EDGE_RT_INLINE VF vf_sqrt(VF a) { return {_mm512_sqrt_ps(a.v)}; }

EDGE_RT_INLINE VI vi_zero() { return {_mm512_setzero_si512()}; }
EDGE_RT_INLINE VI vi_set1(int a) { return {_mm512_set1_epi32(a)}; }
EDGE_RT_INLINE VI vi_load(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
EDGE_RT_INLINE void vi_store(int32_t* p, VI a) { _mm512_storeu_si512(p, a.v); }
EDGE_RT_INLINE VI vi_add(VI a, VI b) { return {_mm512_add_epi32(a.v, b.v)}; }
EDGE_RT_INLINE VI vi_sub(VI a, VI b) { return {_mm512_sub_epi32(a.v, b.v)}; }
EDGE_RT_INLINE VI vi_shl(VI a, int count) { return {_mm512_sll_epi32(a.v, _mm_cvtsi32_si128(count))}; }
EDGE_RT_INLINE VF vf_from_bits(VI a) { return {_mm512_castsi512_ps(a.v)}; }
EDGE_RT_INLINE VI vi_from_bits(VF a) { return {_mm512_castps_si512(a.v)}; }

EDGE_RT_INLINE VI vi_round(VF a) {
  return {_mm512_cvt_roundps_epi32(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
EDGE_RT_INLINE VF vf_from_i32(VI a) { return {_mm512_cvtepi32_ps(a.v)}; }
EDGE_RT_INLINE VF vf_lookup(const StepTable& table, VI index) {
  const __m512i word = _mm512_srli_epi32(_mm512_add_epi32(index.v, _mm512_set1_epi32(128)), 3);
  const __m512i steps =
      _mm512_permutex2var_epi32(_mm512_loadu_si512(table.steps), word, _mm512_loadu_si512(table.steps + 16));
  const __mmask16 behind = _mm512_cmpge_epi32_mask(index.v, _mm512_srai_epi32(steps, 24));
  const __m512i value = _mm512_mask_srli_epi32(steps, behind, steps, 8);
  return {_mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(value, 24), 24))};
}
EDGE_RT_INLINE VF vf_from_i8(const int8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
EDGE_RT_INLINE VF vf_from_i8_n(const int8_t* p, int n) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(first_lanes(n), p)))};
}
EDGE_RT_INLINE void vf_to_i8(int8_t* p, VI a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v));
}
EDGE_RT_INLINE VF vf_from_half(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
EDGE_RT_INLINE VF vf_from_half_n(const uint16_t* p, int n) {
  return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(n), p))};
}
EDGE_RT_INLINE VF vf_from_bfloat(const uint16_t* p) {
  const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16))};
}
EDGE_RT_INLINE void vf_to_half(uint16_t* p, VF a) {
  const VF clamped = vf_min(vf_set1(65504.0f), vf_max(vf_set1(-65504.0f), a));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(clamped.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

EDGE_RT_INLINE float vf_sum(VF a) {
  const __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  const __m128 d = _mm_add_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_add_ss(d, _mm_movehdup_ps(d)));
}
EDGE_RT_INLINE float vf_hmax(VF a) {
  const __m256 b = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  const __m128 d = _mm_max_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_max_ss(d, _mm_movehdup_ps(d)));
}
EDGE_RT_INLINE int32_t vi_sum(VI a) {
  const __m256i b = _mm256_add_epi32(_mm512_castsi512_si256(a.v), _mm512_extracti32x8_epi32(a.v, 1));
  const __m128i c = _mm_add_epi32(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1));
  const __m128i d = _mm_add_epi32(c, _mm_shuffle_epi32(c, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(d, _mm_shuffle_epi32(d, 0xb1)));
}

struct VS {
  __m512i v;
};
EDGE_RT_INLINE VS vs_zero() { return {_mm512_setzero_si512()}; }
EDGE_RT_INLINE VS vs_add(VS sums, VI a) {
  const __m512i lower = _mm512_and_si512(a.v, _mm512_set1_epi64(0xffffffff));
  return {_mm512_add_epi64(sums.v, _mm512_add_epi64(lower, _mm512_srli_epi64(a.v, 32)))};
}
EDGE_RT_INLINE uint64_t vs_total(VS sums) { return static_cast<uint64_t>(_mm512_reduce_add_epi64(sums.v)); }

// Sums 16 registers crosswise. A step joins two registers p and q into one: `stay` holds one half of p's groups of
// lanes and the other half of q's, `cross` the groups that those must be added to; one shuffle a step instead of two.
// Joining v[j] with v[j + 8], then distances 4, 2, 1, leaves the sum of v[j] in lane j.
EDGE_RT_INLINE __m512 join8(__m512 p, __m512 q, __m512* cross) {
  *cross = _mm512_shuffle_f32x4(p, q, 0x4e);
  return _mm512_mask_blend_ps(0xff00, p, q);
}
EDGE_RT_INLINE __m512 join4(__m512 p, __m512 q, __m512* cross) {
  const __m512i pick = _mm512_setr_epi64(2, 3, 8, 9, 6, 7, 12, 13);
  *cross = _mm512_castpd_ps(_mm512_permutex2var_pd(_mm512_castps_pd(p), pick, _mm512_castps_pd(q)));
  return _mm512_mask_blend_ps(0xf0f0, p, q);
}
EDGE_RT_INLINE __m512 join2(__m512 p, __m512 q, __m512* cross) {
  *cross = _mm512_castpd_ps(_mm512_shuffle_pd(_mm512_castps_pd(p), _mm512_castps_pd(q), 0x55));
  return _mm512_mask_blend_ps(0xcccc, p, q);
}
EDGE_RT_INLINE __m512 join1(__m512 p, __m512 q, __m512* cross) {
  *cross = _mm512_permute_ps(_mm512_mask_blend_ps(0x5555, p, q), 0xb1);
  return _mm512_mask_blend_ps(0xaaaa, p, q);
}
EDGE_RT_INLINE VF vf_sum16(const VF v[16]) {
  __m512 a[8], b[4], c[2], cross;
  for (int j = 0; j < 8; ++j) {
    const __m512 stay = join8(v[j].v, v[j + 8].v, &cross);
    a[j] = _mm512_add_ps(stay, cross);
  }
  for (int j = 0; j < 4; ++j) {
    const __m512 stay = join4(a[j], a[j + 4], &cross);
    b[j] = _mm512_add_ps(stay, cross);
  }
  for (int j = 0; j < 2; ++j) {
    const __m512 stay = join2(b[j], b[j + 2], &cross);
    c[j] = _mm512_add_ps(stay, cross);
  }
  const __m512 stay = join1(c[0], c[1], &cross);
  return {_mm512_add_ps(stay, cross)};
}
EDGE_RT_INLINE VF vf_hmax16(const VF v[16]) {
  __m512 a[8], b[4], c[2], cross;
  for (int j = 0; j < 8; ++j) {
    const __m512 stay = join8(v[j].v, v[j + 8].v, &cross);
    a[j] = _mm512_max_ps(stay, cross);
  }
  for (int j = 0; j < 4; ++j) {
    const __m512 stay = join4(a[j], a[j + 4], &cross);
    b[j] = _mm512_max_ps(stay, cross);
  }
  for (int j = 0; j < 2; ++j) {
    const __m512 stay = join2(b[j], b[j + 2], &cross);
    c[j] = _mm512_max_ps(stay, cross);
  }
  const __m512 stay = join1(c[0], c[1], &cross);
  return {_mm512_max_ps(stay, cross)};
}
EDGE_RT_INLINE __m512 add_bits(__m512 a, __m512 b) {
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
}
EDGE_RT_INLINE VI vi_sum16(const VI v[16]) {
  __m512 a[8], b[4], c[2], cross;
  for (int j = 0; j < 8; ++j) {
    const __m512 stay = join8(_mm512_castsi512_ps(v[j].v), _mm512_castsi512_ps(v[j + 8].v), &cross);
    a[j] = add_bits(stay, cross);
  }
  for (int j = 0; j < 4; ++j) {
    const __m512 stay = join4(a[j], a[j + 4], &cross);
    b[j] = add_bits(stay, cross);
  }
  for (int j = 0; j < 2; ++j) {
    const __m512 stay = join2(b[j], b[j + 2], &cross);
    c[j] = add_bits(stay, cross);
  }
  const __m512 stay = join1(c[0], c[1], &cross);
  return {_mm512_castps_si512(add_bits(stay, cross))};
}

EDGE_RT_INLINE VB vb_load(const int8_t* p) { return {_mm512_loadu_si512(p)}; }
EDGE_RT_INLINE VB vb_set1_4(const int8_t* p) {
  int32_t four;
  std::memcpy(&four, p, sizeof four);
  return {_mm512_set1_epi32(four)};
}
// The instruction multiplies unsigned by signed bytes: |a| by b with a's sign.
EDGE_RT_INLINE VI vi_dot4(VI acc, VB a, VB b) {
  const __m512i signed_b = _mm512_mask_sub_epi8(b.v, _mm512_movepi8_mask(a.v), _mm512_setzero_si512(), b.v);
  return {_mm512_dpbusd_epi32(acc.v, _mm512_abs_epi8(a.v), signed_b)};
}

template <int Lane>
EDGE_RT_INLINE VF vf_lane(VF a) {
  return {_mm512_permutexvar_ps(_mm512_set1_epi32(Lane), a.v)};
}

template <int Distance>
EDGE_RT_INLINE VF vf_butterfly(VF a) {
  __m512 other;
  __mmask16 second;
  if constexpr (Distance == 8) {
    other = _mm512_shuffle_f32x4(a.v, a.v, 0x4e);
    second = 0xff00;
  } else if constexpr (Distance == 4) {
    other = _mm512_shuffle_f32x4(a.v, a.v, 0xb1);
    second = 0xf0f0;
  } else if constexpr (Distance == 2) {
    other = _mm512_permute_ps(a.v, 0x4e);
    second = 0xcccc;
  } else {
    other = _mm512_permute_ps(a.v, 0xb1);
    second = 0xaaaa;
  }
  return {_mm512_mask_sub_ps(_mm512_add_ps(a.v, other), second, other, a.v)};
}
EDGE_RT_INLINE __m512i words_of(const uint8_t* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
// All 16 results there are, then one picked by each half: the permutation looks at 4 bits alone.
EDGE_RT_INLINE void vf_from_nibbles(const uint8_t* p, float scale, float minimum, VF* lower, VF* upper) {
  const __m512 codes = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512 levels = _mm512_fmadd_ps(codes, _mm512_set1_ps(scale), _mm512_set1_ps(minimum));
  const __m512i words = words_of(p);
  lower->v = _mm512_permutexvar_ps(words, levels);
  upper->v = _mm512_permutexvar_ps(_mm512_srli_epi32(words, 4), levels);
}
EDGE_RT_INLINE void vf_from_nibble_pairs(const uint8_t* codes, const uint8_t* finer, float scale, float minimum,
                                         VF* lower, VF* upper) {
  const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
  const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(finer));
  // Bits shifted over the end of a byte are those that the other code provides.
  const __m128i last = _mm_set1_epi8(15);
  const __m128i low = _mm_ternarylogic_epi32(_mm_slli_epi16(a, 4), b, last, 0xd8);
  const __m128i high = _mm_ternarylogic_epi32(a, _mm_srli_epi16(b, 4), last, 0xd8);
  const __m512 scales = _mm512_set1_ps(scale), minimums = _mm512_set1_ps(minimum);
  lower->v = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(low)), scales, minimums);
  upper->v = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(high)), scales, minimums);
}
EDGE_RT_INLINE void vf_from_half_pairs(VI words, VF* lower, VF* upper) {
  lower->v = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words.v));
  upper->v = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(words.v, 16)));
}
EDGE_RT_INLINE void vi_load_split(const void* p, VI* even, VI* odd) {
  const __m512i a = _mm512_loadu_si512(p), b = _mm512_loadu_si512(static_cast<const char*>(p) + 64);
  const __m512i pick = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  even->v = _mm512_permutex2var_epi32(a, pick, b);
  odd->v = _mm512_permutex2var_epi32(a, _mm512_add_epi32(pick, _mm512_set1_epi32(1)), b);
}

EDGE_RT_INLINE void vb_store(int8_t* p, VB a) { _mm512_storeu_si512(p, a.v); }
EDGE_RT_INLINE VB vb_lower(VB a) { return {_mm512_and_si512(a.v, _mm512_set1_epi8(15))}; }
EDGE_RT_INLINE VB vb_upper(VB a) { return {_mm512_and_si512(_mm512_srli_epi16(a.v, 4), _mm512_set1_epi8(15))}; }
EDGE_RT_INLINE VB vb_join(VB upper, VB lower) { return {_mm512_or_si512(_mm512_slli_epi16(upper.v, 4), lower.v)}; }
EDGE_RT_INLINE VB vb_flip(VB a) { return {_mm512_xor_si512(a.v, _mm512_set1_epi8(-128))}; }

EDGE_RT_INLINE VI vi_dot4_positive(VI acc, VB a, VB b) { return {_mm512_dpbusd_epi32(acc.v, a.v, b.v)}; }
constexpr int32_t kReadyBias = 128;
EDGE_RT_INLINE VB vb_ready(VB a) { return vb_flip(a); }
EDGE_RT_INLINE VI vi_dot4_ready(VI acc, VB a, VB b) { return vi_dot4_positive(acc, a, b); }

}  // namespace
}  // namespace EDGE_RT_ISA_NAMESPACE
}  // namespace edge_rt
