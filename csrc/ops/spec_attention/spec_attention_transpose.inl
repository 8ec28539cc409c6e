// Turns 16 rows of 16 words (4 bytes) into 16 columns: to[16 * k + j] = row j's word k. Four rows that lie four apart
// are loaded into one register, which then needs only transpositions of 4 by 4 within its quarters.

#if defined(__AVX512F__)

inline void transpose16(const void* const rows[16], int64_t word, float* to) {
  const int64_t offset = 4 * word;
  const auto quad = [&](int j, int c) {
    return _mm_loadu_ps(reinterpret_cast<const float*>(static_cast<const char*>(rows[j]) + offset) + 4 * c);
  };
  for (int c = 0; c < 4; ++c) {
    __m512 v[4];
    for (int i = 0; i < 4; ++i) {
      v[i] = _mm512_castps128_ps512(quad(i, c));
      v[i] = _mm512_mask_broadcast_f32x4(v[i], 0x00f0, quad(i + 4, c));
      v[i] = _mm512_mask_broadcast_f32x4(v[i], 0x0f00, quad(i + 8, c));
      v[i] = _mm512_mask_broadcast_f32x4(v[i], 0xf000, quad(i + 12, c));
    }
    const __m512 a = _mm512_unpacklo_ps(v[0], v[1]), b = _mm512_unpackhi_ps(v[0], v[1]);
    const __m512 e = _mm512_unpacklo_ps(v[2], v[3]), f = _mm512_unpackhi_ps(v[2], v[3]);
    _mm512_storeu_ps(to + 64 * c, _mm512_shuffle_ps(a, e, 0x44));
    _mm512_storeu_ps(to + 64 * c + 16, _mm512_shuffle_ps(a, e, 0xee));
    _mm512_storeu_ps(to + 64 * c + 32, _mm512_shuffle_ps(b, f, 0x44));
    _mm512_storeu_ps(to + 64 * c + 48, _mm512_shuffle_ps(b, f, 0xee));
  }
}

#elif defined(__AVX2__)

inline void transpose16(const void* const rows[16], int64_t word, float* to) {
  const int64_t offset = 4 * word;
  const auto quad = [&](int j, int c) {
    return _mm_loadu_ps(reinterpret_cast<const float*>(static_cast<const char*>(rows[j]) + offset) + 4 * c);
  };
  for (int half = 0; half < 16; half += 8) {
    for (int c = 0; c < 4; ++c) {
      __m256 v[4];
      for (int i = 0; i < 4; ++i) {
        v[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(quad(half + i, c)), quad(half + i + 4, c), 1);
      }
      const __m256 a = _mm256_unpacklo_ps(v[0], v[1]), b = _mm256_unpackhi_ps(v[0], v[1]);
      const __m256 e = _mm256_unpacklo_ps(v[2], v[3]), f = _mm256_unpackhi_ps(v[2], v[3]);
      _mm256_storeu_ps(to + 64 * c + half, _mm256_shuffle_ps(a, e, 0x44));
      _mm256_storeu_ps(to + 64 * c + 16 + half, _mm256_shuffle_ps(a, e, 0xee));
      _mm256_storeu_ps(to + 64 * c + 32 + half, _mm256_shuffle_ps(b, f, 0x44));
      _mm256_storeu_ps(to + 64 * c + 48 + half, _mm256_shuffle_ps(b, f, 0xee));
    }
  }
}

#elif defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)

inline void transpose16(const void* const rows[16], int64_t word, float* to) {
  const int64_t offset = 4 * word;
  for (int j = 0; j < 16; j += 4) {
    for (int c = 0; c < 4; ++c) {
      float32x4_t v[4];
      for (int i = 0; i < 4; ++i) {
        v[i] = vld1q_f32(reinterpret_cast<const float*>(static_cast<const char*>(rows[j + i]) + offset) + 4 * c);
      }
      const float32x4_t a = vzip1q_f32(v[0], v[2]), b = vzip2q_f32(v[0], v[2]);
      const float32x4_t e = vzip1q_f32(v[1], v[3]), f = vzip2q_f32(v[1], v[3]);
      vst1q_f32(to + 64 * c + j, vzip1q_f32(a, e));
      vst1q_f32(to + 64 * c + 16 + j, vzip2q_f32(a, e));
      vst1q_f32(to + 64 * c + 32 + j, vzip1q_f32(b, f));
      vst1q_f32(to + 64 * c + 48 + j, vzip2q_f32(b, f));
    }
  }
}

#else

inline void transpose16(const void* const rows[16], int64_t word, float* to) {
  for (int j = 0; j < 16; ++j) {
    const char* from = static_cast<const char*>(rows[j]) + 4 * word;
    for (int k = 0; k < 16; ++k) std::memcpy(to + 16 * k + j, from + 4 * k, 4);
  }
}

#endif
