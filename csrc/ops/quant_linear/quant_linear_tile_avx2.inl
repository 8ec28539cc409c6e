// QuantLinear's inner loops on AVX2: a ymm holds one input quartet of 8 rows, so a tile is walked once per half.
//
// Without VNNI, 4-bit codes are multiplied into 16-bit sums: a block adds at most 8 * 2 * 15 * 127 = 30480 to one,
// which fits. 8-bit codes go through |q| and the sign moved to x: 2 * 128 * 127 = 32512 fits, but only once.

#if defined(__AVXVNNI__) || (defined(__AVX512VNNI__) && defined(__AVX512VL__))
#define EDGE_RT_DPBUSD_256 1
#else
#define EDGE_RT_DPBUSD_256 0
#endif

inline __m256i broadcast4(const int8_t* four) {
  return _mm256_castps_si256(_mm256_broadcast_ss(reinterpret_cast<const float*>(four)));
}

// Keeps a sum a chain of additions. Left alone, the compiler makes trees of them, whose many ends it keeps in memory.
inline void keep_order(__m256i& sum) { asm("" : "+x"(sum)); }

inline __m256 half_scales(const uint8_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

// Sums of 8 rows of a tile for rows [first, first + M) of a group of `rows`.
template <int M, bool has_minimum>
inline void dot_half_4bit(const Tile& tile, int rows, int half, __m256* f) {
  constexpr int kBytes = has_minimum ? 320 : 288;
  const __m256i low = _mm256_set1_epi8(15);
  const __m256i magic = _mm256_set1_epi32(kMagicBits);
  const __m256 minus_magic = _mm256_set1_ps(-kMagic);
  const uint8_t* w = tile.weight;
  const int8_t* a = tile.codes;
  const float* scale = tile.scale;
  const uint32_t* extra = tile.extra;
  for (int m = 0; m < M; ++m) f[m] = _mm256_setzero_ps();
  for (int64_t b = 0; b < tile.blocks; ++b, w += kBytes, a += kBlock * rows, scale += rows, extra += rows) {
    if (half == 0) prefetch_weights<kBytes>(w, tile.prefetch_end);
    __m256i sum[M];
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) sum[m] = _mm256_setzero_si256();
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m256i packed = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w + 64 * i + 32 * half));
      const __m256i even = _mm256_and_si256(packed, low);
      const __m256i odd = _mm256_and_si256(_mm256_srli_epi16(packed, 4), low);
#pragma GCC unroll 4
      for (int m = 0; m < M; ++m) {
        const int8_t* x = a + kBlock * m + 8 * i;
#if EDGE_RT_DPBUSD_256
        sum[m] = _mm256_dpbusd_epi32(_mm256_dpbusd_epi32(sum[m], even, broadcast4(x)), odd, broadcast4(x + 4));
#else
        sum[m] = _mm256_add_epi16(sum[m], _mm256_maddubs_epi16(even, broadcast4(x)));
        keep_order(sum[m]);
        sum[m] = _mm256_add_epi16(sum[m], _mm256_maddubs_epi16(odd, broadcast4(x + 4)));
        keep_order(sum[m]);
#endif
      }
    }
    const __m256 d = half_scales(w + 256 + 16 * half);
    const __m256 offset = _mm256_mul_ps(d, minus_magic);
    __m256 minimum = d;
    if (has_minimum) minimum = half_scales(w + 288 + 16 * half);
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) {
#if EDGE_RT_DPBUSD_256
      __m256i dot = _mm256_add_epi32(sum[m], magic);
#else
      __m256i dot = _mm256_add_epi32(_mm256_madd_epi16(sum[m], _mm256_set1_epi16(1)), magic);
#endif
      if (!has_minimum) dot = _mm256_add_epi32(dot, _mm256_set1_epi32(static_cast<int>(extra[m])));
      const __m256 t = _mm256_fmadd_ps(_mm256_castsi256_ps(dot), d, offset);
      f[m] = _mm256_fmadd_ps(t, _mm256_set1_ps(scale[m]), f[m]);
      if (has_minimum) {
        const __m256 total = _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(extra[m])));
        f[m] = _mm256_fmadd_ps(minimum, total, f[m]);
      }
    }
  }
}

template <int M>
inline void dot_half_8bit(const Tile& tile, int rows, int half, __m256* f) {
  const __m256i magic = _mm256_set1_epi32(kMagicBits);
  const __m256 minus_magic = _mm256_set1_ps(-kMagic);
  const uint8_t* w = tile.weight;
  const int8_t* a = tile.codes;
  const float* scale = tile.scale;
  for (int m = 0; m < M; ++m) f[m] = _mm256_setzero_ps();
  for (int64_t b = 0; b < tile.blocks; ++b, w += 544, a += kBlock * rows, scale += rows) {
    if (half == 0) prefetch_weights<544>(w, tile.prefetch_end);
    __m256i sum[M];
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) sum[m] = magic;
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w + 64 * i + 32 * half));
      const __m256i size = _mm256_abs_epi8(codes);
#pragma GCC unroll 4
      for (int m = 0; m < M; ++m) {
        const __m256i x = _mm256_sign_epi8(broadcast4(a + kBlock * m + 4 * i), codes);
#if EDGE_RT_DPBUSD_256
        sum[m] = _mm256_dpbusd_epi32(sum[m], size, x);
#else
        const __m256i pairs = _mm256_maddubs_epi16(size, x);
        sum[m] = _mm256_add_epi32(sum[m], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
        keep_order(sum[m]);
#endif
      }
    }
    const __m256 d = half_scales(w + 512 + 16 * half);
    const __m256 offset = _mm256_mul_ps(d, minus_magic);
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) {
      const __m256 t = _mm256_fmadd_ps(_mm256_castsi256_ps(sum[m]), d, offset);
      f[m] = _mm256_fmadd_ps(t, _mm256_set1_ps(scale[m]), f[m]);
    }
  }
}

// Up to four rows at a time: more sums than that do not fit 16 registers.
constexpr int kRowsAtOnce = 4;

template <int M, class Half>
inline void dot_tile_halves(const Tile& tile, VF* out, Half half_kernel) {
  for (int half = 0; half < 2; ++half) {
    __m256 f[M];
    half_kernel(tile, half, f);
    for (int m = 0; m < M; ++m) {
      if (half == 0) {
        out[m].lo = f[m];
      } else {
        out[m].hi = f[m];
      }
    }
  }
}

inline Tile later_rows(const Tile& tile, int first) {
  Tile rest = tile;
  rest.codes += kBlock * first;
  rest.scale += first;
  rest.extra += first;
  rest.prefetch_end = tile.weight;
  return rest;
}

template <int M, bool has_minimum>
inline void dot_tile_4bit(const Tile& tile, VF* out) {
  constexpr int kFirst = M < kRowsAtOnce ? M : kRowsAtOnce;
  dot_tile_halves<kFirst>(
      tile, out, [](const Tile& t, int half, __m256* f) { dot_half_4bit<kFirst, has_minimum>(t, M, half, f); });
  if constexpr (M > kRowsAtOnce) {
    dot_tile_halves<M - kFirst>(later_rows(tile, kFirst), out + kFirst, [](const Tile& t, int half, __m256* f) {
      dot_half_4bit<M - kFirst, has_minimum>(t, M, half, f);
    });
  }
}

template <int M>
inline void dot_tile_8bit(const Tile& tile, VF* out) {
  constexpr int kFirst = M < kRowsAtOnce ? M : kRowsAtOnce;
  dot_tile_halves<kFirst>(tile, out, [](const Tile& t, int half, __m256* f) { dot_half_8bit<kFirst>(t, M, half, f); });
  if constexpr (M > kRowsAtOnce) {
    dot_tile_halves<M - kFirst>(later_rows(tile, kFirst), out + kFirst,
                                [](const Tile& t, int half, __m256* f) { dot_half_8bit<M - kFirst>(t, M, half, f); });
  }
}
