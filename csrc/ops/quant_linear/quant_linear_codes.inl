// Codes of a block, unpacked alike on every instruction set: Bytes are the 64, 32 or 16 bytes of a line that it takes
// at once.

// Calls a function with each of 0 ... n - 1 as a constant.
template <int n, class Call>
inline __attribute__((always_inline)) void each(Call call) {
  if constexpr (n > 0) {
    each<n - 1>(call);
    call(std::integral_constant<int, n - 1>{});
  }
}

// Bits `from` and up of each byte, `bits` many, moved to bit `to`.
template <int from, int to, int bits, class Bytes>
inline Bytes move_bits(Bytes line) {
  if constexpr (from > to) line = Bytes::template shift_right<from - to>(line);
  if constexpr (from < to) line = Bytes::template shift_left<to - from>(line);
  return Bytes::bits(line, ((1 << bits) - 1) << to);
}

// Quartet k of a block whose lines begin at `at`; bytes as they are stored, and codes of a table as places in it.
template <CodeKind kind, int k, class Bytes>
inline Bytes quartet(const uint8_t* at) {
  constexpr int kHalf = 4 * (k % 2), kPair = 2 * (k % 4);
  if constexpr (kind == CodeKind::kBytes) {
    return Bytes::load(at + 64 * k);
  } else if constexpr (kind == CodeKind::kTwo) {
    return move_bits<kPair, 0, 2>(Bytes::load(at + 64 * (k / 4)));
  } else if constexpr (kind == CodeKind::kThree) {
    const Bytes low = move_bits<kPair, 0, 2>(Bytes::load(at + 64 * (k / 4)));
    return Bytes::join(low, move_bits<k, 2, 1>(Bytes::load(at + 128)));
  } else {
    const Bytes low = move_bits<kHalf, 0, 4>(Bytes::load(at + 64 * (k / 2)));
    if constexpr (kind == CodeKind::kFive) return Bytes::join(low, move_bits<k, 4, 1>(Bytes::load(at + 256)));
    if constexpr (kind == CodeKind::kSix) {
      return Bytes::join(low, move_bits<kPair, 4, 2>(Bytes::load(at + 256 + 64 * (k / 4))));
    }
    return low;
  }
}

// The same of nested codes, both halves joined: 0 to 255.
template <int k, class Bytes>
inline Bytes nested_quartet(const uint8_t* at, const uint8_t* finer) {
  constexpr int kHalf = 4 * (k % 2), kLine = 64 * (k / 2);
  return Bytes::join(move_bits<kHalf, 4, 4>(Bytes::load(at + kLine)),
                     move_bits<kHalf, 0, 4>(Bytes::load(finer + kLine)));
}

// Finer codes of a block; nullptr, which nothing reads, for formats that have none.
template <WeightFormat format>
inline const uint8_t* finer_codes(const uint8_t* finer, int64_t block) {
  return is_nested(format) ? finer + block * finer_bytes(format) : nullptr;
}

// One code, less its offset but not a zero point: input i of row r. The definition of the above.
inline int code_at(WeightFormat format, const uint8_t* at, const uint8_t* finer, int i, int r) {
  const WeightFacts& f = facts(format);
  const int k = i / 4, byte = 4 * r + i % 4;
  const int nibble = at[64 * (k / 2) + byte] >> 4 * (k % 2) & 15, pair = 2 * (k % 4);
  switch (f.codes) {
    case CodeKind::kNibbles: return nibble - f.offset;
    case CodeKind::kBytes: return static_cast<int8_t>(at[64 * k + byte]);
    case CodeKind::kTable: return table_of(format)[nibble];
    case CodeKind::kFive: return (nibble | (at[256 + byte] >> k & 1) << 4) - f.offset;
    case CodeKind::kSix: return (nibble | (at[256 + 64 * (k / 4) + byte] >> pair & 3) << 4) - f.offset;
    case CodeKind::kThree: return ((at[64 * (k / 4) + byte] >> pair & 3) | (at[128 + byte] >> k & 1) << 2) - f.offset;
    case CodeKind::kTwo: return at[64 * (k / 4) + byte] >> pair & 3;
    case CodeKind::kNested: return nibble << 4 | (finer[64 * (k / 2) + byte] >> 4 * (k % 2) & 15);
    case CodeKind::kFloats: break;
  }
  return 0;
}

// An exponent as 2^(e - 128), which is no normal number for the smallest two.
inline float exponent_scale(uint8_t e) {
  const uint32_t bits = e < 2 ? 0x00200000u << e : static_cast<uint32_t>(e - 1) << 23;
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

// The fp16 number whose value is 2^-8 times that of a float of 8 bits: 4 of its exponent and 3 of its fraction; its
// sign is not read.
inline uint16_t half_of_float8(uint8_t byte) { return static_cast<uint16_t>((byte & 0x7f) << 7); }

// Scale D and minimum M of a group, of as many rows as Lanes take at once.
template <class V>
struct GroupScale {
  V d, minimum;
};

// Zero points of a unit, as integers of 32 bits; of formats without them 0, which nothing reads.
template <WeightFormat format, class Lanes>
inline typename Lanes::I zero_points(const uint8_t* unit, int part) {
  if constexpr (has_zero_point(format)) {
    return Lanes::integers(unit + unit_layout(format).scales + part * Lanes::kRows);
  } else {
    return typename Lanes::I{};
  }
}

// Number `index` of a unit's groups; `part` counts by the rows of Lanes.
template <WeightFormat format, class Lanes>
inline GroupScale<typename Lanes::V> group_scale(const uint8_t* unit, int index, int part) {
  static constexpr WeightFacts kFacts = facts(format);
  static constexpr UnitLayout kAt = unit_layout(format);
  const int row = part * Lanes::kRows, at = kTileRows * index + row;
  if constexpr (kFacts.scales == ScaleKind::kExponent) {
    const auto d = Lanes::exponents(unit + kAt.scales + at);
    return {d, d};
  } else if constexpr (kFacts.scales == ScaleKind::kFloat8) {
    const auto d = Lanes::small_floats(unit + kAt.scales + at);
    return {d, d};
  } else {
    auto d = Lanes::halves(unit + kAt.d + 2 * row);
    auto minimum = kFacts.has_minimum ? Lanes::halves(unit + kAt.m + 2 * row) : d;
    if constexpr (kFacts.scales == ScaleKind::kByte) d = Lanes::mul(d, Lanes::bytes(unit + kAt.scales + at));
    if constexpr (kFacts.scales == ScaleKind::kSignedByte) {
      d = Lanes::mul(d, Lanes::signed_bytes(unit + kAt.scales + at));
    }
    if constexpr (kFacts.scales == ScaleKind::kByte && kFacts.has_minimum) {
      minimum = Lanes::mul(Lanes::negative(minimum), Lanes::bytes(unit + kAt.minima + at));
    }
    if constexpr (kFacts.scales == ScaleKind::kNibbles) {
      d = Lanes::mul(d, Lanes::low_nibbles(unit + kAt.scales + at));
      minimum = Lanes::mul(Lanes::negative(minimum), Lanes::high_nibbles(unit + kAt.scales + at));
    }
    if constexpr (kFacts.codes == CodeKind::kNested) {
      minimum = Lanes::sub(minimum, Lanes::times(d, 0.5f));
      d = Lanes::times(d, 0.0625f);
    }
    return {d, minimum};
  }
}
