// Rows of 4-bit codes over a scale and a minimum per group: writing them, and reading a tile of values.

// Where the parts of rows lie in a plane of codes.
struct CodedPlane {
  const uint8_t *codes, *finer, *extras;
  int64_t code_bytes, extra_bytes;  // of a row

  CodedPlane(const AttentionPass& pass, const uint8_t* plane, KvCoding coding)
      : codes(plane), code_bytes(kv_code_bytes(kKvRows[coding], pass.head_dim)),
        extra_bytes(kKvRows[coding].bytes_per_group * int64_t{pass.groups()}) {
    finer = codes + pass.capacity * code_bytes;
    extras = codes + pass.capacity * kv_all_code_bytes(kKvRows[coding], pass.head_dim);
  }
};

// Rounded to halves, which is how they are stored.
struct Levels {
  float scale, minimum;
};
inline Levels round_levels(float largest, float smallest, uint8_t* to) {
  float pair[16] = {(largest - smallest) / 15.0f, smallest};
  uint16_t halves[16];
  vf_to_half(halves, vf_load(pair));
  vf_store(pair, vf_from_half(halves));
  std::memcpy(to, halves, 4);
  return {pair[0], pair[1]};
}

inline VI to_codes(VF x, float low, float high) { return vi_round(vf_max(vf_set1(low), vf_min(vf_set1(high), x))); }

// 32 elements and their levels, which are written to `extras`. Elements from `count` on are like the first.
struct CodedGroup {
  VF half[2];
  Levels levels;
};
inline CodedGroup load_coded_group(const float* x, int count, uint8_t* extras) {
  float filled[kKvGroup];
  if (count < kKvGroup) {
    for (int i = 0; i < kKvGroup; ++i) filled[i] = x[i < count ? i : 0];
    x = filled;
  }
  const VF low = vf_load(x), high = vf_load(x + 16);
  const float largest = vf_hmax(vf_max(low, high)), smallest = -vf_hmax(vf_max(vf_neg(low), vf_neg(high)));
  return {{low, high}, round_levels(largest, smallest, extras)};
}

// Codes of a group plus `shift`, two to a byte; those from `count` on become 0.
inline void pack_group(const int8_t codes[kKvGroup], int shift, int count, uint8_t* out) {
  for (int i = 0; i < 16; ++i) {
    const int low = i < count ? (codes[i] + shift) & 15 : 0, high = i + 16 < count ? (codes[i + 16] + shift) & 15 : 0;
    out[i] = static_cast<uint8_t>(low | high << 4);
  }
}

// Finer codes too where `finer` is not null.
inline void append_group(const float* x, int count, uint8_t* codes, uint8_t* finer, uint8_t* extras) {
  const CodedGroup group = load_coded_group(x, count, extras);
  int8_t first[kKvGroup] = {}, second[kKvGroup] = {};
  if (group.levels.scale > 0) {
    const VF scale = vf_set1(group.levels.scale), minimum = vf_set1(group.levels.minimum);
    for (int i = 0; i < 2; ++i) {
      const VI code = to_codes(vf_div(vf_sub(group.half[i], minimum), scale), 0.0f, 15.0f);
      vf_to_i8(first + 16 * i, code);
      const VF left = vf_sub(group.half[i], vf_fma(vf_from_i32(code), scale, minimum));
      vf_to_i8(second + 16 * i, to_codes(vf_div(left, vf_mul(scale, vf_set1(0.0625f))), -8.0f, 7.0f));
    }
  }
  pack_group(first, 0, count, codes);
  if (finer != nullptr) pack_group(second, 8, count, finer);
}

template <KvCoding Coding>
inline void append_coded(const AttentionPass& pass, uint8_t* plane, int64_t at, const float* x) {
  const CodedPlane in(pass, plane, Coding);
  uint8_t* codes = plane + at * in.code_bytes;
  uint8_t* finer = Coding == kCodedNibbles ? nullptr : codes + (in.finer - in.codes);
  uint8_t* extras = plane + (in.extras - in.codes) + at * in.extra_bytes;
  for (int g = 0, left = pass.head_dim; left > 0; ++g, left -= kKvGroup) {
    append_group(x + g * kKvGroup, left < kKvGroup ? left : kKvGroup, codes + g * 16,
                 finer == nullptr ? nullptr : finer + g * 16, extras + g * 4);
  }
}

// A group's scales and minimums of a tile, as they apply to codes of 4 bits, or 8.
EDGE_RT_INLINE void store_levels(VI words, int groups, int g, bool is_finer, float* out) {
  VF scale, minimum;
  vf_from_half_pairs(words, &scale, &minimum);
  if (is_finer) {
    minimum = vf_fnma(scale, vf_set1(0.5f), minimum);
    scale = vf_mul(scale, vf_set1(0.0625f));
  }
  vf_store(out + g * kKvTile, scale);
  vf_store(out + (groups + g) * kKvTile, minimum);
}

// Scales of a tile, then its minimums, both [groups][kKvTile].
inline void read_levels(const CodedPlane& in, const int32_t* rows, int groups, bool is_finer, float* out) {
  if (groups == 2) {
    uint8_t copy[8 * kKvTile];
    const uint8_t* from = collect_words<2>(in.extras, rows, are_adjacent(rows), copy);
    VI first, second;
    vi_load_split(from, &first, &second);
    store_levels(first, 2, 0, is_finer, out);
    store_levels(second, 2, 1, is_finer, out);
    return;
  }
  int32_t words[kKvTile * kv_groups(kMaxHeadDim)];
  for (int j = 0; j < kKvTile; ++j) {
    const uint8_t* from = in.extras + rows[j] * in.extra_bytes;
    for (int g = 0; g < groups; ++g) std::memcpy(words + g * kKvTile + j, from + 4 * g, 4);
  }
  for (int g = 0; g < groups; ++g) store_levels(vi_load(words + g * kKvTile), groups, g, is_finer, out);
}

// The 32 values of a group.
template <KvCoding Coding>
EDGE_RT_INLINE void load_group(const uint8_t* codes, const uint8_t* finer, float scale, float minimum, VF* lower,
                               VF* upper) {
  if constexpr (Coding == kCodedPairs) {
    vf_from_nibble_pairs(codes, finer, scale, minimum, lower, upper);
  } else {
    vf_from_nibbles(codes, scale, minimum, lower, upper);
  }
}

template <KvCoding Coding>
inline void read_coded(const AttentionPass& pass, const uint8_t* plane, const int32_t* rows, const AttentionWork& work,
                       const float** out) {
  const CodedPlane in(pass, plane, Coding);
  const int groups = pass.groups(), padded_dim = pass.padded_dim;
  read_levels(in, rows, groups, Coding == kCodedPairs, work.scales);
  const float *scales = work.scales, *minimums = scales + groups * kKvTile;
  for (int j = 0; j < kKvTile; ++j) {
    const uint8_t* codes = in.codes + rows[j] * in.code_bytes;
    const uint8_t* finer = in.finer + rows[j] * in.code_bytes;
    float* to = work.rows + j * padded_dim;
    out[j] = to;
    for (int g = 0; g < groups; ++g) {
      VF lower, upper;
      load_group<Coding>(codes + 16 * g, finer + 16 * g, scales[g * kKvTile + j], minimums[g * kKvTile + j], &lower,
                         &upper);
      vf_store(to + g * kKvGroup, lower);
      if (padded_dim - g * kKvGroup > 16) vf_store(to + g * kKvGroup + 16, upper);
    }
  }
}

// output += weight * value over keys [begin, end) of a tile, for so few queries that values are best used as they are
// unpacked. The same sums as those of weigh_values over what read_coded gives.
template <KvCoding Coding, int Queries>
inline void weigh_coded(const AttentionPass& pass, const CodedPlane& in, const int32_t* rows, int begin, int end,
                        const float* levels, const float* weights, float* output, Ahead* ahead) {
  const int groups = pass.groups(), padded_dim = pass.padded_dim;
  for (int g = 0; g < groups; ++g) {
    const bool is_whole = padded_dim - g * kKvGroup > 16;
    float* to = output + g * kKvGroup;
    VF lower_sums[Queries], upper_sums[Queries];
    for (int i = 0; i < Queries; ++i) {
      lower_sums[i] = vf_load(to + i * padded_dim);
      upper_sums[i] = is_whole ? vf_load(to + i * padded_dim + 16) : vf_zero();
    }
    const float *scales = levels + g * kKvTile, *minimums = scales + groups * kKvTile;
    for (int j = begin; j < end; ++j) {
      if (g == 0) ahead->fetch(1);
      const int64_t at = rows[j] * in.code_bytes + 16 * g;
      VF lower, upper;
      load_group<Coding>(in.codes + at, in.finer + at, scales[j], minimums[j], &lower, &upper);
      for (int i = 0; i < Queries; ++i) {
        const VF weight = vf_set1(weights[i * kKvChunk + j]);
        lower_sums[i] = vf_fma(weight, lower, lower_sums[i]);
        upper_sums[i] = vf_fma(weight, upper, upper_sums[i]);
      }
    }
    for (int i = 0; i < Queries; ++i) {
      vf_store(to + i * padded_dim, lower_sums[i]);
      if (is_whole) vf_store(to + i * padded_dim + 16, upper_sums[i]);
    }
  }
}

constexpr int64_t kMostCodedQueries = 4;

// For at most kMostCodedQueries queries.
template <KvCoding Coding>
inline void weigh_few(const AttentionPass& pass, const uint8_t* plane, const int32_t* rows, int begin, int end,
                      const AttentionWork& work, const float* weights, float* output, int64_t count, Ahead* ahead) {
  const CodedPlane in(pass, plane, Coding);
  read_levels(in, rows, pass.groups(), Coding == kCodedPairs, work.scales);
  const float* levels = work.scales;
  switch (count) {
    case 1: weigh_coded<Coding, 1>(pass, in, rows, begin, end, levels, weights, output, ahead); break;
    case 2: weigh_coded<Coding, 2>(pass, in, rows, begin, end, levels, weights, output, ahead); break;
    case 3: weigh_coded<Coding, 3>(pass, in, rows, begin, end, levels, weights, output, ahead); break;
    default: weigh_coded<Coding, 4>(pass, in, rows, begin, end, levels, weights, output, ahead); break;
  }
}

struct KvKernels {
  void (*append)(const AttentionPass& pass, uint8_t* plane, int64_t at, const float* x);
  void (*read)(const AttentionPass& pass, const uint8_t* plane, const int32_t* rows, const AttentionWork& work,
               const float** out);
  // Values for few queries, or nullptr: as read.
  void (*weigh)(const AttentionPass& pass, const uint8_t* plane, const int32_t* rows, int begin, int end,
                const AttentionWork& work, const float* weights, float* output, int64_t count, Ahead* ahead);
};
constexpr KvKernels kKvKernels[kKvCodingCount] = {
    {append_f32, read_f32, nullptr},
    {append_f16, read_f16, nullptr},
    {append_int8, read_int8, nullptr},
    {append_coded<kCodedNibbles>, read_coded<kCodedNibbles>, weigh_few<kCodedNibbles>},
    {append_coded<kCodedPairs>, read_coded<kCodedPairs>, weigh_few<kCodedPairs>},
    {append_coded<kCodedUpper>, read_coded<kCodedUpper>, weigh_few<kCodedUpper>}};
