// Weighted values: a lane has two dimensions of a slice of 64, and adds up positions in ascending order.

constexpr int kSlice = 64;
// A slice's values of a row, of one format: `load` gives the lane's two of them.
template <KvCoding Coding>
struct Values;

// Lanes whose dimensions do not exist read those of lane 0 of the slice, and keep the sums to themselves.
template <>
struct Values<kCodedF32> {
  const float* rows;
  int dim, first;

  EDGE_RT_DEVICE Values(const AttentionPass& pass, int kv, int slice)
      : rows(reinterpret_cast<const float*>(pass.plane(1, kv))), dim(pass.head_dim),
        first(slice + 2 * lane() < dim ? slice + 2 * lane() : slice) {}
  EDGE_RT_DEVICE static int place(int k) { return 2 * lane() + k; }
  EDGE_RT_DEVICE void load(int row, float (&out)[2]) const {
    const float* from = rows + static_cast<int64_t>(row) * dim + first;
    out[0] = from[0];
    out[1] = from[1];
  }
};

template <>
struct Values<kCodedF16> {
  const uint8_t* rows;
  int dim, first;

  EDGE_RT_DEVICE Values(const AttentionPass& pass, int kv, int slice)
      : rows(pass.plane(1, kv)), dim(pass.head_dim), first(slice + 2 * lane() < dim ? slice + 2 * lane() : slice) {}
  EDGE_RT_DEVICE static int place(int k) { return 2 * lane() + k; }
  EDGE_RT_DEVICE void load(int row, float (&out)[2]) const {
    // Heads are of an even number of dimensions, so that pairs lie on a boundary of 4.
    const uint32_t pair = *reinterpret_cast<const uint32_t*>(rows + 2 * (static_cast<int64_t>(row) * dim + first));
    out[0] = float_of_half(static_cast<uint16_t>(pair));
    out[1] = float_of_half(static_cast<uint16_t>(pair >> 16));
  }
};

template <>
struct Values<kCodedInt8> {
  PlaneParts<kCodedInt8> in;
  int first;

  EDGE_RT_DEVICE Values(const AttentionPass& pass, int kv, int slice)
      : in(pass, 1, kv), first(slice + 2 * lane() < pass.head_dim ? slice + 2 * lane() : slice) {}
  EDGE_RT_DEVICE static int place(int k) { return 2 * lane() + k; }
  EDGE_RT_DEVICE void load(int row, float (&out)[2]) const {
    const uint16_t pair =
        *reinterpret_cast<const uint16_t*>(in.codes + static_cast<int64_t>(row) * in.code_bytes + first);
    const uint16_t* scales = reinterpret_cast<const uint16_t*>(in.extras + static_cast<int64_t>(row) * in.extra_bytes);
    const float scale = float_of_half(scales[first / kKvGroup]);
    out[0] = mul(from_int(static_cast<int8_t>(pair)), scale);
    out[1] = mul(from_int(static_cast<int8_t>(pair >> 8)), scale);
  }
};

// A lane has a byte of a group: elements `vector_lane()` and `vector_lane()` + 16.
template <KvCoding Coding>
struct CodedValues {
  PlaneParts<Coding> in;
  int group;

  EDGE_RT_DEVICE CodedValues(const AttentionPass& pass, int kv, int slice)
      : in(pass, 1, kv), group(slice / kKvGroup + (slice / kKvGroup + lane() / 16 < pass.groups() ? lane() / 16 : 0)) {}
  EDGE_RT_DEVICE static int place(int k) { return lane() / 16 * kKvGroup + vector_lane() + 16 * k; }
  EDGE_RT_DEVICE void load(int row, float (&out)[2]) const {
    const int64_t at = static_cast<int64_t>(row) * in.code_bytes + 16 * group + vector_lane();
    const uint16_t* levels =
        reinterpret_cast<const uint16_t*>(in.extras + static_cast<int64_t>(row) * in.extra_bytes) + 2 * group;
    float scale = float_of_half(levels[0]), minimum = float_of_half(levels[1]);
    int codes[2] = {in.codes[at] & 15, in.codes[at] >> 4};
    if constexpr (Coding == kCodedPairs) {
      codes[0] = 16 * codes[0] + (in.finer[at] & 15);
      codes[1] = 16 * codes[1] + (in.finer[at] >> 4);
      minimum = fma(-scale, 0.5f, minimum);
      scale = mul(scale, 0.0625f);
    }
    for (int k = 0; k < 2; ++k) out[k] = fma(from_int(codes[k]), scale, minimum);
  }
};
template <>
struct Values<kCodedNibbles> : CodedValues<kCodedNibbles> {
  using CodedValues::CodedValues;
};
template <>
struct Values<kCodedPairs> : CodedValues<kCodedPairs> {
  using CodedValues::CodedValues;
};
template <>
struct Values<kCodedUpper> : CodedValues<kCodedUpper> {
  using CodedValues::CodedValues;
};

// Positions of a chunk, relative to it, that a row at `position` sees.
struct Seen {
  int first, last;

  EDGE_RT_DEVICE Seen(const AttentionPass& pass, int position, int start)
      : first(0), last(clamp(position + 1 - start)) {
    if (pass.window > 0) first = clamp(position + 1 - static_cast<int>(pass.window) - start);
    if (first >= last) first = last = 0;
  }
  EDGE_RT_DEVICE bool has(int at) const { return at >= first && at < last; }
  EDGE_RT_DEVICE static int clamp(int at) { return at < 0 ? 0 : at > kKvChunk ? kKvChunk : at; }
};

// Adds the values of a chunk at `start` for queries [0, Queries) of `weights` [kKvChunk] and `positions`; keys in
// [all.first, all.last) count for some of them, those in [whole.first, whole.last) for all.
template <KvCoding Coding, int Queries>
EDGE_RT_DEVICE void weigh(const AttentionPass& pass, const Values<Coding>& values, const int* physical, int start,
                          const int* positions, Seen all, Seen whole, const float (*weights)[kKvChunk],
                          float (*outputs)[kSlice]) {
  // Values under way at once; with more registers are spilled.
  constexpr bool kHasNibbles = Coding != kCodedF32 && Coding != kCodedF16 && Coding != kCodedInt8;
  constexpr int kStep = kHasNibbles ? 4 : 8;
  float sums[Queries][2] = {};
  EDGE_RT_UNROLL(1)
  for (int j = all.first / kStep * kStep; j < all.last; j += kStep) {
    float value[kStep][2];
    EDGE_RT_UNROLL(8)
    for (int k = 0; k < kStep; ++k) values.load(physical[j + k], value[k]);
    const bool is_whole = j >= whole.first && j + kStep <= whole.last;
    EDGE_RT_UNROLL(8)
    for (int i = 0; i < Queries; ++i) {
      const Seen seen = is_whole ? whole : Seen(pass, positions[i], start);
      EDGE_RT_UNROLL(4)
      for (int quad = 0; quad < kStep; quad += 4) {
        const FloatQuad weight = load_floats(weights[i] + j + quad);
        EDGE_RT_UNROLL(4)
        for (int k = 0; k < 4; ++k) {
          if (!is_whole && !seen.has(j + quad + k)) continue;
          for (int n = 0; n < 2; ++n) sums[i][n] = fma(weight.v[k], value[quad + k][n], sums[i][n]);
        }
      }
    }
  }
  EDGE_RT_UNROLL(8)
  for (int i = 0; i < Queries; ++i) {
    for (int n = 0; n < 2; ++n) outputs[i][values.place(n)] = sums[i][n];
  }
}
