// A block of a tile as the A operand of a tensor core's product: 16 rows by 32 inputs, read once from device memory.
//
// Of the 8 groups of 4 lanes, group g holds rows 2 g and 2 g + 1 of the tile, and lane q of it quartets 2 q and 2 q +
// 1: both rows' bytes of a line of codes are neighbours, and so are their scales. The rows of x are the columns, of
// which a lane gets the products of 2 q and 2 q + 1.

// Where a lane stands in its warp's operands.
struct Place {
  int g, q;
};
EDGE_RT_DEVICE Place place_in_warp() { return {lane() / 4, lane() % 4}; }

template <class T>
EDGE_RT_DEVICE T load_as(const void* p) {
  return *static_cast<const T*>(p);
}

// Two rows' numbers.
struct Pair {
  float first, second;
};

// What group_scale takes two rows at once from.
struct PairLanes {
  using V = Pair;
  static constexpr int kRows = 2;

  template <class Number>
  static V each_of(const uint8_t* at, Number number) {
    const uint32_t both = load_as<uint16_t>(at);
    return {from_int(number(static_cast<uint8_t>(both & 0xff))), from_int(number(static_cast<uint8_t>(both >> 8)))};
  }
  static V halves(const uint8_t* at) {
    const uint32_t both = load_as<uint32_t>(at);
    return {float_of_half(static_cast<uint16_t>(both & 0xffff)), float_of_half(static_cast<uint16_t>(both >> 16))};
  }
  static V bytes(const uint8_t* at) {
    return each_of(at, [](uint8_t byte) { return int{byte}; });
  }
  static V signed_bytes(const uint8_t* at) {
    return each_of(at, [](uint8_t byte) { return int{static_cast<int8_t>(byte)}; });
  }
  static V low_nibbles(const uint8_t* at) {
    return each_of(at, [](uint8_t byte) { return byte & 15; });
  }
  static V high_nibbles(const uint8_t* at) {
    return each_of(at, [](uint8_t byte) { return byte >> 4; });
  }
  static V exponents(const uint8_t* at) {
    const uint32_t both = load_as<uint16_t>(at);
    return {exponent_scale(static_cast<uint8_t>(both & 0xff)), exponent_scale(static_cast<uint8_t>(both >> 8))};
  }
  static V small_floats(const uint8_t* at) {
    const uint32_t both = load_as<uint16_t>(at);
    return {float_of_half(half_of_float8(static_cast<uint8_t>(both & 0xff))),
            float_of_half(half_of_float8(static_cast<uint8_t>(both >> 8)))};
  }
  static V mul(V a, V b) { return {gpu::mul(a.first, b.first), gpu::mul(a.second, b.second)}; }
  static V times(V a, float b) { return {gpu::mul(a.first, b), gpu::mul(a.second, b)}; }
  static V sub(V a, V b) { return {add(a.first, -b.first), add(a.second, -b.second)}; }
  static V negative(V a) { return {-a.first, -a.second}; }
};

// Both rows' bytes of a line.
struct alignas(8) TwoWords {
  uint32_t of[2];
};
EDGE_RT_DEVICE TwoWords load_line(const uint8_t* line, const Place& at) { return load_as<TwoWords>(line + 8 * at.g); }

constexpr uint32_t table_word(const int8_t* table, int first) {
  uint32_t word = 0;
  for (int i = 0; i < 4; ++i) word |= static_cast<uint32_t>(static_cast<uint8_t>(table[first + i])) << 8 * i;
  return word;
}

// Of a table with 16 places, those that the nibbles of a word name: its low nibbles in *low, the high ones in *high.
template <WeightFormat format>
EDGE_RT_DEVICE void look_up(uint32_t nibbles, uint32_t* low, uint32_t* high) {
  constexpr const int8_t* kTable = has_float_table(format) ? kTableMX4 : kTableIQ4;
  constexpr uint32_t k0 = table_word(kTable, 0), k4 = table_word(kTable, 4), k8 = table_word(kTable, 8),
                     k12 = table_word(kTable, 12);
  uint32_t found[2];
  for (int half = 0; half < 2; ++half) {
    const uint32_t four = nibbles >> 16 * half;
    // Both halves of the table, and a choice by the nibbles' highest bits.
    const uint32_t choice = 0x3210u | (four & 0x8888u) >> 1;
    found[half] = permute_bytes(permute_bytes(k0, k4, four), permute_bytes(k8, k12, four), choice);
  }
  *low = permute_bytes(found[0], found[1], 0x6420u);
  *high = permute_bytes(found[0], found[1], 0x7531u);
}

// Codes with an offset of half their range are multiplied as signed bytes: as their highest bits, of which the first
// one is turned over, they are 2^shift times too large, and need no sum of x. 0: other codes.
constexpr int signed_shift(WeightFormat format) {
  const WeightFacts f = facts(format);
  if (f.codes == CodeKind::kBytes || f.codes == CodeKind::kTable || f.offset == 0) return 0;
  int shift = 0;
  while (f.offset << shift < 128) ++shift;
  return shift;
}

// Codes as they are multiplied: without a zero point, 2^signed_shift times as large, for nested ones the upper halves.
//   a[0], a[1]: quartet 2 q of both rows;  a[2], a[3]: quartet 2 q + 1
template <WeightFormat format>
EDGE_RT_DEVICE void load_codes(const uint8_t* codes, const Place& at, uint32_t (&a)[4]) {
  constexpr CodeKind kKind = facts(format).codes;
  if constexpr (kKind == CodeKind::kBytes) {
    const TwoWords even = load_line(codes + 128 * at.q, at), odd = load_line(codes + 128 * at.q + 64, at);
    for (int r = 0; r < 2; ++r) {
      a[r] = even.of[r];
      a[2 + r] = odd.of[r];
    }
  } else if constexpr (kKind == CodeKind::kTwo || kKind == CodeKind::kThree) {
    const TwoWords line = load_line(codes + 64 * (at.q / 2), at);
    const int shift = 4 * (at.q % 2);
    for (int r = 0; r < 2; ++r) {
      a[r] = line.of[r] >> shift & 0x03030303u;
      a[2 + r] = line.of[r] >> shift >> 2 & 0x03030303u;
    }
  } else {
    const TwoWords line = load_line(codes + 64 * at.q, at);
    for (int r = 0; r < 2; ++r) {
      if constexpr (kKind == CodeKind::kTable) {
        look_up<format>(line.of[r], &a[r], &a[2 + r]);
      } else {
        a[r] = line.of[r] & 0x0f0f0f0fu;
        a[2 + r] = line.of[r] >> 4 & 0x0f0f0f0fu;
      }
    }
  }
  if constexpr (kKind == CodeKind::kFive || kKind == CodeKind::kThree) {  // one bit more
    constexpr int kFrom = kKind == CodeKind::kFive ? 256 : 128, kTo = kKind == CodeKind::kFive ? 4 : 2;
    const TwoWords line = load_line(codes + kFrom, at);
    for (int r = 0; r < 2; ++r) {
      a[r] |= (line.of[r] >> 2 * at.q & 0x01010101u) << kTo;
      a[2 + r] |= (line.of[r] >> 2 * at.q >> 1 & 0x01010101u) << kTo;
    }
  }
  if constexpr (kKind == CodeKind::kSix) {
    const TwoWords line = load_line(codes + 256 + 64 * (at.q / 2), at);
    const int shift = 4 * (at.q % 2);
    for (int r = 0; r < 2; ++r) {
      a[r] |= (line.of[r] >> shift & 0x03030303u) << 4;
      a[2 + r] |= (line.of[r] >> shift >> 2 & 0x03030303u) << 4;
    }
  }
  if constexpr (signed_shift(format) != 0) {
    for (int i = 0; i < 4; ++i) a[i] = a[i] << signed_shift(format) ^ 0x80808080u;
  }
}

// A tile of a job, as the thread blocks find it.
struct FoundTile {
  const uint8_t* weight;
  const uint8_t* finer;
  WeightFormat format;
  int kind;
};
EDGE_RT_DEVICE FoundTile find_tile(const LinearRows& job, int64_t tile) {
  const int number = job.weight.find(&tile);
  const PackedWeight& part = job.weight.parts[number];
  return {part.tile(tile), part.finer(tile), read_as(part.format), job.weight.sums[number]};
}

// Where a block lies: its unit, its number there, and its finer codes.
template <WeightFormat format>
struct BlockPlace {
  static constexpr int kUnitBlocks = facts(format).unit_blocks;

  const uint8_t* unit;
  int number;
  const uint8_t* finer;

  EDGE_RT_DEVICE BlockPlace(const uint8_t* at, int in_unit, const uint8_t* finer_codes)
      : unit(at), number(in_unit), finer(finer_codes) {}
  EDGE_RT_DEVICE BlockPlace(const FoundTile& tile, int block)
      : unit(tile.weight + int64_t{block / kUnitBlocks} * unit_bytes(format)), number(block % kUnitBlocks),
        finer(tile.finer + int64_t{block} * finer_bytes(format)) {}

  // Block i behind this one, which is the first of `count` blocks that begin at a multiple of it. Both are powers of
  // two, so no unit is left half-way, and all places but the first are known when kernels are compiled.
  template <int count>
  EDGE_RT_DEVICE BlockPlace behind(int i) const {
    const uint8_t* finer_codes = finer + i * finer_bytes(format);
    if constexpr (kUnitBlocks >= count) return {unit, number + i, finer_codes};
    return {unit + i / kUnitBlocks * unit_bytes(format), i % kUnitBlocks, finer_codes};
  }
};

// A block of weights, ready to be multiplied with any number of rows.
template <WeightFormat format>
struct WeightBlock {
  static constexpr WeightFacts kFacts = facts(format);

  uint32_t codes[4];
  uint32_t finer[4];  // of nested codes, their lower halves
  int zero[2];        // zero points
  GroupScale<Pair> scale[kFacts.groups];

  EDGE_RT_DEVICE void load(const BlockPlace<format>& from, const Place& at) {
    constexpr UnitLayout kAt = unit_layout(format);
    load_codes<format>(from.unit + from.number * kAt.code_bytes, at, codes);
    if constexpr (is_nested(format)) load_codes<WeightFormat::kW4M>(from.finer, at, finer);
    if constexpr (has_zero_point(format)) {
      const uint32_t both = load_as<uint16_t>(from.unit + kAt.scales + 2 * at.g);
      zero[0] = static_cast<int>(both & 0xff);
      zero[1] = static_cast<int>(both >> 8);
    }
    EDGE_RT_UNROLL(2)
    for (int group = 0; group < kFacts.groups; ++group) {
      scale[group] = group_scale<format, PairLanes>(from.unit, from.number * kFacts.groups + group, at.g);
    }
  }

  // Integer sums of products with 8 rows of x, 2^signed_shift times as large, as floats that are kMagic too large:
  // c[0], c[1] of the first row of weights with columns 2 q and 2 q + 1, c[2], c[3] of the second one. `x` holds the
  // codes of column g, `sums` the words of columns 2 q and 2 q + 1 (sum_kind), which zero points alone are multiplied
  // with here.
  EDGE_RT_DEVICE void dot(int group, uint64_t x, const uint32_t (&sums)[2], int (&c)[4], const Place& at) const {
    uint32_t b[2] = {static_cast<uint32_t>(x), static_cast<uint32_t>(x >> 32)};
    // A half of a block is its quartets 0 to 3, or 4 to 7.
    if (kFacts.groups == 2 && at.q / 2 != group) b[0] = b[1] = 0;
    if constexpr (is_nested(format)) {
      for (int i = 0; i < 4; ++i) c[i] = 0;
      mma_16x8x32(c, codes, b);
      for (int i = 0; i < 4; ++i) c[i] = 16 * c[i] + kMagicBits;
      mma_16x8x32(c, finer, b);
      return;
    }
    for (int i = 0; i < 4; ++i) {
      c[i] = kMagicBits + (has_zero_point(format) ? zero[i / 2] * static_cast<int>(sums[i % 2]) : 0);
    }
    mma_16x8x32(c, codes, b);
  }

  // What the sum takes as its next term, before the scale of the row of x: with a smaller scale for larger sums, which
  // is the same product.
  EDGE_RT_DEVICE Pair terms(int group, const int (&c)[4], int column) const {
    constexpr float kPart = 1.0f / (1 << signed_shift(format));
    const Pair& d = scale[group].d;
    return {fma(vf_from_bits(c[column]), mul(d.first, kPart), mul(d.first, -kMagic * kPart)),
            fma(vf_from_bits(c[2 + column]), mul(d.second, kPart), mul(d.second, -kMagic * kPart))};
  }
};

// Rows of x of a group, as the tensor core's columns: those that do not exist are the last one again.
struct Columns {
  const int8_t* codes;    // of column g, from quartet 2 q on
  const float* scale[2];  // of columns 2 q and 2 q + 1
  const uint32_t* sums[2];
  int rows;

  EDGE_RT_DEVICE Columns(const LinearRows& job, int64_t group, int kind, int words, const Place& at)
      : rows(job.in.group_rows(group)) {
    const int last = rows - 1;
    codes = job.in.group_codes(group) + (at.g < last ? at.g : last) * kBlock + 8 * at.q;
    for (int k = 0; k < 2; ++k) {
      const int own = 2 * at.q + k < last ? 2 * at.q + k : last;
      scale[k] = job.in.group_scale(group) + own;
      sums[k] = job.in.group_sums(kind, words, group) + own;
    }
  }

  EDGE_RT_DEVICE uint64_t load(int block) const { return load_as<uint64_t>(codes + int64_t{block * rows} * kBlock); }
  EDGE_RT_DEVICE float load_scale(int block, int k) const { return scale[k][block * rows]; }
  // Of a group of weights.
  EDGE_RT_DEVICE void load_sums(int group, uint32_t (&out)[2]) const {
    for (int k = 0; k < 2; ++k) out[k] = sums[k][group * rows];
  }
};

template <int format>
struct FormatTag {
  static constexpr WeightFormat kFormat = static_cast<WeightFormat>(format);
};
// Formats that kernels are compiled for, a bit each: whoever compiles for one model alone may leave out the others.
#ifndef EDGE_RT_WEIGHT_FORMATS
#define EDGE_RT_WEIGHT_FORMATS ~0u
#endif
constexpr bool is_compiled(WeightFormat format) {
  return (EDGE_RT_WEIGHT_FORMATS >> static_cast<int>(format) & 1u) != 0 && rounds_activations(format) &&
         format == read_as(format);
}
// Calls a function with the tag of a format of codes.
template <int format = 0, class Call>
EDGE_RT_DEVICE void with_format(WeightFormat wanted, const Call& call) {
  constexpr WeightFormat kFormat = static_cast<WeightFormat>(format);
  if constexpr (is_compiled(kFormat)) {
    if (wanted == kFormat) return call(FormatTag<format>{});
  }
  if constexpr (format + 1 < kWeightFormatCount) with_format<format + 1>(wanted, call);
}
