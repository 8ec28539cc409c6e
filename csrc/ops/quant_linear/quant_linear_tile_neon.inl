// QuantLinear's inner loops on NEON: a register holds one input quartet of 4 rows, so a block is taken in quarters of
// the tile, whose codes stay in registers for all M rows of x.
//
// With dot products, 16 bytes of x serve four instructions, which pick their quartet by lane. With 8-bit matrix
// products (i8mm) one instruction multiplies 2 rows of the tile by 2 rows of x over 8 inputs: neighbouring quartets
// zipped are what it wants. Sums of such a pair lie as [row 0 x 0, row 0 x 1, row 1 x 0, row 1 x 1] until the tile is
// done; an odd row of x goes the first way. The integers are exact, so both ways give the same bits.

#if defined(__ARM_FEATURE_MATMUL_INT8)
#define EDGE_RT_MATRIX_PRODUCTS 1
#else
#define EDGE_RT_MATRIX_PRODUCTS 0
#endif

// A quarter of a block: register t holds inputs 4t ... 4t + 3 of 4 rows.
struct Quarter {
  int8x16_t codes[8];
};

// Where things lie in a block, and whether integer sums begin with a correction (w4: its 8) or a minimum follows.
struct Block4M {
  static constexpr int kBytes = 320, kScales = 256, kMinima = 288;
  static constexpr bool kHasMinimum = true, kIsCorrected = false, kIs4Bit = true;
};
struct Block4 {
  static constexpr int kBytes = 288, kScales = 256, kMinima = 0;
  static constexpr bool kHasMinimum = false, kIsCorrected = true, kIs4Bit = true;
};
struct Block8 {
  static constexpr int kBytes = 544, kScales = 512, kMinima = 0;
  static constexpr bool kHasMinimum = false, kIsCorrected = false, kIs4Bit = false;
};

template <class Block>
inline Quarter load_quarter(const uint8_t* w, int quarter) {
  Quarter out;
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    if (Block::kIs4Bit) {
      const uint8x16_t packed = vld1q_u8(w + 64 * i + 16 * quarter);
      out.codes[2 * i] = vreinterpretq_s8_u8(vandq_u8(packed, vdupq_n_u8(15)));
      out.codes[2 * i + 1] = vreinterpretq_s8_u8(vshrq_n_u8(packed, 4));
    } else {
      out.codes[2 * i] = vreinterpretq_s8_u8(vld1q_u8(w + 128 * i + 16 * quarter));
      out.codes[2 * i + 1] = vreinterpretq_s8_u8(vld1q_u8(w + 128 * i + 64 + 16 * quarter));
    }
  }
  return out;
}

inline float32x4_t quarter_halves(const uint8_t* halves, int quarter) {
  uint16_t lanes[4];
  __builtin_memcpy(lanes, halves + 8 * quarter, sizeof lanes);
  return from_half(lanes);
}

// Scales and minima of 4 rows, or of 2 rows in the order of a pair's sums.
struct QuarterScales {
  float32x4_t d, offset, minimum;
};

template <class Block>
inline QuarterScales load_scales(const uint8_t* w, int quarter) {
  const float32x4_t d = quarter_halves(w + Block::kScales, quarter);
  return {d, vmulq_n_f32(d, -kMagic), Block::kHasMinimum ? quarter_halves(w + Block::kMinima, quarter) : d};
}

template <class Block>
inline int32x4_t first_sum(int32x4_t extra) {
  const int32x4_t magic = vdupq_n_s32(kMagicBits);
  return Block::kIsCorrected ? vaddq_s32(magic, extra) : magic;
}

template <class Block>
inline float32x4_t add_quarter(float32x4_t f, int32x4_t sum, const QuarterScales& w, float32x4_t scale,
                               int32x4_t extra) {
  f = vfmaq_f32(f, vfmaq_f32(w.offset, vreinterpretq_f32_s32(sum), w.d), scale);
  return Block::kHasMinimum ? vfmaq_f32(f, w.minimum, vreinterpretq_f32_s32(extra)) : f;
}

// --- one row of x ---

inline int32x4_t dot_quarter(int32x4_t sum, const Quarter& w, const int8_t* x) {
  const int8x16_t first = vld1q_s8(x), second = vld1q_s8(x + 16);
  sum = vdotq_laneq_s32(sum, w.codes[0], first, 0);
  sum = vdotq_laneq_s32(sum, w.codes[1], first, 1);
  sum = vdotq_laneq_s32(sum, w.codes[2], first, 2);
  sum = vdotq_laneq_s32(sum, w.codes[3], first, 3);
  sum = vdotq_laneq_s32(sum, w.codes[4], second, 0);
  sum = vdotq_laneq_s32(sum, w.codes[5], second, 1);
  sum = vdotq_laneq_s32(sum, w.codes[6], second, 2);
  return vdotq_laneq_s32(sum, w.codes[7], second, 3);
}

inline int32x4_t broadcast_word(const uint32_t* word) { return vdupq_n_s32(static_cast<int32_t>(*word)); }

// --- two rows of x ---

#if EDGE_RT_MATRIX_PRODUCTS

// 8 inputs of two rows, four times.
struct PairCodes {
  int8x16_t codes[4];
};

inline int8x16_t zip_low(int8x16_t a, int8x16_t b) {
  return vreinterpretq_s8_s64(vzip1q_s64(vreinterpretq_s64_s8(a), vreinterpretq_s64_s8(b)));
}
inline int8x16_t zip_high(int8x16_t a, int8x16_t b) {
  return vreinterpretq_s8_s64(vzip2q_s64(vreinterpretq_s64_s8(a), vreinterpretq_s64_s8(b)));
}

inline PairCodes load_pair(const int8_t* x) {
  const int8x16_t a = vld1q_s8(x), b = vld1q_s8(x + kBlock), c = vld1q_s8(x + 16), d = vld1q_s8(x + kBlock + 16);
  return {{zip_low(a, b), zip_high(a, b), zip_low(c, d), zip_high(c, d)}};
}

// Rows 0 and 1 of a quarter over the inputs of a PairCodes, or rows 2 and 3.
inline PairCodes zip_rows(const Quarter& w, bool upper) {
  PairCodes out;
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const int32x4_t even = vreinterpretq_s32_s8(w.codes[2 * i]), odd = vreinterpretq_s32_s8(w.codes[2 * i + 1]);
    out.codes[i] = vreinterpretq_s8_s32(upper ? vzip2q_s32(even, odd) : vzip1q_s32(even, odd));
  }
  return out;
}

inline int32x4_t dot_pair(int32x4_t sum, const PairCodes& w, const PairCodes& x) {
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) sum = vmmlaq_s32(sum, w.codes[i], x.codes[i]);
  return sum;
}

inline QuarterScales zip_scales(const QuarterScales& w, bool upper) {
  const auto twice = [upper](float32x4_t a) { return upper ? vzip2q_f32(a, a) : vzip1q_f32(a, a); };
  return {twice(w.d), twice(w.offset), twice(w.minimum)};
}

// Two neighbouring words as [0, 1, 0, 1].
inline int32x4_t broadcast_two(const void* words) {
  int64_t two;
  __builtin_memcpy(&two, words, sizeof two);
  return vreinterpretq_s32_s64(vdupq_n_s64(two));
}

template <class Block, int pairs>
inline void add_pairs(const Quarter& codes, const QuarterScales& scales, const PairCodes* x, const float* scale,
                      const uint32_t* extra, float32x4_t f[][2]) {
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    const PairCodes w = zip_rows(codes, half == 1);
    const QuarterScales zipped = zip_scales(scales, half == 1);
#pragma GCC unroll 4
    for (int p = 0; p < pairs; ++p) {
      const int32x4_t more = broadcast_two(extra + 2 * p);
      const int32x4_t sum = dot_pair(first_sum<Block>(more), w, x[p]);
      const float32x4_t both = vreinterpretq_f32_s32(broadcast_two(scale + 2 * p));
      f[p][half] = add_quarter<Block>(f[p][half], sum, zipped, both, more);
    }
  }
}

#endif

// --- a tile ---

template <int M, class Block>
inline void dot_tile(const Tile& tile, VF* out) {
  // For fewer than four rows, zipping costs more instructions than it saves.
  constexpr int kPairs = EDGE_RT_MATRIX_PRODUCTS && M >= 4 ? M / 2 : 0, kPlaces = kPairs > 0 ? kPairs : 1;
  const uint8_t* w = tile.weight;
  const int8_t* a = tile.codes;
  const float* scale = tile.scale;
  const uint32_t* extra = tile.extra;
  float32x4_t f[4][M], pair_f[4][kPlaces][2];
  for (int q = 0; q < 4; ++q) {
    for (int m = 0; m < M; ++m) f[q][m] = vdupq_n_f32(0.0f);
    for (int p = 0; p < kPlaces; ++p) pair_f[q][p][0] = pair_f[q][p][1] = vdupq_n_f32(0.0f);
  }
  for (int64_t b = 0; b < tile.blocks; ++b, w += Block::kBytes, a += kBlock * M, scale += M, extra += M) {
    prefetch_weights<Block::kBytes>(w, tile.prefetch_end);
#if EDGE_RT_MATRIX_PRODUCTS
    PairCodes x[kPlaces];
    for (int p = 0; p < kPairs; ++p) x[p] = load_pair(a + 2 * kBlock * p);
#endif
    // Unrolled, the compiler mixes the quarters and spills: at 8 rows a sixth more instructions, with pairs two thirds.
#pragma GCC unroll 1
    for (int q = 0; q < 4; ++q) {
      const Quarter codes = load_quarter<Block>(w, q);
      const QuarterScales scales = load_scales<Block>(w, q);
#if EDGE_RT_MATRIX_PRODUCTS
      if constexpr (kPairs > 0) add_pairs<Block, kPairs>(codes, scales, x, scale, extra, pair_f[q]);
#endif
#pragma GCC unroll 8
      for (int m = 2 * kPairs; m < M; ++m) {
        const int32x4_t more = broadcast_word(extra + m);
        const int32x4_t sum = dot_quarter(first_sum<Block>(more), codes, a + kBlock * m);
        f[q][m] = add_quarter<Block>(f[q][m], sum, scales, vdupq_n_f32(scale[m]), more);
      }
    }
  }
  for (int q = 0; q < 4; ++q) {
    for (int p = 0; p < kPairs; ++p) {
      f[q][2 * p] = vuzp1q_f32(pair_f[q][p][0], pair_f[q][p][1]);
      f[q][2 * p + 1] = vuzp2q_f32(pair_f[q][p][0], pair_f[q][p][1]);
    }
  }
  for (int m = 0; m < M; ++m) out[m] = VF{f[0][m], f[1][m], f[2][m], f[3][m]};
}

template <int M, bool has_minimum>
inline void dot_tile_4bit(const Tile& tile, VF* out) {
  if constexpr (has_minimum) {
    dot_tile<M, Block4M>(tile, out);
  } else {
    dot_tile<M, Block4>(tile, out);
  }
}

template <int M>
inline void dot_tile_8bit(const Tile& tile, VF* out) {
  dot_tile<M, Block8>(tile, out);
}
