// QuantLinear's inner loops on AVX2: a ymm holds one input quartet of 8 rows, so a tile is walked once per half.
//
// Without VNNI, products of codes up to 127 are added to 16-bit sums as long as those hold them: a quartet adds at most
// 2 * 127 times the largest code. Halves of nested codes have sums of their own, which hold a block. Signed codes go
// through |q| and the sign moved to x: 2 * 128 * 127 = 32512 fits, but only once.

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

struct Bytes {
  __m256i v;

  static Bytes load(const uint8_t* at) { return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at))}; }
  // Shifts move bits over the borders of bytes: `bits` takes those that count.
  template <int n>
  static Bytes shift_right(Bytes a) {
    return {_mm256_srli_epi16(a.v, n)};
  }
  template <int n>
  static Bytes shift_left(Bytes a) {
    return {_mm256_slli_epi16(a.v, n)};
  }
  static Bytes bits(Bytes a, int mask) { return {_mm256_and_si256(a.v, _mm256_set1_epi8(static_cast<char>(mask)))}; }
  static Bytes join(Bytes a, Bytes b) { return {_mm256_or_si256(a.v, b.v)}; }
};

struct Lanes {
  using V = __m256;
  using I = __m256i;
  static constexpr int kRows = 8;

  static __m256 halves(const uint8_t* at) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
  }
  static __m128i load(const uint8_t* at) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at)); }
  static __m256i integers(const uint8_t* at) { return _mm256_cvtepu8_epi32(load(at)); }
  static __m256 whole(__m128i bytes) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)); }
  static __m256 bytes(const uint8_t* at) { return whole(load(at)); }
  static __m256 signed_bytes(const uint8_t* at) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load(at))); }
  static __m256 low_nibbles(const uint8_t* at) { return whole(_mm_and_si128(load(at), _mm_set1_epi8(15))); }
  static __m256 high_nibbles(const uint8_t* at) {
    return whole(_mm_and_si128(_mm_srli_epi16(load(at), 4), _mm_set1_epi8(15)));
  }
  static __m256 exponents(const uint8_t* at) {
    const __m256i e = _mm256_cvtepu8_epi32(load(at)), one = _mm256_set1_epi32(1);
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, one), 23);
    const __m256i tiny = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(tiny, normal, _mm256_cmpgt_epi32(e, one)));
  }
  static __m256 small_floats(const uint8_t* at) {
    const __m128i bytes = _mm_and_si128(load(at), _mm_set1_epi8(0x7f));
    return _mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(bytes), 7));
  }
  static __m256 mul(__m256 a, __m256 b) { return _mm256_mul_ps(a, b); }
  static __m256 times(__m256 a, float b) { return _mm256_mul_ps(a, _mm256_set1_ps(b)); }
  static __m256 sub(__m256 a, __m256 b) { return _mm256_sub_ps(a, b); }
  static __m256 negative(__m256 a) { return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f)); }
};

// What the dot product still lacks: `more`, or with zero points as much of it as they say. Both fit 16 bits, so that
// one multiplication of words does.
template <WeightFormat format>
inline __m256i correction(__m256i zero, __m256i more) {
  return has_zero_point(format) ? _mm256_madd_epi16(zero, more) : more;
}

constexpr bool has_signed_codes(CodeKind kind) { return kind == CodeKind::kBytes || kind == CodeKind::kTable; }

// Else `correction` brings it.
template <WeightFormat format>
constexpr bool begins_with_magic() {
  return facts(format).has_minimum || has_signed_codes(facts(format).codes) || has_zero_point(format);
}

template <WeightFormat format, int k>
inline __m256i codes_of_half(const uint8_t* at) {
  constexpr CodeKind kKind = facts(format).codes;
  const __m256i codes = quartet<kKind, k, Bytes>(at).v;
  if (kKind != CodeKind::kTable) return codes;
  const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table_of(format)));
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), codes);
}

// Half of a block of a tile, as it is stored.
template <WeightFormat format>
struct PackedHalf {
  const uint8_t* unit;
  int place, half;
  const uint8_t* finer;  // of nested codes

  template <int k>
  __m256i quartet() const {
    if constexpr (is_nested(format)) return nested_quartet<k, Bytes>(unit + 32 * half, finer + 32 * half).v;
    return codes_of_half<format, k>(unit + place * unit_layout(format).code_bytes + 32 * half);
  }
  // The halves of nested codes.
  template <int k>
  __m256i first() const {
    return half_of<k>(unit);
  }
  template <int k>
  __m256i second() const {
    return half_of<k>(finer);
  }
  template <int k>
  __m256i half_of(const uint8_t* lines) const {
    return move_bits<4 * (k % 2), 0, 4>(Bytes::load(lines + 64 * (k / 2) + 32 * half)).v;
  }
  __m256i zero() const { return zero_points<format, Lanes>(unit, half); }
  auto scale(int g) const { return group_scale<format, Lanes>(unit, place * facts(format).groups + g, half); }
};

// Half of a block of a tile that was unpacked.
template <WeightFormat format>
struct UnpackedHalf {
  const uint8_t* at;
  int half;

  template <int k>
  __m256i quartet() const {
    return Bytes::load(at + 64 * k + 32 * half).v;
  }
  template <int k>
  __m256i first() const {
    return move_bits<4, 0, 4>(Bytes{quartet<k>()}).v;
  }
  template <int k>
  __m256i second() const {
    return move_bits<0, 0, 4>(Bytes{quartet<k>()}).v;
  }
  __m256i zero() const { return has_zero_point(format) ? Bytes::load(at + 512 + 32 * half).v : _mm256_setzero_si256(); }
  auto scale(int g) const -> decltype(group_scale<format, Lanes>(at, g, half)) {
    const auto* d =
        reinterpret_cast<const float*>(at + unpacked_scales(format) + g * unpacked_group(format)) + 8 * half;
    return {_mm256_loadu_ps(d), facts(format).has_minimum ? _mm256_loadu_ps(d + 16) : _mm256_setzero_ps()};
  }
};

// Integer dot products of M rows of x with the group's quartets, from `first` on.
template <WeightFormat format, int first, int count, int M, class Half>
inline void dot_group(const Half& block, const int8_t* a, __m256i* sum) {
  constexpr CodeKind kKind = facts(format).codes;
  if constexpr (has_signed_codes(kKind) || EDGE_RT_DPBUSD_256) {
    each<count>([&](auto i) __attribute__((always_inline)) {
      constexpr int k = first + decltype(i)::value;
      const __m256i w = block.template quartet<k>(), size = has_signed_codes(kKind) ? _mm256_abs_epi8(w) : w;
#pragma GCC unroll 4
      for (int m = 0; m < M; ++m) {
        __m256i x = broadcast4(a + kBlock * m + 4 * k);
        if (has_signed_codes(kKind)) x = _mm256_sign_epi8(x, w);
#if EDGE_RT_DPBUSD_256
        sum[m] = _mm256_dpbusd_epi32(sum[m], size, x);
#else
        const __m256i pairs = _mm256_maddubs_epi16(size, x);
        sum[m] = _mm256_add_epi32(sum[m], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
        keep_order(sum[m]);
#endif
      }
    });
  } else if constexpr (kKind == CodeKind::kNested) {
    static_assert(count * 2 * 127 * 15 <= 32767, "sums hold a block");
    __m256i first_words[M], second_words[M];
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) first_words[m] = second_words[m] = _mm256_setzero_si256();
    each<count>([&](auto i) __attribute__((always_inline)) {
      constexpr int k = first + decltype(i)::value;
      const __m256i upper = block.template first<k>(), finer = block.template second<k>();
#pragma GCC unroll 4
      for (int m = 0; m < M; ++m) {
        const __m256i x = broadcast4(a + kBlock * m + 4 * k);
        first_words[m] = _mm256_add_epi16(first_words[m], _mm256_maddubs_epi16(upper, x));
        second_words[m] = _mm256_add_epi16(second_words[m], _mm256_maddubs_epi16(finer, x));
        keep_order(first_words[m]);
        keep_order(second_words[m]);
      }
    });
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) {
      sum[m] = _mm256_add_epi32(sum[m], _mm256_madd_epi16(first_words[m], _mm256_set1_epi16(16)));
      sum[m] = _mm256_add_epi32(sum[m], _mm256_madd_epi16(second_words[m], _mm256_set1_epi16(1)));
    }
  } else {
    constexpr int kFit = 32767 / (2 * 127 * facts(format).max_code), kAtOnce = kFit < count ? kFit : count;
    each<count / kAtOnce>([&](auto part) __attribute__((always_inline)) {
      __m256i words[M];
#pragma GCC unroll 4
      for (int m = 0; m < M; ++m) words[m] = _mm256_setzero_si256();
      each<kAtOnce>([&](auto i) __attribute__((always_inline)) {
        constexpr int k = first + decltype(part)::value * kAtOnce + decltype(i)::value;
        const __m256i w = block.template quartet<k>();
#pragma GCC unroll 4
        for (int m = 0; m < M; ++m) {
          words[m] = _mm256_add_epi16(words[m], _mm256_maddubs_epi16(w, broadcast4(a + kBlock * m + 4 * k)));
          keep_order(words[m]);
        }
      });
#pragma GCC unroll 4
      for (int m = 0; m < M; ++m) {
        sum[m] = _mm256_add_epi32(sum[m], _mm256_madd_epi16(words[m], _mm256_set1_epi16(1)));
      }
    });
    static_assert(count % kAtOnce == 0, "every quartet is in a part");
  }
}

// Adds the products of half a block with M rows of a group of `rows` to f.
template <WeightFormat format, int M, class Half>
EDGE_RT_INLINE void add_products(const Half& block, const int8_t* a, const float* scale, const uint32_t* sums, int rows,
                                 __m256* f) {
  static constexpr WeightFacts kFacts = facts(format);
  constexpr int kQuartets = 8 / kFacts.groups;
  const __m256i magic = _mm256_set1_epi32(kMagicBits);
  const __m256 minus_magic = _mm256_set1_ps(-kMagic);
  each<kFacts.groups>([&](auto g) __attribute__((always_inline)) {
    const uint32_t* own = sums + g * rows;
    __m256i sum[M];
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) sum[m] = begins_with_magic<format>() ? magic : _mm256_setzero_si256();
    dot_group<format, decltype(g)::value * kQuartets, kQuartets, M>(block, a, sum);
    const auto w = block.scale(g);
    const __m256i zero = block.zero();
    const __m256 offset = _mm256_mul_ps(w.d, minus_magic);
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) {
      const __m256i more = _mm256_set1_epi32(static_cast<int>(own[m]));
      if (!kFacts.has_minimum && !has_signed_codes(kFacts.codes)) {
        sum[m] = _mm256_add_epi32(sum[m], correction<format>(zero, more));
      }
      const __m256 t = _mm256_fmadd_ps(_mm256_castsi256_ps(sum[m]), w.d, offset);
      f[m] = _mm256_fmadd_ps(t, _mm256_set1_ps(scale[m]), f[m]);
      if (kFacts.has_minimum) f[m] = _mm256_fmadd_ps(w.minimum, _mm256_castsi256_ps(more), f[m]);
    }
  });
}

// Goes on with sums f of 8 rows of a tile for M rows of a group of `rows`; of a tile that was unpacked, if so.
template <WeightFormat format, int M, bool is_unpacked>
inline void dot_half(const Tile& tile, int rows, int half, __m256* f) {
  static constexpr WeightFacts kFacts = facts(format);
  const uint8_t* unit = tile.weight;
  const int8_t* a = tile.codes;
  const float* scale = tile.scale;
  const uint32_t* sums = tile.sums;
  constexpr int kBlocks = is_unpacked ? 1 : kFacts.unit_blocks;
  constexpr int64_t kBytes = is_unpacked ? unpacked_block_bytes(format) : unit_bytes(format);
  for (int64_t b = 0; b < tile.blocks; b += kBlocks, unit += kBytes) {
    // No pragma: a loop of one block is none then, and one of eight is too long to be unrolled.
    for (int place = 0; place < kBlocks; ++place) {
      if constexpr (is_unpacked) {
        add_products<format, M>(UnpackedHalf<format>{unit, half}, a, scale, sums, rows, f);
      } else {
        const uint8_t* finer = finer_codes<format>(tile.finer, b + place);
        if (half == 0) prefetch_block<format>(tile, unit + place * block_bytes(format), finer);
        add_products<format, M>(PackedHalf<format>{unit, place, half, finer}, a, scale, sums, rows, f);
      }
      a += kBlock * rows;
      scale += rows;
      sums += kFacts.groups * rows;
    }
  }
}

// Up to four rows at a time: more sums than that do not fit 16 registers.
constexpr int kRowsAtOnce = 4;

template <WeightFormat format, int M, bool is_unpacked>
inline void dot_halves(const Tile& tile, int rows, VF* out) {
  for (int half = 0; half < 2; ++half) {
    __m256 f[M];
    for (int m = 0; m < M; ++m) f[m] = half == 0 ? out[m].lo : out[m].hi;
    dot_half<format, M, is_unpacked>(tile, rows, half, f);
    for (int m = 0; m < M; ++m) {
      if (half == 0) {
        out[m].lo = f[m];
      } else {
        out[m].hi = f[m];
      }
    }
  }
}

template <WeightFormat format, int M, bool is_unpacked = false>
inline void dot_tile(const Tile& tile, VF* out) {
  constexpr int kFirst = M < kRowsAtOnce ? M : kRowsAtOnce;
  dot_halves<format, kFirst, is_unpacked>(tile, M, out);
  if constexpr (M > kRowsAtOnce) {
    Tile rest = tile;
    rest.codes += kBlock * kFirst;
    rest.scale += kFirst;
    rest.sums += kFirst;
    rest.fetch_nothing();
    dot_halves<format, M - kFirst, is_unpacked>(rest, M, out + kFirst);
  }
}

template <WeightFormat format>
inline void dot_unpacked(const Tile& tile, VF* out) {
  dot_tile<format, kGroupRows, true>(tile, out);
}

template <WeightFormat format>
inline void unpack_tile(const Tile& tile, uint8_t* to) {
  static constexpr WeightFacts kFacts = facts(format);
  const uint8_t* unit = tile.weight;
  for (int64_t b = 0; b < tile.blocks; b += kFacts.unit_blocks, unit += unit_layout(format).bytes) {
    for (int place = 0; place < kFacts.unit_blocks; ++place, to += unpacked_block_bytes(format)) {
      const uint8_t* finer = finer_codes<format>(tile.finer, b + place);
      prefetch_block<format>(tile, unit + place * block_bytes(format), finer);
      for (int half = 0; half < 2; ++half) {
        const PackedHalf<format> block{unit, place, half, finer};
        uint8_t* at = to + 32 * half;
        const auto store = [](uint8_t* where, __m256i v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(where), v); };
        each<8>([&](auto k) { store(at + 64 * k, block.template quartet<decltype(k)::value>()); });
        if (has_zero_point(format)) store(at + 512, block.zero());
        for (int g = 0; g < kFacts.groups; ++g) {
          const auto w = block.scale(g);
          auto* d = reinterpret_cast<float*>(at + unpacked_scales(format) + g * unpacked_group(format));
          _mm256_storeu_ps(d, w.d);
          if (kFacts.has_minimum) _mm256_storeu_ps(d + 16, w.minimum);
        }
      }
    }
  }
}
