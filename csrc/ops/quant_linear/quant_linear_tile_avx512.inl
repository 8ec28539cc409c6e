// QuantLinear's inner loops on AVX-512 VNNI: one zmm holds one input quartet of all 16 rows of a tile.
//
// A tile kernel walks a tile once for M rows of x; M accumulators and M sums stay in registers.

// Memory operands that the compiler may not take apart into a broadcast and a dot product: that costs 12 % at 8 rows.
typedef int32_t __attribute__((may_alias)) UnalignedInt;

inline void dot_broadcast(__m512i& sum, __m512i codes, const int8_t* four) {
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(codes), "m"(*reinterpret_cast<const UnalignedInt*>(four)));
}

template <int M, bool has_minimum>
inline void dot_tile_4bit(const Tile& tile, VF* out) {
  constexpr int kBytes = has_minimum ? 320 : 288;
  const __m512i low = _mm512_set1_epi8(15);
  const __m512i magic = _mm512_set1_epi32(kMagicBits);
  const __m512 minus_magic = _mm512_set1_ps(-kMagic);
  const uint8_t* w = tile.weight;
  const int8_t* a = tile.codes;
  const float* scale = tile.scale;
  const uint32_t* extra = tile.extra;
  __m512 f[M];
  for (int m = 0; m < M; ++m) f[m] = _mm512_setzero_ps();
  for (int64_t b = 0; b < tile.blocks; ++b, w += kBytes, a += kBlock * M, scale += M, extra += M) {
    prefetch_weights<kBytes>(w, tile.prefetch_end);
    __m512i sum[M];
    for (int m = 0; m < M; ++m) {
      sum[m] = has_minimum ? magic : _mm512_add_epi32(magic, _mm512_set1_epi32(static_cast<int>(extra[m])));
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m512i packed = _mm512_loadu_si512(w + 64 * i);
      const __m512i even = _mm512_and_si512(packed, low);
      const __m512i odd = _mm512_and_si512(_mm512_srli_epi16(packed, 4), low);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) dot_broadcast(sum[m], even, a + kBlock * m + 8 * i);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) dot_broadcast(sum[m], odd, a + kBlock * m + 8 * i + 4);
    }
    const __m512 d = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(w + 256)));
    const __m512 offset = _mm512_mul_ps(d, minus_magic);
    __m512 minimum = d;
    if (has_minimum) minimum = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(w + 288)));
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      const __m512 t = _mm512_fmadd_ps(_mm512_castsi512_ps(sum[m]), d, offset);
      f[m] = _mm512_fmadd_ps(t, _mm512_set1_ps(scale[m]), f[m]);
      if (has_minimum) {
        f[m] = _mm512_fmadd_ps(minimum, _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(extra[m]))), f[m]);
      }
    }
  }
  for (int m = 0; m < M; ++m) out[m] = VF{f[m]};
}

template <int M>
inline void dot_tile_8bit(const Tile& tile, VF* out) {
  // The instruction wants unsigned codes; the 128 that flipping the sign bit adds are taken back through `extra`.
  const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
  const __m512i magic = _mm512_set1_epi32(kMagicBits);
  const __m512 minus_magic = _mm512_set1_ps(-kMagic);
  const uint8_t* w = tile.weight;
  const int8_t* a = tile.codes;
  const float* scale = tile.scale;
  const uint32_t* extra = tile.extra;
  __m512 f[M];
  for (int m = 0; m < M; ++m) f[m] = _mm512_setzero_ps();
  for (int64_t b = 0; b < tile.blocks; ++b, w += 544, a += kBlock * M, scale += M, extra += M) {
    prefetch_weights<544>(w, tile.prefetch_end);
    __m512i sum[M];
    for (int m = 0; m < M; ++m) sum[m] = _mm512_add_epi32(magic, _mm512_set1_epi32(static_cast<int>(extra[m])));
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      const __m512i codes = _mm512_xor_si512(_mm512_loadu_si512(w + 64 * i), sign);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) dot_broadcast(sum[m], codes, a + kBlock * m + 4 * i);
    }
    const __m512 d = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(w + 512)));
    const __m512 offset = _mm512_mul_ps(d, minus_magic);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      const __m512 t = _mm512_fmadd_ps(_mm512_castsi512_ps(sum[m]), d, offset);
      f[m] = _mm512_fmadd_ps(t, _mm512_set1_ps(scale[m]), f[m]);
    }
  }
  for (int m = 0; m < M; ++m) out[m] = VF{f[m]};
}
