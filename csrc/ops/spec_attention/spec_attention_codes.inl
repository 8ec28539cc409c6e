// Scores of keys that are codes: integer sums over a tile whose codes lie across, four of each of the 16 keys side by
// side, then the next four.

// Codes as they are multiplied.
enum class CodeKind { kSigned, kNibbles, kBytes };

struct TileCodes {
  const int8_t* across;            // [groups][kKvGroup / 4][64]
  const float *scales, *minimums;  // [groups][kKvTile]
  int groups;
};

// Rounded queries that follow one another.
struct QueryCodes {
  const int8_t* codes;
  int stride;
  const float* scales;  // [groups] of every query
  const int32_t* sums;

  QueryCodes from(int64_t query, int groups) const {
    return {codes + query * stride, stride, scales + query * groups, sums + query * groups};
  }
};

constexpr int kGroupWords = kKvGroup / 4;

template <CodeKind Kind>
EDGE_RT_INLINE VI dot_codes(VI acc, VB keys, VB query) {
  return Kind == CodeKind::kNibbles ? vi_dot4_positive(acc, keys, query) : vi_dot4_ready(acc, keys, query);
}

// What the sum of products is to begin with, so that it ends as that of the codes themselves: bytes are multiplied as
// signed ones, less 128, and signed ones as vb_ready left them.
template <CodeKind Kind>
EDGE_RT_INLINE VI first_dot(int32_t sum) {
  constexpr int32_t kMissing = Kind == CodeKind::kNibbles ? 0 : (Kind == CodeKind::kBytes ? 128 : 0) - kReadyBias;
  return vi_set1(static_cast<int32_t>(static_cast<uint32_t>(sum) * static_cast<uint32_t>(kMissing)));
}

// Groups is their number, or 0 where it is only known at run time. What is loaded of a query serves all tiles.
template <int Queries, int Tiles, CodeKind Kind, int Groups>
inline void score_codes(const TileCodes* keys, const QueryCodes& queries, float* scores) {
  const int groups = Groups > 0 ? Groups : keys->groups;
  VF sums[Tiles][Queries];
  for (int t = 0; t < Tiles; ++t) {
    for (int i = 0; i < Queries; ++i) sums[t][i] = vf_zero();
  }
  for (int g = 0; g < groups; ++g) {
    VI dots[Tiles][Queries];
    for (int i = 0; i < Queries; ++i) {
      const VI first = first_dot<Kind>(queries.sums[i * groups + g]);
      for (int t = 0; t < Tiles; ++t) dots[t][i] = first;
    }
    for (int w = 0; w < kGroupWords; ++w) {
      VB codes[Tiles];
      for (int t = 0; t < Tiles; ++t) codes[t] = vb_load(keys[t].across + (g * kGroupWords + w) * 64);
      for (int i = 0; i < Queries; ++i) {
        const VB query = vb_set1_4(queries.codes + i * queries.stride + g * kKvGroup + 4 * w);
        for (int t = 0; t < Tiles; ++t) dots[t][i] = dot_codes<Kind>(dots[t][i], codes[t], query);
      }
    }
    for (int t = 0; t < Tiles; ++t) {
      const VF scale = vf_load(keys[t].scales + g * kKvTile);
      if constexpr (Kind == CodeKind::kSigned) {
        for (int i = 0; i < Queries; ++i) {
          const VF sum = vf_mul(vf_from_i32(dots[t][i]), scale);
          sums[t][i] = vf_fma(sum, vf_set1(queries.scales[i * groups + g]), sums[t][i]);
        }
      } else {
        const VF minimum = vf_load(keys[t].minimums + g * kKvTile);
        for (int i = 0; i < Queries; ++i) {
          const VF below = vf_mul(minimum, vf_from_i32(vi_set1(queries.sums[i * groups + g])));
          const VF sum = vf_fma(scale, vf_from_i32(dots[t][i]), below);
          sums[t][i] = vf_fma(vf_set1(queries.scales[i * groups + g]), sum, sums[t][i]);
        }
      }
    }
  }
  for (int i = 0; i < Queries; ++i) {
    for (int t = 0; t < Tiles; ++t) vf_store(scores + i * kKvChunk + t * kKvTile, sums[t][i]);
  }
}

template <int Tiles, CodeKind Kind, int Groups>
inline void score_some_codes(const TileCodes* keys, const QueryCodes& queries, int64_t count, float* scores,
                             Ahead* ahead) {
  const int rows = ahead->share((count + 3) / 4);
  for (int64_t i = 0; i < count; i += 4) {
    ahead->fetch(rows);
    const QueryCodes some = queries.from(i, keys->groups);
    float* to = scores + i * kKvChunk;
    switch (count - i) {
      case 1: score_codes<1, Tiles, Kind, Groups>(keys, some, to); break;
      case 2: score_codes<2, Tiles, Kind, Groups>(keys, some, to); break;
      case 3: score_codes<3, Tiles, Kind, Groups>(keys, some, to); break;
      default: score_codes<4, Tiles, Kind, Groups>(keys, some, to); break;
    }
  }
}

template <CodeKind Kind, int Tiles = 1>
inline void score_all_codes(const TileCodes* keys, const QueryCodes& queries, int64_t count, float* scores,
                            Ahead* ahead) {
  if (keys->groups == 2) {
    score_some_codes<Tiles, Kind, 2>(keys, queries, count, scores, ahead);
  } else {
    score_some_codes<Tiles, Kind, 0>(keys, queries, count, scores, ahead);
  }
}

// Lays 16 codes of each key of a tile across.
template <class At>
EDGE_RT_INLINE void spread_half(const At& at, int64_t offset, int8_t* across) {
  VB words[4];
  load_across(at, offset, words);
  for (int w = 0; w < 4; ++w) vb_store(across + w * 64, vb_ready(words[w]));
}
template <class At>
EDGE_RT_INLINE void spread_int8(const At& at, int halves, int8_t* across) {
  for (int i = 0; i < halves; ++i) spread_half(at, i * 16, across + i * 256);
}

// The two halves of a word's bytes are the group's elements from 4 w on, and those from 16 + 4 w on.
template <KvCoding Coding, class At>
EDGE_RT_INLINE void spread_coded(const At& codes, const At& finer_codes, int groups, int8_t* across) {
  for (int g = 0; g < groups; ++g, across += kGroupWords * 64) {
    VB words[4];
    load_across(codes, g * 16, words);
    if constexpr (Coding == kCodedPairs) {
      VB finer[4];
      load_across(finer_codes, g * 16, finer);
      for (int w = 0; w < 4; ++w) {
        const VB low = vb_join(vb_lower(words[w]), vb_lower(finer[w]));
        const VB high = vb_join(vb_upper(words[w]), vb_upper(finer[w]));
        vb_store(across + w * 64, vb_ready(vb_flip(low)));
        vb_store(across + (4 + w) * 64, vb_ready(vb_flip(high)));
      }
    } else {
      for (int w = 0; w < 4; ++w) {
        vb_store(across + w * 64, vb_lower(words[w]));
        vb_store(across + (4 + w) * 64, vb_upper(words[w]));
      }
    }
  }
}

// Rows of a tile that lie one after the other, and others. Stride is 0 where it is only known at run time.
template <int64_t Stride>
struct AdjacentRows {
  const uint8_t* first;
  EDGE_RT_INLINE const uint8_t* operator()(int j) const { return first + j * Stride; }
};
template <int64_t Stride>
struct MappedRows {
  const uint8_t* base;
  int64_t stride;
  const int32_t* rows;
  EDGE_RT_INLINE const uint8_t* operator()(int j) const { return base + rows[j] * (Stride > 0 ? Stride : stride); }
};

// The last n < 16 codes of each key, filled up with zeros.
inline void spread_rest(const MappedRows<0>& at, int64_t offset, int n, int8_t* across) {
  uint64_t copies[kKvTile][2] = {};
  for (int j = 0; j < kKvTile; ++j) {
    if (n == 8) {
      std::memcpy(copies[j], at(j) + offset, 8);
    } else if (n > 0) {
      std::memcpy(copies[j], at(j) + offset, static_cast<size_t>(n));
    }
  }
  spread_half([&](int j) { return reinterpret_cast<const uint8_t*>(copies[j]); }, 0, across);
}

inline void gather_int8(const AttentionPass& pass, const uint8_t* plane, const int32_t* rows, int8_t* across,
                        float* scales) {
  const int dim = pass.head_dim, groups = pass.groups();
  if (dim == 64) {
    if (are_adjacent(rows)) {
      spread_int8(AdjacentRows<64>{plane + int64_t{rows[0]} * 64}, 4, across);
    } else {
      spread_int8(MappedRows<64>{plane, 64, rows}, 4, across);
    }
  } else {
    const MappedRows<0> at{plane, dim, rows};
    spread_int8(at, dim / 16, across);
    // The last group is filled up with zeros.
    for (int d = dim / 16 * 16; d < groups * kKvGroup; d += 16)
      spread_rest(at, d, dim > d ? dim - d : 0, across + d * 16);
  }
  read_scales(pass, plane, rows, scales);
}

template <KvCoding Coding>
inline void gather_coded(const AttentionPass& pass, const uint8_t* plane, const int32_t* rows,
                         const AttentionWork& work) {
  const CodedPlane in(pass, plane, Coding);
  const int groups = pass.groups();
  int8_t* across = reinterpret_cast<int8_t*>(work.across);
  if (groups == 2) {
    if (are_adjacent(rows)) {
      const int64_t at = int64_t{rows[0]} * 32;
      spread_coded<Coding>(AdjacentRows<32>{in.codes + at}, AdjacentRows<32>{in.finer + at}, 2, across);
    } else {
      spread_coded<Coding>(MappedRows<32>{in.codes, 32, rows}, MappedRows<32>{in.finer, 32, rows}, 2, across);
    }
  } else {
    const int64_t stride = in.code_bytes;
    spread_coded<Coding>(MappedRows<0>{in.codes, stride, rows}, MappedRows<0>{in.finer, stride, rows}, groups, across);
  }
  read_levels(in, rows, groups, Coding == kCodedPairs, work.scales);
}

// Scores of a tile for `count` queries from number `query` in scratch memory on.
inline void score_coded(const AttentionPass& pass, const uint8_t* plane, const int32_t* physical, int64_t query,
                        int64_t count, const AttentionWork& work, float* scores, Ahead* ahead) {
  const int groups = pass.groups(), width = padded_codes(pass.head_dim);
  const TileCodes keys{reinterpret_cast<const int8_t*>(work.across), work.scales, work.scales + groups * kKvTile,
                       groups};
  const QueryCodes all{pass.query_codes, width, pass.query_scales, pass.query_sums};
  const QueryCodes queries = all.from(query, groups);
  switch (pass.form().key) {
    case kCodedInt8:
      gather_int8(pass, plane, physical, reinterpret_cast<int8_t*>(work.across), work.scales);
      score_all_codes<CodeKind::kSigned>(&keys, queries, count, scores, ahead);
      break;
    case kCodedPairs:
      gather_coded<kCodedPairs>(pass, plane, physical, work);
      score_all_codes<CodeKind::kBytes>(&keys, queries, count, scores, ahead);
      break;
    case kCodedUpper:
      gather_coded<kCodedUpper>(pass, plane, physical, work);
      score_all_codes<CodeKind::kNibbles>(&keys, queries, count, scores, ahead);
      break;
    default:
      gather_coded<kCodedNibbles>(pass, plane, physical, work);
      score_all_codes<CodeKind::kNibbles>(&keys, queries, count, scores, ahead);
      break;
  }
}

// Scores of kScoreTiles tiles whose keys are bytes: of these as many lie across where one of floats does, and those of
// the second have their scales where minimums would be.
inline void score_int8_tiles(const AttentionPass& pass, const uint8_t* plane, const int32_t* physical, int64_t query,
                             int64_t count, const AttentionWork& work, float* scores, Ahead* ahead) {
  static_assert(kScoreTiles <= 2, "more find no room for their scales");
  const int groups = pass.groups();
  TileCodes keys[kScoreTiles];
  for (int t = 0; t < kScoreTiles; ++t) {
    int8_t* across = reinterpret_cast<int8_t*>(work.across) + t * groups * kGroupWords * 64;
    float* scales = work.scales + t * groups * kKvTile;
    gather_int8(pass, plane, physical + t * kKvTile, across, scales);
    keys[t] = {across, scales, nullptr, groups};
  }
  const QueryCodes all{pass.query_codes, padded_codes(pass.head_dim), pass.query_scales, pass.query_sums};
  score_all_codes<CodeKind::kSigned, kScoreTiles>(keys, all.from(query, groups), count, scores, ahead);
}
