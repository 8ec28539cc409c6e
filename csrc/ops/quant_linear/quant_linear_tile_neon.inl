// QuantLinear's inner loops on NEON: a register holds one input quartet of 4 rows, so a block is taken in quarters of
// the tile, whose codes stay in registers for all M rows of x.
//
// With dot products, 16 bytes of x serve four instructions, which pick their quartet by lane. With 8-bit matrix
// products (i8mm) one instruction multiplies 2 rows of the tile by 2 rows of x over 8 inputs: neighbouring quartets
// zipped are what it wants. Nested codes do not fit signed bytes: their halves are multiplied one after the other. Sums
// of such a pair lie as [row 0 x 0, row 0 x 1, row 1 x 0, row 1 x 1] until the tile is done; an odd row of x goes the
// first way. The integers are exact, so both ways give the same bits.

#if defined(__ARM_FEATURE_MATMUL_INT8)
#define EDGE_RT_MATRIX_PRODUCTS 1
#else
#define EDGE_RT_MATRIX_PRODUCTS 0
#endif

// A quarter of a block: register t holds inputs 4t ... 4t + 3 of 4 rows.
struct Quarter {
  int8x16_t codes[8];
};

struct Bytes {
  uint8x16_t v;

  static Bytes load(const uint8_t* at) { return {vld1q_u8(at)}; }
  template <int n>
  static Bytes shift_right(Bytes a) {
    return {vshrq_n_u8(a.v, n)};
  }
  template <int n>
  static Bytes shift_left(Bytes a) {
    return {vshlq_n_u8(a.v, n)};
  }
  static Bytes bits(Bytes a, int mask) { return {vandq_u8(a.v, vdupq_n_u8(static_cast<uint8_t>(mask)))}; }
  static Bytes join(Bytes a, Bytes b) { return {vorrq_u8(a.v, b.v)}; }
};

struct Lanes {
  using V = float32x4_t;
  using I = int32x4_t;
  static constexpr int kRows = 4;

  static V halves(const uint8_t* at) {
    uint16_t lanes[4];
    __builtin_memcpy(lanes, at, sizeof lanes);
    return from_half(lanes);
  }
  static uint8x8_t load(const uint8_t* at) {
    uint32_t word;
    __builtin_memcpy(&word, at, sizeof word);
    return vreinterpret_u8_u32(vdup_n_u32(word));
  }
  static uint32x4_t words(uint8x8_t bytes) { return vmovl_u16(vget_low_u16(vmovl_u8(bytes))); }
  static I integers(const uint8_t* at) { return vreinterpretq_s32_u32(words(load(at))); }
  static V bytes(const uint8_t* at) { return vcvtq_f32_u32(words(load(at))); }
  static V signed_bytes(const uint8_t* at) {
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(load(at))))));
  }
  static V low_nibbles(const uint8_t* at) { return vcvtq_f32_u32(words(vand_u8(load(at), vdup_n_u8(15)))); }
  static V high_nibbles(const uint8_t* at) { return vcvtq_f32_u32(words(vshr_n_u8(load(at), 4))); }
  static V exponents(const uint8_t* at) {
    const uint32x4_t e = words(load(at)), one = vdupq_n_u32(1);
    const uint32x4_t normal = vshlq_n_u32(vsubq_u32(e, one), 23);
    const uint32x4_t tiny = vshlq_u32(vdupq_n_u32(0x00200000), vreinterpretq_s32_u32(e));
    return vreinterpretq_f32_u32(vbslq_u32(vcgtq_u32(e, one), normal, tiny));
  }
  static V small_floats(const uint8_t* at) {
    uint16_t lanes[4];
    for (int r = 0; r < 4; ++r) lanes[r] = half_of_float8(at[r]);
    return from_half(lanes);
  }
  static V mul(V a, V b) { return vmulq_f32(a, b); }
  static V times(V a, float b) { return vmulq_n_f32(a, b); }
  static V sub(V a, V b) { return vsubq_f32(a, b); }
  static V negative(V a) { return vnegq_f32(a); }
};

constexpr bool is_corrected(WeightFormat format) {
  const WeightFacts& f = facts(format);
  return !f.has_minimum && f.codes != CodeKind::kBytes && f.codes != CodeKind::kTable;
}

// Codes of a quarter of a block; of nested ones a half of each.
template <WeightFormat format>
inline Quarter load_quarter(const uint8_t* codes) {
  constexpr CodeKind kKind = is_nested(format) ? CodeKind::kNibbles : facts(format).codes;
  Quarter out;
  each<8>([&](auto k) __attribute__((always_inline)) {
    const uint8x16_t places = quartet<kKind, decltype(k)::value, Bytes>(codes).v;
    const int8x16_t table = vld1q_s8(table_of(format));
    out.codes[k] = kKind == CodeKind::kTable ? vqtbl1q_s8(table, places) : vreinterpretq_s8_u8(places);
  });
  return out;
}

// Scales, minima and zero points of 4 rows, or of 2 rows in the order of a pair's sums.
struct QuarterScales {
  float32x4_t d, offset, minimum;
  int32x4_t zero;
};

template <WeightFormat format>
inline QuarterScales load_scales(const uint8_t* unit, int group, int quarter) {
  const auto w = group_scale<format, Lanes>(unit, group, quarter);
  return {w.d, vmulq_n_f32(w.d, -kMagic), w.minimum, zero_points<format, Lanes>(unit, quarter)};
}

template <WeightFormat format>
inline int32x4_t first_sum(int32x4_t zero, int32x4_t more) {
  const int32x4_t magic = vdupq_n_s32(kMagicBits);
  if (has_zero_point(format)) return vmlaq_s32(magic, zero, more);
  return is_corrected(format) ? more : magic;
}

template <WeightFormat format>
inline float32x4_t add_quarter(float32x4_t f, int32x4_t sum, const QuarterScales& w, float32x4_t scale,
                               int32x4_t more) {
  f = vfmaq_f32(f, vfmaq_f32(w.offset, vreinterpretq_f32_s32(sum), w.d), scale);
  return facts(format).has_minimum ? vfmaq_f32(f, w.minimum, vreinterpretq_f32_s32(more)) : f;
}

// --- one row of x ---

// Quartets [4 half, 4 half + 4).
template <int half>
inline int32x4_t dot_half(int32x4_t sum, const Quarter& w, const int8_t* x) {
  const int8x16_t four = vld1q_s8(x + 16 * half);
  sum = vdotq_laneq_s32(sum, w.codes[4 * half], four, 0);
  sum = vdotq_laneq_s32(sum, w.codes[4 * half + 1], four, 1);
  sum = vdotq_laneq_s32(sum, w.codes[4 * half + 2], four, 2);
  return vdotq_laneq_s32(sum, w.codes[4 * half + 3], four, 3);
}

// Group g of `groups`.
template <int groups, int g>
inline int32x4_t dot_quarter(int32x4_t sum, const Quarter& w, const int8_t* x) {
  if constexpr (groups == 1) return dot_half<1>(dot_half<0>(sum, w, x), w, x);
  return dot_half<g>(sum, w, x);
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

template <int groups, int g>
inline int32x4_t dot_pair(int32x4_t sum, const PairCodes& w, const PairCodes& x) {
#pragma GCC unroll 4
  for (int i = 4 / groups * g; i < 4 / groups * (g + 1); ++i) sum = vmmlaq_s32(sum, w.codes[i], x.codes[i]);
  return sum;
}

inline QuarterScales zip_scales(const QuarterScales& w, bool upper) {
  const auto twice = [upper](float32x4_t a) { return upper ? vzip2q_f32(a, a) : vzip1q_f32(a, a); };
  const int32x4_t zero = upper ? vzip2q_s32(w.zero, w.zero) : vzip1q_s32(w.zero, w.zero);
  return {twice(w.d), twice(w.offset), twice(w.minimum), zero};
}

// Two neighbouring words as [0, 1, 0, 1].
inline int32x4_t broadcast_two(const void* words) {
  int64_t two;
  __builtin_memcpy(&two, words, sizeof two);
  return vreinterpretq_s32_s64(vdupq_n_s64(two));
}

template <WeightFormat format, int g, int pairs>
inline void add_pairs(const Quarter& codes, const Quarter& finer, const QuarterScales& scales, const PairCodes* x,
                      const float* scale, const uint32_t* sums, float32x4_t f[][2]) {
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    const PairCodes w = zip_rows(codes, half == 1);
    const PairCodes low = is_nested(format) ? zip_rows(finer, half == 1) : w;
    const QuarterScales zipped = zip_scales(scales, half == 1);
#pragma GCC unroll 4
    for (int p = 0; p < pairs; ++p) {
      const int32x4_t more = broadcast_two(sums + 2 * p);
      const int32x4_t first = first_sum<format>(zipped.zero, more);
      int32x4_t sum;
      if constexpr (is_nested(format)) {
        sum = dot_pair<1, 0>(first, low, x[p]);
        sum = vaddq_s32(sum, vshlq_n_s32(dot_pair<1, 0>(vdupq_n_s32(0), w, x[p]), 4));
      } else {
        sum = dot_pair<facts(format).groups, g>(first, w, x[p]);
      }
      const float32x4_t both = vreinterpretq_f32_s32(broadcast_two(scale + 2 * p));
      f[p][half] = add_quarter<format>(f[p][half], sum, zipped, both, more);
    }
  }
}

#endif

// --- a tile ---

template <WeightFormat format, int M>
inline void dot_tile(const Tile& tile, VF* out) {
  static constexpr WeightFacts kFacts = facts(format);
  static constexpr UnitLayout kAt = unit_layout(format);
  // For fewer than four rows, zipping costs more instructions than it saves.
  constexpr int kPairs = EDGE_RT_MATRIX_PRODUCTS && M >= 4 ? M / 2 : 0, kPlaces = kPairs > 0 ? kPairs : 1;
  const uint8_t* unit = tile.weight;
  const int8_t* a = tile.codes;
  const float* scale = tile.scale;
  const uint32_t* sums = tile.sums;
  float32x4_t f[4][M], pair_f[4][kPlaces][2];
  for (int q = 0; q < 4; ++q) {
    for (int m = 0; m < M; ++m) {
      const float32x4_t quarters[] = {out[m].v0, out[m].v1, out[m].v2, out[m].v3};
      f[q][m] = quarters[q];
    }
    for (int p = 0; p < kPairs; ++p) {
      pair_f[q][p][0] = vzip1q_f32(f[q][2 * p], f[q][2 * p + 1]);
      pair_f[q][p][1] = vzip2q_f32(f[q][2 * p], f[q][2 * p + 1]);
    }
  }
  for (int64_t b = 0; b < tile.blocks; b += kFacts.unit_blocks, unit += kAt.bytes) {
    // No pragma: a loop of one block is none then, and one of eight is too long to be unrolled.
    for (int place = 0; place < kFacts.unit_blocks; ++place, a += kBlock * M, scale += M, sums += kFacts.groups * M) {
      const uint8_t* finer_lines = finer_codes<format>(tile.finer, b + place);
      prefetch_block<format>(tile, unit + place * block_bytes(format), finer_lines);
#if EDGE_RT_MATRIX_PRODUCTS
      PairCodes x[kPlaces];
      for (int p = 0; p < kPairs; ++p) x[p] = load_pair(a + 2 * kBlock * p);
#endif
      // Unrolled, the compiler mixes the quarters and spills: at 8 rows a sixth more instructions, with pairs two
      // thirds.
#pragma GCC unroll 1
      for (int q = 0; q < 4; ++q) {
        const Quarter codes = load_quarter<format>(unit + place * kAt.code_bytes + 16 * q);
        Quarter finer;
        if constexpr (is_nested(format)) finer = load_quarter<format>(finer_lines + 16 * q);
        each<kFacts.groups>([&](auto g) __attribute__((always_inline)) {
          constexpr int kGroup = decltype(g)::value;
          const QuarterScales scales = load_scales<format>(unit, place * kFacts.groups + kGroup, q);
          const uint32_t* words = sums + kGroup * M;
#if EDGE_RT_MATRIX_PRODUCTS
          if constexpr (kPairs > 0) add_pairs<format, kGroup, kPairs>(codes, finer, scales, x, scale, words, pair_f[q]);
#endif
#pragma GCC unroll 8
          for (int m = 2 * kPairs; m < M; ++m) {
            const int32x4_t more = broadcast_word(words + m);
            const int32x4_t first = first_sum<format>(scales.zero, more);
            int32x4_t sum;
            if constexpr (is_nested(format)) {
              sum = dot_quarter<1, 0>(first, finer, a + kBlock * m);
              sum = vaddq_s32(sum, vshlq_n_s32(dot_quarter<1, 0>(vdupq_n_s32(0), codes, a + kBlock * m), 4));
            } else {
              sum = dot_quarter<kFacts.groups, kGroup>(first, codes, a + kBlock * m);
            }
            f[q][m] = add_quarter<format>(f[q][m], sum, scales, vdupq_n_f32(scale[m]), more);
          }
        });
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
