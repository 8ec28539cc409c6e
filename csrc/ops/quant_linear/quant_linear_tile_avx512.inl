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
  static VF small_floats(const uint8_t* at) {
    const __m128i bytes = _mm_and_si128(load(at), _mm_set1_epi8(0x7f));
    return {_mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 7))};
  }
  static VF mul(VF a, VF b) { return vf_mul(a, b); }
  static VF times(VF a, float b) { return vf_mul(a, vf_set1(b)); }
  static VF sub(VF a, VF b) { return vf_sub(a, b); }
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
  return has_zero_point(format) ? _mm512_dpwssd_epi32(magic, zero, more) : more;
}

// One block of a tile, as it is stored.
template <WeightFormat format>
struct PackedBlock {
  const uint8_t* unit;
  int place;
  const uint8_t* finer;

  template <int k>
  __m512i quartet() const {
    if constexpr (is_nested(format)) return nested_quartet<k, Bytes>(unit, finer).v;
    return unsigned_quartet<format, k>(unit + place * unit_layout(format).code_bytes);
  }
  __m512i zero() const { return zero_points<format, Lanes>(unit, 0); }
  GroupScale<VF> scale(int g) const { return group_scale<format, Lanes>(unit, place * facts(format).groups + g, 0); }
};

// One block of a tile that was unpacked.
template <WeightFormat format>
struct UnpackedBlock {
  const uint8_t* at;

  template <int k>
  __m512i quartet() const {
    return _mm512_loadu_si512(at + 64 * k);
  }
  __m512i zero() const { return has_zero_point(format) ? _mm512_loadu_si512(at + 512) : _mm512_setzero_si512(); }
  GroupScale<VF> scale(int g) const {
    const auto* d = reinterpret_cast<const float*>(at + unpacked_scales(format) + g * unpacked_group(format));
    return {vf_load(d), facts(format).has_minimum ? vf_load(d + 16) : vf_zero()};
  }
};

// Adds the products of a block's group g with M rows to f. Loops over rows are calls with constants: of arrays that are
// indexed by variables the compiler keeps copies in memory.
template <WeightFormat format, int M, int g, class Block>
EDGE_RT_INLINE void add_group(const Block& block, const int8_t* a, const float* scale, const uint32_t* sums,
                              __m512* f) {
  static constexpr WeightFacts kFacts = facts(format);
  constexpr int kQuartets = 8 / kFacts.groups;
  const __m512i magic = _mm512_set1_epi32(kMagicBits);
  const __m512 minus_magic = _mm512_set1_ps(-kMagic);
  const __m512i zero = block.zero();
  __m512i sum[M];
  each<M>([&](auto m) EDGE_RT_IN_PLACE { sum[m] = first_sum<format>(magic, zero, sums + m); });
  each<kQuartets>([&](auto i) EDGE_RT_IN_PLACE {
    constexpr int k = g * kQuartets + decltype(i)::value;
    const __m512i w = block.template quartet<k>();
    each<M>([&](auto m) EDGE_RT_IN_PLACE { dot_broadcast(sum[m], w, a + kBlock * m + 4 * k); });
  });
  const GroupScale<VF> w = block.scale(g);
  const __m512 offset = _mm512_mul_ps(w.d.v, minus_magic);
  each<M>([&](auto m) EDGE_RT_IN_PLACE {
    const __m512 t = _mm512_fmadd_ps(_mm512_castsi512_ps(sum[m]), w.d.v, offset);
    f[m] = _mm512_fmadd_ps(t, _mm512_set1_ps(scale[m]), f[m]);
    if (kFacts.has_minimum) {
      const __m512 total = _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(sums[m])));
      f[m] = _mm512_fmadd_ps(w.minimum.v, total, f[m]);
    }
  });
}

// Adds a block's products with M rows to f.
template <WeightFormat format, int M, class Block>
EDGE_RT_INLINE void add_products(const Block& block, const int8_t* a, const float* scale, const uint32_t* sums,
                                 __m512* f) {
  add_group<format, M, 0>(block, a, scale, sums, f);
  if constexpr (facts(format).groups == 2) add_group<format, M, 1>(block, a, scale, sums + M, f);
}

template <WeightFormat format, int M>
inline void dot_tile(const Tile& tile, VF* out) {
  static constexpr WeightFacts kFacts = facts(format);
  const uint8_t* unit = tile.weight;
  const int8_t* a = tile.codes;
  const float* scale = tile.scale;
  const uint32_t* sums = tile.sums;
  __m512 f[M];
  each<M>([&](auto m) EDGE_RT_IN_PLACE { f[m] = out[m].v; });
  for (int64_t b = 0; b < tile.blocks; b += kFacts.unit_blocks, unit += unit_layout(format).bytes) {
    // No pragma: a loop of one block is none then, and one of eight is too long to be unrolled.
    for (int place = 0; place < kFacts.unit_blocks; ++place) {
      const uint8_t* finer = finer_codes<format>(tile.finer, b + place);
      prefetch_block<format>(tile, unit + place * block_bytes(format), finer);
      add_products<format, M>(PackedBlock<format>{unit, place, finer}, a, scale, sums, f);
      a += kBlock * M;
      scale += M;
      sums += kFacts.groups * M;
    }
  }
  each<M>([&](auto m) EDGE_RT_IN_PLACE { out[m] = VF{f[m]}; });
}

template <WeightFormat format>
inline void unpack_tile(const Tile& tile, uint8_t* to) {
  static constexpr WeightFacts kFacts = facts(format);
  const uint8_t* unit = tile.weight;
  for (int64_t b = 0; b < tile.blocks; b += kFacts.unit_blocks, unit += unit_layout(format).bytes) {
    for (int place = 0; place < kFacts.unit_blocks; ++place, to += unpacked_block_bytes(format)) {
      const uint8_t* finer = finer_codes<format>(tile.finer, b + place);
      prefetch_block<format>(tile, unit + place * block_bytes(format), finer);
      const PackedBlock<format> block{unit, place, finer};
      each<8>([&](auto k) { _mm512_storeu_si512(to + 64 * k, block.template quartet<decltype(k)::value>()); });
      if (has_zero_point(format)) _mm512_storeu_si512(to + 512, block.zero());
      for (int g = 0; g < kFacts.groups; ++g) {
        const GroupScale<VF> w = block.scale(g);
        auto* d = reinterpret_cast<float*>(to + unpacked_scales(format) + g * unpacked_group(format));
        vf_store(d, w.d);
        if (kFacts.has_minimum) vf_store(d + 16, w.minimum);
      }
    }
  }
}

// As dot_tile, of a tile that was unpacked to tile.weight.
template <WeightFormat format>
inline void dot_unpacked(const Tile& tile, VF* out) {
  constexpr int M = kGroupRows, kGroups = facts(format).groups;
  const uint8_t* at = tile.weight;
  const int8_t* a = tile.codes;
  const float* scale = tile.scale;
  const uint32_t* sums = tile.sums;
  __m512 f[M];
  each<M>([&](auto m) EDGE_RT_IN_PLACE { f[m] = out[m].v; });
  for (int64_t b = 0; b < tile.blocks; ++b) {
    add_products<format, M>(UnpackedBlock<format>{at}, a, scale, sums, f);
    at += unpacked_block_bytes(format);
    a += kBlock * M;
    scale += M;
    sums += kGroups * M;
  }
  each<M>([&](auto m) EDGE_RT_IN_PLACE { out[m] = VF{f[m]}; });
}
