// SpecAttention on the CPU; spec_attention.h says what is computed.
#include "ops/spec_attention/spec_attention_hadamard.inl"
#include "ops/spec_attention/spec_attention_cache.inl"
#include "ops/spec_attention/spec_attention_softmax.inl"
#include "ops/spec_attention/spec_attention_tile.inl"
#include "ops/spec_attention/spec_attention_nibbles.inl"
#include "ops/spec_attention/spec_attention_feedback.inl"
#include "ops/spec_attention/spec_attention_prepare.inl"
#include "ops/spec_attention/spec_attention_transpose.inl"
#include "ops/spec_attention/spec_attention_codes.inl"

// A chunk as the rows of a block see it: keys [first[r], last[r]) count for row r, positions relative to the chunk.
struct ChunkView {
  const AttentionPass& pass;
  int64_t begin, start;  // first row of the block; first position of the chunk
  int rows;
  int first[kMaxBlockRows], last[kMaxBlockRows];

  bool touches(int r, int tile) const { return first[r] < (tile + 1) * kKvTile && last[r] > tile * kKvTile; }
  bool fills(int r, int tile) const { return first[r] <= tile * kKvTile && last[r] >= (tile + 1) * kKvTile; }
};

inline int clamp_to_chunk(int64_t position) {
  return static_cast<int>(position < 0 ? 0 : position > kKvChunk ? kKvChunk : position);
}

inline void see_chunk(int64_t end, ChunkView* view) {
  const AttentionPass& pass = view->pass;
  view->rows = static_cast<int>(end - view->begin);
  for (int r = 0; r < view->rows; ++r) {
    const int64_t position = pass.past + pass.depths[view->begin + r];
    view->last[r] = clamp_to_chunk(position + 1 - view->start);
    view->first[r] = pass.window > 0 ? clamp_to_chunk(position + 1 - pass.window - view->start) : 0;
    if (view->first[r] >= view->last[r]) view->first[r] = view->last[r] = 0;
  }
}

// Physical rows of a tile's positions that some row of the pass sees; the others repeat a row that may be read. What
// lies before the window may have been given to another position, which is being written.
inline void map_rows(const AttentionPass& pass, int64_t position, int64_t limit, int32_t* out) {
  const int64_t seen = pass.first_seen(pass.past);
  for (int j = 0; j < kKvTile; ++j) {
    const int64_t at = position + j < limit ? position + j : limit - 1;
    out[j] = pass.row_map[at > seen ? at : seen];
  }
}

// The same for one row of a tree, whose positions behind the committed ones are its ancestors. Nodes count from the
// tree's first one, which an earlier pass may have appended.
inline void map_ancestors(const AttentionPass& pass, int64_t position, int64_t row, int32_t* out) {
  const int64_t seen = pass.first_seen(pass.past);
  int64_t node = pass.done + row;
  for (int j = kKvTile - 1; j >= 0; --j) {
    const int64_t depth = position + j - pass.past;
    if (depth < 0) {
      out[j] = pass.row_map[position + j > seen ? position + j : seen];
      continue;
    }
    while (pass.depths[node - pass.done] > depth) node = pass.parents[node];
    out[j] = pass.row_map[pass.past + node];
  }
}

// Calls use(begin, end, physical rows) for every set of the block's rows that find the same keys in a tile.
template <class Use>
EDGE_RT_INLINE void visit_tile(const ChunkView& view, int tile, const Use& use) {
  const AttentionPass& pass = view.pass;
  const int64_t position = view.start + tile * kKvTile;
  int32_t physical[kKvTile];
  if (pass.chain || position + kKvTile <= pass.past) {
    int begin = 0, end = view.rows;
    while (begin < end && !view.touches(begin, tile)) ++begin;
    while (end > begin && !view.touches(end - 1, tile)) --end;
    if (begin == end) return;
    map_rows(pass, position, pass.chain ? pass.past + pass.done + pass.rows : pass.past, physical);
    use(begin, end, physical);
    return;
  }
  for (int r = 0; r < view.rows; ++r) {
    if (!view.touches(r, tile)) continue;
    map_ancestors(pass, position, view.begin + r, physical);
    use(r, r + 1, physical);
  }
}

// Keys or values of a tile, to be fetched while something else is computed; scales take a line or two, fetched at once.
inline Ahead look_ahead(const AttentionPass& pass, int which, int kv, int64_t position, int most = kKvTile) {
  const CodedPlane in(pass, pass.plane(which, kv), pass.form().coding(which));
  const int64_t left = pass.past + pass.done + pass.rows - position;
  const int count = left < 0 ? 0 : left > most ? most : static_cast<int>(left);
  const int32_t* rows = pass.row_map + position;
  if (in.extra_bytes > 0 && count > 0) {
    prefetch(in.extras + rows[0] * in.extra_bytes);
    prefetch(in.extras + rows[count - 1] * in.extra_bytes);
  }
  const int64_t second = pass.form().coding(which) == kCodedPairs ? in.finer - in.codes : 0;
  return {in.codes, rows, in.code_bytes, count, second};
}

inline void score_tile(const ChunkView& view, int kv, int tile, int begin, int end, const int32_t* physical,
                       const AttentionWork& work, Ahead* ahead) {
  const AttentionPass& pass = view.pass;
  const uint8_t* plane = pass.plane(0, kv);
  const int64_t query = pass.query_place(kv, view.begin + begin);
  const int64_t count = static_cast<int64_t>(end - begin) * pass.group;
  float* scores = work.scores + static_cast<int64_t>(begin) * pass.group * kKvChunk + tile * kKvTile;
  if (pass.has_query_codes()) {
    score_coded(pass, plane, physical, query, count, work, scores, ahead);
    return;
  }
  const float* keys[kKvTile];
  kKvKernels[pass.form().key].read(pass, plane, physical, work, keys);
  const float* across = nullptr;
  const int vectors = pass.padded_dim / 16, tail = tail_of(pass, pass.form().key);
  if (count >= kAcrossQueries) {
    const void* rows[kKvTile];
    for (int j = 0; j < kKvTile; ++j) rows[j] = keys[j];
    int d = 0;
    for (; d + (tail > 0 ? 16 : 0) < pass.padded_dim; d += 16) transpose16(rows, d, work.across + 16 * d);
    if (tail > 0) {
      float ends[kKvTile][16];
      for (int j = 0; j < kKvTile; ++j) {
        vf_store(ends[j], vf_load_n(keys[j] + d, tail));
        rows[j] = ends[j];
      }
      transpose16(rows, 0, work.across + 16 * d);
    }
    across = work.across;
  }
  const float* queries = pass.queries + query * pass.padded_dim;
  if (vectors == 4 && tail == 0) {
    score_float<4>(keys, across, vectors, 0, queries, count, scores, ahead);
  } else if (vectors == 8 && tail == 0) {
    score_float<8>(keys, across, vectors, 0, queries, count, scores, ahead);
  } else {
    score_float<0>(keys, across, vectors, tail, queries, count, scores, ahead);
  }
}

inline void weigh_tile(const ChunkView& view, int kv, int tile, int begin, int end, const int32_t* physical,
                       const AttentionWork& work, float* output, Ahead* ahead) {
  const AttentionPass& pass = view.pass;
  const KvKernels& format = kKvKernels[pass.form().value];
  const int tail = tail_of(pass, pass.form().value);
  const bool few = format.weigh != nullptr && (end - begin) * pass.group <= kMostCodedQueries;
  const float* values[kKvTile];
  if (!few) format.read(pass, pass.plane(1, kv), physical, work, values);
  for (int r = begin; r < end;) {
    int next = r + 1, low = 0, high = kKvTile;
    if (view.fills(r, tile)) {
      while (next < end && view.fills(next, tile)) ++next;
    } else {
      low = view.first[r] - tile * kKvTile;
      high = view.last[r] - tile * kKvTile;
      if (low < 0) low = 0;
      if (high > kKvTile) high = kKvTile;
    }
    const int64_t query = static_cast<int64_t>(r) * pass.group;
    if (few) {
      format.weigh(pass, pass.plane(1, kv), physical, low, high, work, work.scores + query * kKvChunk + tile * kKvTile,
                   output + query * pass.padded_dim, static_cast<int64_t>(next - r) * pass.group, ahead);
      r = next;
      continue;
    }
    weigh_values(values, low, high, work.scores + query * kKvChunk + tile * kKvTile,
                 {output + query * pass.padded_dim, false, nullptr, nullptr}, pass.padded_dim, tail,
                 static_cast<int64_t>(next - r) * pass.group, ahead);
    r = next;
  }
}

// Tiles at the chunk's begin that every row sees whole and finds at the same place.
inline int common_tiles(const ChunkView& view) {
  const AttentionPass& pass = view.pass;
  int first = 0, last = kKvChunk;
  for (int r = 0; r < view.rows; ++r) {
    first = view.first[r] > first ? view.first[r] : first;
    last = view.last[r] < last ? view.last[r] : last;
  }
  if (!pass.chain && pass.past - view.start < last) last = clamp_to_chunk(pass.past - view.start);
  return first > 0 ? 0 : last / kKvTile;
}

// Adds the values of the chunk's first tiles in one go, with the sums in registers.
inline void weigh_tiles(const ChunkView& view, int kv, int tiles, const AttentionWork& work, const ValueSums& to) {
  const AttentionPass& pass = view.pass;
  const float* values[kKvChunk];
  Ahead keys = look_ahead(pass, 0, kv, view.start + kKvChunk, tiles * kKvTile);
  for (int tile = 0; tile < tiles; ++tile) {
    AttentionWork place = work;
    place.rows += tile * kKvTile * pass.padded_dim;
    const int32_t* physical = pass.row_map + view.start + tile * kKvTile;
    kKvKernels[pass.form().value].read(pass, pass.plane(1, kv), physical, place, values + tile * kKvTile);
  }
  weigh_values(values, 0, tiles * kKvTile, work.scores, to, pass.padded_dim, tail_of(pass, pass.form().value),
               static_cast<int64_t>(view.rows) * pass.group, &keys);
}

// The chunk's state goes to `out`, and from there is joined to `before` unless that is nullptr.
inline void attend_chunk(const AttentionPass& pass, int kv, int64_t begin, int64_t end, int64_t chunk,
                         const AttentionWork& work, const AttentionState& out, const AttentionState* before) {
  ChunkView view{pass, begin, chunk * kKvChunk, 0, {}, {}};
  see_chunk(end, &view);
  for (int tile = 0; tile < kKvTiles; ++tile) {
    Ahead values = look_ahead(pass, 1, kv, view.start + tile * kKvTile);
    visit_tile(view, tile, [&](int from, int to, const int32_t* physical) {
      score_tile(view, kv, tile, from, to, physical, work, &values);
    });
  }
  const int64_t queries = static_cast<int64_t>(view.rows) * pass.group;
  const int common = common_tiles(view);
  const bool one_go = common >= 2 && (kKvKernels[pass.form().value].weigh == nullptr || queries > kMostCodedQueries);
  if (common == kKvTiles) {
    weigh_whole_chunk(pass, queries, work.scores, out);
    if (one_go) {
      if (before != nullptr) join_all_sums(queries, out, *before);
      weigh_tiles(view, kv, common, work,
                  before != nullptr ? ValueSums{before->output, true, out.peak, out.sum}
                                    : ValueSums{out.output, true, nullptr, nullptr});
      return;
    }
  } else {
    for (int64_t i = 0, r = 0; r < view.rows; ++r) {
      for (int g = 0; g < pass.group; ++g, ++i) {
        out.peak[i] = view.first[r] == view.last[r]
                          ? kNoScore
                          : peak_of_scores(pass, view.first[r], view.last[r], work.scores + i * kKvChunk);
      }
    }
    for (int64_t i = 0, r = 0; r < view.rows; ++r) {
      for (int g = 0; g < pass.group; ++g, ++i) {
        out.sum[i] = weights_of_scores(view.first[r], view.last[r], out.peak[i], work.scores + i * kKvChunk);
      }
    }
  }
  int tile = 0;
  if (one_go) {
    weigh_tiles(view, kv, common, work, {out.output, true, nullptr, nullptr});
    tile = common;
  } else {
    std::memset(out.output, 0, static_cast<size_t>(queries * pass.padded_dim) * 4);
  }
  for (; tile < kKvTiles; ++tile) {
    Ahead keys = look_ahead(pass, 0, kv, view.start + kKvChunk + tile * kKvTile);
    visit_tile(view, tile, [&](int from, int to, const int32_t* physical) {
      weigh_tile(view, kv, tile, from, to, physical, work, out.output, &keys);
    });
  }
  if (before != nullptr) fold_chunk(pass.padded_dim, queries, out, *before);
}

inline void fetch_keys(const AttentionPass& pass, int kv, int64_t chunk) {
  for (int tile = 0; tile < kKvTiles; ++tile) look_ahead(pass, 0, kv, chunk * kKvChunk + tile * kKvTile).fetch(kKvTile);
}

constexpr SpecAttentionKernels kSpecAttentionKernels{append_units, prepare_queries, fetch_keys, attend_chunk,
                                                     begin_state,  fold_chunk,      finish_rows};
