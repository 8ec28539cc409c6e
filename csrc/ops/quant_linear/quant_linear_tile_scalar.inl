// QuantLinear's inner loops in plain C++: the definition that the other instruction sets reproduce bit for bit.

struct Lanes {
  using V = VF;
  static constexpr int kRows = 16;

  static VF halves(const uint8_t* at) { return vf_from_half(reinterpret_cast<const uint16_t*>(at)); }
  template <class Number>
  static VF each_of(const uint8_t* at, Number number) {
    VF out;
    for (int r = 0; r < kRows; ++r) out.v[r] = static_cast<float>(number(at[r]));
    return out;
  }
  static VF bytes(const uint8_t* at) {
    return each_of(at, [](uint8_t byte) { return byte; });
  }
  static VF signed_bytes(const uint8_t* at) {
    return each_of(at, [](uint8_t byte) { return static_cast<int8_t>(byte); });
  }
  static VF low_nibbles(const uint8_t* at) {
    return each_of(at, [](uint8_t byte) { return byte & 15; });
  }
  static VF high_nibbles(const uint8_t* at) {
    return each_of(at, [](uint8_t byte) { return byte >> 4; });
  }
  static VF exponents(const uint8_t* at) { return each_of(at, exponent_scale); }
  static VF small_floats(const uint8_t* at) {
    uint16_t lanes[kRows];
    for (int r = 0; r < kRows; ++r) lanes[r] = half_of_float8(at[r]);
    return vf_from_half(lanes);
  }
  static VF mul(VF a, VF b) { return vf_mul(a, b); }
  static VF times(VF a, float b) { return vf_mul(a, vf_set1(b)); }
  static VF sub(VF a, VF b) { return vf_sub(a, b); }
  static VF negative(VF a) { return vf_neg(a); }
};

template <WeightFormat format, int M>
inline void dot_tile(const Tile& tile, VF* out) {
  static constexpr WeightFacts kFacts = facts(format);
  static constexpr UnitLayout kAt = unit_layout(format);
  constexpr int kInputs = kBlock / kFacts.groups;
  for (int64_t b = 0; b < tile.blocks; ++b) {
    const uint8_t* unit = tile.weight + b / kFacts.unit_blocks * kAt.bytes;
    const uint8_t* zero = unit + kAt.scales;  // where there are zero points
    const uint8_t* finer = finer_codes<format>(tile.finer, b);
    const int place = static_cast<int>(b % kFacts.unit_blocks);
    for (int g = 0; g < kFacts.groups; ++g) {
      const GroupScale<VF> w = group_scale<format, Lanes>(unit, place * kFacts.groups + g, 0);
      for (int m = 0; m < M; ++m) {
        const int8_t* x = tile.codes + (b * M + m) * kBlock + g * kInputs;
        int32_t dot[kTileRows] = {};
        for (int r = 0; r < kTileRows; ++r) {
          for (int i = 0; i < kInputs; ++i) {
            const int code = code_at(format, unit + place * kAt.code_bytes, finer, g * kInputs + i, r);
            dot[r] += (has_zero_point(format) ? code - zero[r] : code) * x[i];
          }
        }
        out[m] = add_block(out[m], vi_load(dot), w.d, tile.scale[b * M + m]);
        if (kFacts.has_minimum) {
          float total;
          __builtin_memcpy(&total, &tile.sums[(b * kFacts.groups + g) * M + m], 4);
          out[m] = vf_fma(w.minimum, vf_set1(total), out[m]);
        }
      }
    }
  }
}
