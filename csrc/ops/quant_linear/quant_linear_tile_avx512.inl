// QuantLinear's inner loops on AVX-512 VNNI: one zmm holds one input quartet of all 16 rows of a tile.
//
// A tile kernel walks a tile once for M rows of x; M accumulators and M sums stay in registers.

// Memory operands that the compiler may not take apart into a broadcast and a dot product: that costs 12 % at 8 rows.
typedef int32_t __attribute__((may_alias)) UnalignedInt;

inline void dot_broadcast(__m512i& sum, __m512i codes, const int8_t* four) {
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(codes), "m"(*reinterpret_cast<const UnalignedInt*>(four)));
}

struct Bytes {
  __m512i v;

  static Bytes load(const uint8_t* at) { return {_mm512_loadu_si512(at)}; }
  // Shifts move bits over the borders of bytes: `bits` takes those that count.
  template <int n>
  static Bytes shift_right(Bytes a) {
    return {_mm512_srli_epi16(a.v, n)};
  }
  template <int n>
  static Bytes shift_left(Bytes a) {
    return {_mm512_slli_epi16(a.v, n)};
  }
  static Bytes bits(Bytes a, int mask) { return {_mm512_and_si512(a.v, _mm512_set1_epi8(static_cast<char>(mask)))}; }
  static Bytes join(Bytes a, Bytes b) { return {_mm512_or_si512(a.v, b.v)}; }
};

struct Lanes {
  using V = VF;
  using I = __m512i;
  static constexpr int kRows = 16;

  static VF halves(const uint8_t* at) { return vf_from_half(reinterpret_cast<const uint16_t*>(at)); }
  static __m128i load(const uint8_t* at) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at)); }
  static __m512i integers(const uint8_t* at) { return _mm512_cvtepu8_epi32(load(at)); }
  static VF whole(__m128i bytes) { return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes))}; }
  static VF bytes(const uint8_t* at) { return whole(load(at)); }
  static VF signed_bytes(const uint8_t* at) { return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load(at)))}; }
  static VF low_nibbles(const uint8_t* at) { return whole(_mm_and_si128(load(at), _mm_set1_epi8(15))); }
  static VF high_nibbles(const uint8_t* at) {
    return whole(_mm_and_si128(_mm_srli_epi16(load(at), 4), _mm_set1_epi8(15)));
  }
  static VF exponents(const uint8_t* at) {
    const __m512i e = _mm512_cvtepu8_epi32(load(at)), one = _mm512_set1_epi32(1);
    const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, one), 23);
    const __m512i tiny = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
    return {_mm512_castsi512_ps(_mm512_mask_blend_epi32(_mm512_cmpgt_epi32_mask(e, one), tiny, normal))};
  }
  static VF mul(VF a, VF b) { return vf_mul(a, b); }
  static VF negative(VF a) { return vf_neg(a); }
};

// The instruction wants unsigned codes; the 128 that this adds to signed ones are taken back through the sums.
template <WeightFormat format, int k>
inline __m512i unsigned_quartet(const uint8_t* at) {
  constexpr CodeKind kKind = facts(format).codes;
  const __m512i codes = quartet<kKind, k, Bytes>(at).v, sign = _mm512_set1_epi8(static_cast<char>(0x80));
  if (kKind == CodeKind::kBytes) return _mm512_xor_si512(codes, sign);
  if (kKind == CodeKind::kTable) {
    const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table_of(format)));
    return _mm512_shuffle_epi8(_mm512_xor_si512(_mm512_broadcast_i32x4(table), sign), codes);
  }
  return codes;
}

// Where a sum begins: with what the dot product lacks. That of zero points is a product of numbers that fit 16 bits.
template <WeightFormat format>
inline __m512i first_sum(__m512i magic, __m512i zero, const uint32_t* word) {
  if (facts(format).has_minimum) return magic;
  const __m512i more = _mm512_set1_epi32(static_cast<int>(*word));
  return has_zero_point(format) ? _mm512_dpwssd_epi32(magic, zero, more) : _mm512_add_epi32(magic, more);
}

template <WeightFormat format, int M>
inline void dot_tile(const Tile& tile, VF* out) {
  static constexpr WeightFacts kFacts = facts(format);
  static constexpr UnitLayout kAt = unit_layout(format);
  constexpr int kQuartets = 8 / kFacts.groups;
  const __m512i magic = _mm512_set1_epi32(kMagicBits);
  const __m512 minus_magic = _mm512_set1_ps(-kMagic);
  const uint8_t* unit = tile.weight;
  const int8_t* a = tile.codes;
  const float* scale = tile.scale;
  const uint32_t* sums = tile.sums;
  __m512 f[M];
  for (int m = 0; m < M; ++m) f[m] = _mm512_setzero_ps();
  for (int64_t b = 0; b < tile.blocks; b += kFacts.unit_blocks, unit += kAt.bytes) {
    // No pragma: a loop of one block is none then, and one of eight is too long to be unrolled.
    for (int place = 0; place < kFacts.unit_blocks; ++place, a += kBlock * M, scale += M) {
      const uint8_t* codes = unit + place * kAt.code_bytes;
      prefetch_weights<block_bytes(format)>(unit + place * block_bytes(format), tile.prefetch_end);
      each<kFacts.groups>([&](auto g) __attribute__((always_inline)) {
        const __m512i zero = zero_points<format, Lanes>(unit, 0);
        __m512i sum[M];
        for (int m = 0; m < M; ++m) sum[m] = first_sum<format>(magic, zero, sums + m);
        each<kQuartets>([&](auto i) __attribute__((always_inline)) {
          constexpr int k = decltype(g)::value * kQuartets + decltype(i)::value;
          const __m512i w = unsigned_quartet<format, k>(codes);
#pragma GCC unroll 8
          for (int m = 0; m < M; ++m) dot_broadcast(sum[m], w, a + kBlock * m + 4 * k);
        });
        const GroupScale<VF> w = group_scale<format, Lanes>(unit, place * kFacts.groups + g, 0);
        const __m512 offset = _mm512_mul_ps(w.d.v, minus_magic);
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
          const __m512 t = _mm512_fmadd_ps(_mm512_castsi512_ps(sum[m]), w.d.v, offset);
          f[m] = _mm512_fmadd_ps(t, _mm512_set1_ps(scale[m]), f[m]);
          if (kFacts.has_minimum) {
            const __m512 total = _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(sums[m])));
            f[m] = _mm512_fmadd_ps(w.minimum.v, total, f[m]);
          }
        }
        sums += M;
      });
    }
  }
  for (int m = 0; m < M; ++m) out[m] = VF{f[m]};
}
