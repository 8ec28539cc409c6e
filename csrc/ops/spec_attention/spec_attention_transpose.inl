// Turns 16 rows of words (4 bytes) into columns. Four rows that lie four apart are loaded into one register, which then
// needs only transpositions of 4 by 4 within its quarters.

// out[k], lane j: word k of the 16 bytes at `offset` of row j, which begins at at(j).
#if defined(EDGE_RT_SIMD_AVX512)

template <class At>
EDGE_RT_INLINE void load_across(const At& at, int64_t offset, VB out[4]) {
  const auto quad = [&](int j) { return _mm_loadu_ps(reinterpret_cast<const float*>(at(j) + offset)); };
  __m512 v[4];
  for (int i = 0; i < 4; ++i) {
    v[i] = _mm512_castps128_ps512(quad(i));
    v[i] = _mm512_mask_broadcast_f32x4(v[i], 0x00f0, quad(i + 4));
    v[i] = _mm512_mask_broadcast_f32x4(v[i], 0x0f00, quad(i + 8));
    v[i] = _mm512_mask_broadcast_f32x4(v[i], 0xf000, quad(i + 12));
  }
  const __m512 a = _mm512_unpacklo_ps(v[0], v[1]), b = _mm512_unpackhi_ps(v[0], v[1]);
  const __m512 e = _mm512_unpacklo_ps(v[2], v[3]), f = _mm512_unpackhi_ps(v[2], v[3]);
  out[0].v = _mm512_castps_si512(_mm512_shuffle_ps(a, e, 0x44));
  out[1].v = _mm512_castps_si512(_mm512_shuffle_ps(a, e, 0xee));
  out[2].v = _mm512_castps_si512(_mm512_shuffle_ps(b, f, 0x44));
  out[3].v = _mm512_castps_si512(_mm512_shuffle_ps(b, f, 0xee));
}

#elif defined(EDGE_RT_SIMD_AVX2)

template <class At>
EDGE_RT_INLINE void load_across(const At& at, int64_t offset, VB out[4]) {
  const auto quad = [&](int j) { return _mm_loadu_ps(reinterpret_cast<const float*>(at(j) + offset)); };
  const auto half = [&](int first, __m256i to[4]) {
    __m256 v[4];
    for (int i = 0; i < 4; ++i) {
      v[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(quad(first + i)), quad(first + i + 4), 1);
    }
    const __m256 a = _mm256_unpacklo_ps(v[0], v[1]), b = _mm256_unpackhi_ps(v[0], v[1]);
    const __m256 e = _mm256_unpacklo_ps(v[2], v[3]), f = _mm256_unpackhi_ps(v[2], v[3]);
    to[0] = _mm256_castps_si256(_mm256_shuffle_ps(a, e, 0x44));
    to[1] = _mm256_castps_si256(_mm256_shuffle_ps(a, e, 0xee));
    to[2] = _mm256_castps_si256(_mm256_shuffle_ps(b, f, 0x44));
    to[3] = _mm256_castps_si256(_mm256_shuffle_ps(b, f, 0xee));
  };
  __m256i low[4], high[4];
  half(0, low);
  half(8, high);
  for (int k = 0; k < 4; ++k) out[k] = {low[k], high[k]};
}

#elif defined(EDGE_RT_SIMD_NEON)

template <class At>
EDGE_RT_INLINE void load_across(const At& at, int64_t offset, VB out[4]) {
  int8x16_t columns[4][4];  // [word][quarter of the rows]
  for (int j = 0; j < 4; ++j) {
    float32x4_t v[4];
    for (int i = 0; i < 4; ++i) {
      v[i] = vreinterpretq_f32_s8(vld1q_s8(reinterpret_cast<const int8_t*>(at(4 * j + i) + offset)));
    }
    const float32x4_t a = vzip1q_f32(v[0], v[2]), b = vzip2q_f32(v[0], v[2]);
    const float32x4_t e = vzip1q_f32(v[1], v[3]), f = vzip2q_f32(v[1], v[3]);
    columns[0][j] = vreinterpretq_s8_f32(vzip1q_f32(a, e));
    columns[1][j] = vreinterpretq_s8_f32(vzip2q_f32(a, e));
    columns[2][j] = vreinterpretq_s8_f32(vzip1q_f32(b, f));
    columns[3][j] = vreinterpretq_s8_f32(vzip2q_f32(b, f));
  }
  for (int k = 0; k < 4; ++k) out[k] = {columns[k][0], columns[k][1], columns[k][2], columns[k][3]};
}

#else

template <class At>
EDGE_RT_INLINE void load_across(const At& at, int64_t offset, VB out[4]) {
  for (int j = 0; j < 16; ++j) {
    const uint8_t* from = at(j) + offset;
    for (int k = 0; k < 4; ++k) std::memcpy(out[k].v + 4 * j, from + 4 * k, 4);
  }
}

#endif

// 16 words of each row: to[16 * k + j] = row j's word k.
inline void transpose16(const void* const rows[16], int64_t word, float* to) {
  for (int c = 0; c < 4; ++c) {
    VB words[4];
    load_across([&](int j) { return static_cast<const uint8_t*>(rows[j]); }, 4 * word + 16 * c, words);
    for (int k = 0; k < 4; ++k) vb_store(reinterpret_cast<int8_t*>(to + 64 * c + 16 * k), words[k]);
  }
}
