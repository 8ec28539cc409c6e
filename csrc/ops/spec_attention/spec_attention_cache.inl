// Rows in the cache's formats: writing them, and reading a tile of them.

inline void append_f32(const AttentionPass& pass, uint8_t* plane, int64_t at, const float* x) {
  float* row = reinterpret_cast<float*>(plane) + at * pass.head_dim;
  for (int d = 0; d < pass.head_dim; d += 16) {
    const int n = pass.head_dim - d < 16 ? pass.head_dim - d : 16;
    vf_store_n(row + d, vf_load_n(x + d, n), n);
  }
}

inline void append_f16(const AttentionPass& pass, uint8_t* plane, int64_t at, const float* x) {
  uint8_t* row = plane + at * pass.head_dim * 2;
  for (int d = 0; d < pass.head_dim; d += 16) {
    const int n = pass.head_dim - d < 16 ? pass.head_dim - d : 16;
    uint16_t halves[16];
    vf_to_half(halves, vf_load_n(x + d, n));
    std::memcpy(row + d * 2, halves, static_cast<size_t>(n) * 2);
  }
}

inline float half_scale(float largest, uint16_t* bits) {
  uint16_t halves[16];
  float floats[16];
  vf_to_half(halves, vf_set1(largest / 127.0f));
  vf_store(floats, vf_from_half(halves));
  *bits = halves[0];
  return floats[0];
}

inline VI to_codes(VF x) { return vi_round(vf_max(vf_set1(-127.0f), vf_min(vf_set1(127.0f), x))); }

inline void append_int8(const AttentionPass& pass, uint8_t* plane, int64_t at, const float* x) {
  uint8_t* codes = plane + at * pass.head_dim;
  uint8_t* scales = plane + pass.capacity * pass.head_dim + at * pass.groups() * 2;
  for (int d = 0; d < pass.head_dim; d += kKvGroup) {
    const int n = pass.head_dim - d < kKvGroup ? pass.head_dim - d : kKvGroup;
    const VF low = vf_load_n(x + d, n < 16 ? n : 16), high = vf_load_n(x + d + 16, n < 16 ? 0 : n - 16);
    uint16_t bits;
    const float scale = half_scale(vf_hmax(vf_max(vf_abs(low), vf_abs(high))), &bits);
    int8_t group[kKvGroup] = {};
    if (scale > 0) {
      vf_to_i8(group, to_codes(vf_div(low, vf_set1(scale))));
      vf_to_i8(group + 16, to_codes(vf_div(high, vf_set1(scale))));
    }
    std::memcpy(codes + d, group, static_cast<size_t>(n));
    std::memcpy(scales + d / kKvGroup * 2, &bits, 2);
  }
}

// The rows of a tile as floats: out[j] points to padded_dim floats, or where floats lie in the cache to head_dim.
inline void read_f32(const AttentionPass& pass, const uint8_t* plane, const int32_t* rows, const AttentionWork&,
                     const float** out) {
  const float* base = reinterpret_cast<const float*>(plane);
  for (int j = 0; j < kKvTile; ++j) out[j] = base + static_cast<int64_t>(rows[j]) * pass.head_dim;
}

// Floats behind the last whole vector of rows that are read so; 0: none.
inline int tail_of(const AttentionPass& pass, KvCoding coding) { return coding == kCodedF32 ? pass.head_dim % 16 : 0; }

inline void read_f16(const AttentionPass& pass, const uint8_t* plane, const int32_t* rows, const AttentionWork& work,
                     const float** out) {
  for (int j = 0; j < kKvTile; ++j) {
    const uint16_t* from = reinterpret_cast<const uint16_t*>(plane) + static_cast<int64_t>(rows[j]) * pass.head_dim;
    float* to = work.rows + j * pass.padded_dim;
    int d = 0;
    for (; d + 16 <= pass.head_dim; d += 16) vf_store(to + d, vf_from_half(from + d));
    if (d < pass.head_dim) vf_store(to + d, vf_from_half_n(from + d, pass.head_dim - d));
    out[j] = to;
  }
}

// The rows of a tile lie one after the other.
EDGE_RT_INLINE bool are_adjacent(const int32_t* rows) {
  const auto first = static_cast<uint32_t>(rows[0]);
  uint32_t different = 0;
  for (uint32_t j = 0; j < kKvTile; ++j) different |= static_cast<uint32_t>(rows[j]) ^ (first + j);
  return different == 0;
}

// Words (4 bytes) of a tile's rows, Words of each, where they lie or copied together.
template <int Words>
EDGE_RT_INLINE const uint8_t* collect_words(const uint8_t* base, const int32_t* rows, bool adjacent, uint8_t* copy) {
  if (adjacent) return base + int64_t{rows[0]} * (4 * Words);
  for (int j = 0; j < kKvTile; ++j) {
    std::memcpy(copy + 4 * Words * j, base + int64_t{rows[j]} * (4 * Words), 4 * Words);
  }
  return copy;
}

EDGE_RT_INLINE VI load_words(const uint8_t* p) {
  int32_t words[kKvTile];
  std::memcpy(words, p, sizeof words);
  return vi_load(words);
}

// Scales of a tile, [groups][kKvTile].
inline void read_scales(const AttentionPass& pass, const uint8_t* plane, const int32_t* rows, float* scales) {
  const int groups = pass.groups();
  const uint8_t* base = plane + pass.capacity * pass.head_dim;
  if (groups == 2) {
    uint8_t copy[4 * kKvTile];
    VF first, second;
    vf_from_half_pairs(load_words(collect_words<1>(base, rows, are_adjacent(rows), copy)), &first, &second);
    vf_store(scales, first);
    vf_store(scales + kKvTile, second);
    return;
  }
  uint16_t halves[kKvTile * kv_groups(kMaxHeadDim)];
  for (int j = 0; j < kKvTile; ++j) {
    const uint8_t* from = base + static_cast<int64_t>(rows[j]) * groups * 2;
    for (int g = 0; g < groups; ++g) std::memcpy(halves + g * kKvTile + j, from + 2 * g, 2);
  }
  for (int g = 0; g < groups; ++g) vf_store(scales + g * kKvTile, vf_from_half(halves + g * kKvTile));
}

inline void read_int8(const AttentionPass& pass, const uint8_t* plane, const int32_t* rows, const AttentionWork& work,
                      const float** out) {
  const int dim = pass.head_dim;
  read_scales(pass, plane, rows, work.scales);
  for (int j = 0; j < kKvTile; ++j) {
    const int8_t* from = reinterpret_cast<const int8_t*>(plane) + static_cast<int64_t>(rows[j]) * dim;
    float* to = work.rows + j * pass.padded_dim;
    out[j] = to;
    int d = 0;
    const float* scales = work.scales + j;
    for (; d + kKvGroup <= dim; d += kKvGroup, scales += kKvTile) {
      const VF scale = vf_set1(*scales);
      vf_store(to + d, vf_mul(vf_from_i8(from + d), scale));
      vf_store(to + d + 16, vf_mul(vf_from_i8(from + d + 16), scale));
    }
    if (d == dim) continue;
    const VF scale = vf_set1(*scales);
    if (d + 16 <= dim) {
      vf_store(to + d, vf_mul(vf_from_i8(from + d), scale));
      d += 16;
    }
    if (d < dim) vf_store(to + d, vf_mul(vf_from_i8_n(from + d, dim - d), scale));
  }
}
