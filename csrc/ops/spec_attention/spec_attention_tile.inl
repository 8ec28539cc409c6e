// Scores of 16 keys, and the sum of 16 weighted values. Two ways to a score of float keys give the same bits: key by
// key (16 registers of lanes, then the tree by vf_sum16), or, for many queries, over transposed keys (a lane per key).

// Queries, tiles and vectors that fit the registers together.
#if defined(EDGE_RT_SIMD_AVX512)
constexpr int kScoreQueries = 4, kScoreTiles = 2, kValueQueries = 4, kValueVectors = 4;
#elif defined(EDGE_RT_SIMD_AVX2)
constexpr int kScoreQueries = 1, kScoreTiles = 1, kValueQueries = 2, kValueVectors = 2;
#else
constexpr int kScoreQueries = 2, kScoreTiles = 1, kValueQueries = 2, kValueVectors = 2;
#endif
// From this number of queries on, transposing a tile of keys is worth it.
constexpr int kAcrossQueries = 8;

// Rows of the cache that will be needed soon, fetched a few at a time between other work: a tile is about a page, which
// is where hardware stops guessing, and all its lines at once would fill the buffers that loads wait for.
struct Ahead {
  const uint8_t* plane;
  const int32_t* rows;
  int64_t row_bytes;
  int count;       // rows to go
  int step;        // rows that are taken for one: mostly they share a line
  int64_t bytes;   // of those
  int64_t second;  // distance to the other half of what is read of a row; 0: it has none

  Ahead(const uint8_t* base, const int32_t* first, int64_t bytes_of_row, int rows_to_go, int64_t other)
      : plane(base), rows(first), row_bytes(bytes_of_row), count(rows_to_go), step(rows_of_a_line(bytes_of_row)),
        bytes(bytes_of_row * step), second(other) {}

  static constexpr int rows_of_a_line(int64_t row) {
    if (row > 32) return 1;
    return row > 16 ? 2 : 4;
  }

  // To the second level: the first has no room for lines to wait, and loads would wait behind them.
  static EDGE_RT_INLINE void fetch_line(const uint8_t* p) { __builtin_prefetch(p, 0, 2); }
  EDGE_RT_INLINE void fetch(int wanted) {
    for (; wanted > 0 && count > 0; wanted -= step, count -= step) {
      const uint8_t* row = plane + *rows * row_bytes;
      rows += step;
      for (int64_t at = 0; at < bytes; at += 64) fetch_line(row + at);
      if (second == 0) continue;
      for (int64_t at = 0; at < bytes; at += 64) fetch_line(row + second + at);
    }
  }
  // Rows to fetch in each of some steps.
  EDGE_RT_INLINE int share(int64_t steps) const { return static_cast<int>((count + steps - 1) / steps); }
};

// Vectors is padded_dim / 16, or 0 where it is only known at run time.
template <int Vectors>
inline void score_rows(const float* const* keys, int vectors, const float* query, float* scores) {
  if (Vectors > 0) vectors = Vectors;
  VF sums[kKvTile];
  for (int j = 0; j < kKvTile; ++j) {
    sums[j] = vf_mul(vf_load(query), vf_load(keys[j]));
    for (int c = 1; c < vectors; ++c) sums[j] = vf_fma(vf_load(query + 16 * c), vf_load(keys[j] + 16 * c), sums[j]);
  }
  vf_store(scores, vf_sum16(sums));
}

// The same over keys whose last vector has `tail` floats.
inline void score_rows_with_tail(const float* const* keys, int vectors, int tail, const float* query, float* scores) {
  const int last = 16 * (vectors - 1);
  VF sums[kKvTile];
  for (int j = 0; j < kKvTile; ++j) {
    const VF end = vf_load_n(keys[j] + last, tail);
    if (last == 0) {
      sums[j] = vf_mul(vf_load(query), end);
      continue;
    }
    sums[j] = vf_mul(vf_load(query), vf_load(keys[j]));
    for (int d = 16; d < last; d += 16) sums[j] = vf_fma(vf_load(query + d), vf_load(keys[j] + d), sums[j]);
    sums[j] = vf_fma(vf_load(query + last), end, sums[j]);
  }
  vf_store(scores, vf_sum16(sums));
}

// Tiles of float keys that lie across: 16 keys' words to each of padded_dim dimensions.
template <int Tiles>
struct AcrossTiles {
  const float* tiles[Tiles];
};

// The tree of vf_sum over lanes lane, lane + Step, lane + 2 Step ... of several queries and tiles, queries of the first
// tile first. What is loaded of a query serves all tiles.
template <int Queries, int Tiles, int Vectors, int Step>
EDGE_RT_INLINE void sum_across(const AcrossTiles<Tiles>& across, int vectors, const float* queries, int lane, VF* out) {
  VF other[Tiles * Queries];
  if constexpr (Step == 8) {
    const int stride = 16 * vectors;
    int c = 0;
    do {
      for (int half = 0; half < 2; ++half) {
        VF* const to = half == 0 ? out : other;
        const int d = 16 * c + lane + 8 * half;
        VF keys[Tiles];
        for (int t = 0; t < Tiles; ++t) keys[t] = vf_load(across.tiles[t] + 16 * d);
        for (int i = 0; i < Queries; ++i) {
          const VF query = vf_set1(queries[i * stride + d]);
          for (int t = 0; t < Tiles; ++t) {
            VF& sum = to[t * Queries + i];
            sum = c == 0 ? vf_mul(query, keys[t]) : vf_fma(query, keys[t], sum);
          }
        }
      }
    } while (++c < vectors);
  } else {
    sum_across<Queries, Tiles, Vectors, 2 * Step>(across, vectors, queries, lane, out);
    sum_across<Queries, Tiles, Vectors, 2 * Step>(across, vectors, queries, lane + Step, other);
  }
  for (int i = 0; i < Tiles * Queries; ++i) out[i] = vf_add(out[i], other[i]);
}

template <int Queries, int Tiles, int Vectors>
inline void score_across(const AcrossTiles<Tiles>& across, int vectors, const float* queries, float* scores) {
  if (Vectors > 0) vectors = Vectors;
  VF sums[Tiles * Queries];
  sum_across<Queries, Tiles, Vectors, 1>(across, vectors, queries, 0, sums);
  for (int t = 0; t < Tiles; ++t) {
    for (int i = 0; i < Queries; ++i) vf_store(scores + i * kKvChunk + t * kKvTile, sums[t * Queries + i]);
  }
}

template <int Tiles, int Vectors>
inline void score_tiles_across(const AcrossTiles<Tiles>& across, int vectors, const float* queries, int64_t count,
                               float* scores, Ahead* ahead) {
  const int stride = 16 * vectors, rows = ahead->share((count + kScoreQueries - 1) / kScoreQueries);
  int64_t i = 0;
  for (; i + kScoreQueries <= count; i += kScoreQueries) {
    ahead->fetch(rows);
    score_across<kScoreQueries, Tiles, Vectors>(across, vectors, queries + i * stride, scores + i * kKvChunk);
  }
  for (; i < count; ++i) {
    score_across<1, Tiles, Vectors>(across, vectors, queries + i * stride, scores + i * kKvChunk);
  }
}

template <int Vectors>
inline void score_float(const float* const* keys, const float* across, int vectors, int tail, const float* queries,
                        int64_t count, float* scores, Ahead* ahead) {
  if (across != nullptr) {
    score_tiles_across<1, Vectors>(AcrossTiles<1>{{across}}, vectors, queries, count, scores, ahead);
    return;
  }
  const int stride = 16 * vectors, rows = ahead->share(count);
  for (int64_t i = 0; i < count; ++i) {
    ahead->fetch(rows);
    if (Vectors == 0 && tail > 0) {
      score_rows_with_tail(keys, vectors, tail, queries + i * stride, scores + i * kKvChunk);
    } else {
      score_rows<Vectors>(keys, vectors, queries + i * stride, scores + i * kKvChunk);
    }
  }
}

// Where sums of values go: added to what `output` holds, or as a chunk of their own, which is stored, or joined to what
// comes before it where factors of each query are given.
struct ValueSums {
  float* output;
  bool is_chunk;
  const float *before, *chunk;  // factors or nullptr

  ValueSums from(int64_t query, int padded_dim) const {
    if (before == nullptr) return {output + query * padded_dim, is_chunk, nullptr, nullptr};
    return {output + query * padded_dim, is_chunk, before + query, chunk + query};
  }
};

// Adds weight * value over keys [begin, end) of some tiles, for `Queries` queries and 16 * Vectors dimensions. Every
// `every` keys a row is fetched, with 0 none. Without Vectors the values' last vector, of `tail` floats.
template <int Queries, int Vectors>
inline void add_values(const float* const* values, int begin, int end, const float* weights, const ValueSums& to,
                       int padded_dim, int d, int every, Ahead* ahead, int tail = 0) {
  constexpr bool kIsTail = Vectors == 0;
  constexpr int kVectors = kIsTail ? 1 : Vectors;
  float* output = to.output + d;
  VF sums[Queries][kVectors];
  for (int i = 0; i < Queries; ++i) {
    for (int v = 0; v < kVectors; ++v) sums[i][v] = to.is_chunk ? vf_zero() : vf_load(output + i * padded_dim + 16 * v);
  }
  for (int j = begin; j < end;) {
    int stop = end;
    if (every > 0) {
      ahead->fetch(1);
      if (end - j > every) stop = j + every;
    }
    for (; j < stop; ++j) {
      VF value[kVectors];
      for (int v = 0; v < kVectors; ++v) {
        value[v] = kIsTail ? vf_load_n(values[j] + d, tail) : vf_load(values[j] + d + 16 * v);
      }
      for (int i = 0; i < Queries; ++i) {
        const VF weight = vf_set1(weights[i * kKvChunk + j]);
        for (int v = 0; v < kVectors; ++v) sums[i][v] = vf_fma(weight, value[v], sums[i][v]);
      }
    }
  }
  if (to.before != nullptr) {
    for (int i = 0; i < Queries; ++i) {
      const VF before = vf_set1(to.before[i]), chunk = vf_set1(to.chunk[i]);
      for (int v = 0; v < kVectors; ++v) {
        sums[i][v] = vf_fma(sums[i][v], chunk, vf_mul(vf_load(output + i * padded_dim + 16 * v), before));
      }
    }
  }
  for (int i = 0; i < Queries; ++i) {
    for (int v = 0; v < kVectors; ++v) vf_store(output + i * padded_dim + 16 * v, sums[i][v]);
  }
}

template <int Queries>
inline void add_all_values(const float* const* values, int begin, int end, const float* weights, const ValueSums& to,
                           int padded_dim, int tail, int every, Ahead* ahead) {
  const int whole = tail > 0 ? padded_dim - 16 : padded_dim;
  int d = 0;
  for (; d + 16 * kValueVectors <= whole; d += 16 * kValueVectors) {
    add_values<Queries, kValueVectors>(values, begin, end, weights, to, padded_dim, d, every, ahead);
  }
  for (; d < whole; d += 16) {
    add_values<Queries, 1>(values, begin, end, weights, to, padded_dim, d, every, ahead);
  }
  if (tail > 0) add_values<Queries, 0>(values, begin, end, weights, to, padded_dim, d, every, ahead, tail);
}

inline void weigh_values(const float* const* values, int begin, int end, const float* weights, const ValueSums& to,
                         int padded_dim, int tail, int64_t count, Ahead* ahead) {
  // Few queries, or many keys, leave room for fetching only between keys.
  const bool few = count < 2 * kValueQueries;
  const int every = few ? 1 : end - begin > kKvTile ? 4 : 0;
  const int rows_between = every > 0 ? 0 : ahead->share(count / kValueQueries);
  int64_t i = 0;
  for (; i + kValueQueries <= count; i += kValueQueries) {
    ahead->fetch(rows_between);
    add_all_values<kValueQueries>(values, begin, end, weights + i * kKvChunk, to.from(i, padded_dim), padded_dim, tail,
                                  every, ahead);
  }
  if (kValueQueries == 4 && i + 3 == count) {
    add_all_values<3>(values, begin, end, weights + i * kKvChunk, to.from(i, padded_dim), padded_dim, tail, every,
                      ahead);
    i += 3;
  }
  for (; i + 2 <= count; i += 2) {
    add_all_values<2>(values, begin, end, weights + i * kKvChunk, to.from(i, padded_dim), padded_dim, tail, every,
                      ahead);
  }
  for (; i < count; ++i) {
    add_all_values<1>(values, begin, end, weights + i * kKvChunk, to.from(i, padded_dim), padded_dim, tail, every,
                      ahead);
  }
}
