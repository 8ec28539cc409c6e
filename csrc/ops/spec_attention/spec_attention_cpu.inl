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

// Whether some row sees keys from a position on.
inline bool sees_beyond(const ChunkView& view, int position) {
  for (int r = 0; r < view.rows; ++r) {
    if (view.last[r] > position) return true;
  }
  return false;
}

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
inline const int32_t* map_rows(const AttentionPass& pass, int64_t position, int32_t* memory) {
  const int64_t seen = pass.first_seen(pass.past), limit = pass.past + pass.done + pass.rows;
  if (position >= seen && position + kKvTile <= limit) return pass.row_map + position;
  for (int j = 0; j < kKvTile; ++j) {
    const int64_t at = position + j < limit ? position + j : limit - 1;
    memory[j] = pass.row_map[at > seen ? at : seen];
  }
  return memory;
}

// Calls use(begin, end, physical rows) for the block's rows that see a tile, all of which find the same keys in it.
template <class Use>
EDGE_RT_INLINE void visit_tile(const ChunkView& view, int tile, const Use& use) {
  int begin = 0, end = view.rows;
  while (begin < end && !view.touches(begin, tile)) ++begin;
  while (end > begin && !view.touches(end - 1, tile)) --end;
  if (begin == end) return;
  int32_t memory[kKvTile];
  use(begin, end, map_rows(view.pass, view.start + tile * kKvTile, memory));
}

// What rows of a tree see of a chunk from position `low` on, where the first tile begins that holds drafted nodes: a
// row's positions behind the committed ones are its ancestors. Keys are numbered, so that rows share them.
struct DraftedKeys {
  int begin, end;  // the rows
  int low, count;
  int32_t physical[kKvChunk];
  uint8_t key[kMaxBlockRows][kKvChunk];  // number of the key at a row's position
};

// Collects the keys of rows from `begin` on, of as many as find room. Nodes count from the tree's first one, which an
// earlier pass may have appended.
inline void collect_drafted(const ChunkView& view, int low, int begin, DraftedKeys* out) {
  const AttentionPass& pass = view.pass;
  const int64_t seen = pass.first_seen(pass.past);
  const int committed = clamp_to_chunk(pass.past - view.start);
  int count = 0;
  for (int j = low; j < committed; ++j, ++count) {
    out->physical[count] = pass.row_map[view.start + j > seen ? view.start + j : seen];
  }
  const int shared = count;
  int64_t nodes[kKvChunk];
  int r = begin;
  for (; r < view.rows; ++r) {
    const int before = count, first = view.first[r] > low ? view.first[r] : low;
    int64_t node = pass.done + view.begin + r;
    int j = view.last[r] - 1;
    for (; j >= first && j >= committed; --j) {
      while (pass.depths[node - pass.done] > view.start + j - pass.past) node = pass.parents[node];
      int number = shared;
      while (number < count && nodes[number] != node) ++number;
      if (number == kKvChunk) break;
      if (number == count) {
        nodes[count] = node;
        out->physical[count++] = pass.row_map[pass.past + node];
      }
      out->key[r][j] = static_cast<uint8_t>(number);
    }
    if (j >= first && j >= committed) {
      count = before;
      break;
    }
    for (; j >= first; --j) out->key[r][j] = static_cast<uint8_t>(j - low);
  }
  out->begin = begin;
  out->end = r;
  out->low = low;
  out->count = count;
  for (; count % kKvTile != 0; ++count) out->physical[count] = out->physical[count - 1];
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

// Transposes a tile of float keys, of whose last vector `tail` floats are there, or all if that is 0.
inline void lay_across(const float* const* keys, int padded_dim, int tail, float* across) {
  const void* rows[kKvTile];
  for (int j = 0; j < kKvTile; ++j) rows[j] = keys[j];
  int d = 0;
  for (; d + (tail > 0 ? 16 : 0) < padded_dim; d += 16) transpose16(rows, d, across + 16 * d);
  if (tail == 0) return;
  float ends[kKvTile][16];
  for (int j = 0; j < kKvTile; ++j) {
    vf_store(ends[j], vf_load_n(keys[j] + d, tail));
    rows[j] = ends[j];
  }
  transpose16(rows, 0, across + 16 * d);
}

// Scores of a tile for `count` queries from number `query` in scratch memory on.
inline void score_tile(const AttentionPass& pass, int kv, const int32_t* physical, int64_t query, int64_t count,
                       const AttentionWork& work, float* scores, Ahead* ahead) {
  const uint8_t* plane = pass.plane(0, kv);
  if (pass.has_query_codes()) {
    score_coded(pass, plane, physical, query, count, work, scores, ahead);
    return;
  }
  const float* keys[kKvTile];
  kKvKernels[pass.form().key].read(pass, plane, physical, work, keys);
  const float* across = nullptr;
  const int vectors = pass.padded_dim / 16, tail = tail_of(pass, pass.form().key);
  if (count >= kAcrossQueries) {
    lay_across(keys, pass.padded_dim, tail, work.across);
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

// The same of kScoreTiles tiles of float keys, which lie across in work.across and behind the rows that are read.
inline void score_float_tiles(const AttentionPass& pass, const uint8_t* plane, const int32_t* physical, int64_t query,
                              int64_t count, const AttentionWork& work, float* scores, Ahead* ahead) {
  static_assert(kScoreTiles * kKvTile <= kKvChunk, "rows of all tiles but the first are free");
  const int vectors = pass.padded_dim / 16, tail = tail_of(pass, pass.form().key);
  AcrossTiles<kScoreTiles> across;
  for (int t = 0; t < kScoreTiles; ++t) {
    const float* keys[kKvTile];
    float* to = t == 0 ? work.across : work.rows + t * kKvTile * pass.padded_dim;
    kKvKernels[pass.form().key].read(pass, plane, physical + t * kKvTile, work, keys);
    lay_across(keys, pass.padded_dim, tail, to);
    across.tiles[t] = to;
  }
  const float* queries = pass.queries + query * pass.padded_dim;
  if (vectors == 4) {
    score_tiles_across<kScoreTiles, 4>(across, vectors, queries, count, scores, ahead);
  } else if (vectors == 8) {
    score_tiles_across<kScoreTiles, 8>(across, vectors, queries, count, scores, ahead);
  } else {
    score_tiles_across<kScoreTiles, 0>(across, vectors, queries, count, scores, ahead);
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

// Scores common tiles several at a time, where that takes less time. Returns how many it scored.
inline int score_common(const ChunkView& view, int kv, int tiles, const AttentionWork& work) {
  const AttentionPass& pass = view.pass;
  const int64_t count = static_cast<int64_t>(view.rows) * pass.group;
  const bool of_bytes = pass.form().key == kCodedInt8;
  if (kScoreTiles == 1 || count < kAcrossQueries || (pass.has_query_codes() && !of_bytes)) return 0;
  const auto score = of_bytes ? score_int8_tiles : score_float_tiles;
  int tile = 0;
  for (; tile + kScoreTiles <= tiles; tile += kScoreTiles) {
    Ahead values = look_ahead(pass, 1, kv, view.start + tile * kKvTile, kScoreTiles * kKvTile);
    score(pass, pass.plane(0, kv), pass.row_map + view.start + tile * kKvTile, pass.query_place(kv, view.begin), count,
          work, work.scores + tile * kKvTile, &values);
  }
  return tile;
}

inline void score_drafted(const ChunkView& view, int kv, const DraftedKeys& keys, const AttentionWork& work,
                          Ahead* ahead) {
  constexpr int64_t kTogether = 32;
  const AttentionPass& pass = view.pass;
  const int64_t end = static_cast<int64_t>(keys.end) * pass.group;
  int r = keys.begin, g = 0;
  for (int64_t query = static_cast<int64_t>(r) * pass.group; query < end;) {
    const int64_t count = end - query < kTogether ? end - query : kTogether;
    float scores[kTogether * kKvChunk];  // of every key
    int k = 0;
    do {
      score_tile(pass, kv, keys.physical + k, pass.query_place(kv, view.begin) + query, count, work, scores + k, ahead);
      k += kKvTile;
    } while (k < keys.count);
    for (int64_t i = 0; i < count; ++i, ++query) {
      float* to = work.scores + query * kKvChunk;
      const int first = view.first[r] > keys.low ? view.first[r] : keys.low;
      for (int j = first; j < view.last[r]; ++j) to[j] = scores[i * kKvChunk + keys.key[r][j]];
      if (++g < pass.group) continue;
      g = 0;
      ++r;
    }
  }
}

inline void weigh_drafted(const ChunkView& view, int kv, const DraftedKeys& keys, const AttentionWork& work,
                          float* output, Ahead* ahead) {
  const AttentionPass& pass = view.pass;
  const float* all[kKvChunk];
  for (int k = 0; k < keys.count; k += kKvTile) {
    AttentionWork place = work;
    place.rows += k * pass.padded_dim;
    kKvKernels[pass.form().value].read(pass, pass.plane(1, kv), keys.physical + k, place, all + k);
  }
  for (int r = keys.begin; r < keys.end; ++r) {
    const int first = view.first[r] > keys.low ? view.first[r] : keys.low;
    if (first >= view.last[r]) continue;
    const float* values[kKvChunk];
    for (int j = first; j < view.last[r]; ++j) values[j] = all[keys.key[r][j]];
    const int64_t query = static_cast<int64_t>(r) * pass.group;
    weigh_values(values, first, view.last[r], work.scores + query * kKvChunk,
                 {output + query * pass.padded_dim, false, nullptr, nullptr}, pass.padded_dim,
                 tail_of(pass, pass.form().value), pass.group, ahead);
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
  const int tiles = pass.chain ? kKvTiles : clamp_to_chunk(pass.past - view.start) / kKvTile;  // without drafted nodes
  const int common = common_tiles(view);
  for (int tile = score_common(view, kv, common, work); tile < tiles; ++tile) {
    Ahead values = look_ahead(pass, 1, kv, view.start + tile * kKvTile);
    visit_tile(view, tile, [&](int from, int to, const int32_t* physical) {
      const int64_t first = static_cast<int64_t>(from) * pass.group;
      score_tile(pass, kv, physical, pass.query_place(kv, begin) + first, static_cast<int64_t>(to - from) * pass.group,
                 work, work.scores + first * kKvChunk + tile * kKvTile, &values);
    });
  }
  const int drafted = sees_beyond(view, tiles * kKvTile) ? view.rows : 0;  // rows that see drafted nodes
  DraftedKeys keys;
  for (int r = 0; r < drafted; r = keys.end) {
    Ahead values = look_ahead(pass, 1, kv, view.start + tiles * kKvTile);
    collect_drafted(view, tiles * kKvTile, r, &keys);
    score_drafted(view, kv, keys, work, &values);
  }
  const int64_t queries = static_cast<int64_t>(view.rows) * pass.group;
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
  for (; tile < tiles; ++tile) {
    Ahead next = look_ahead(pass, 0, kv, view.start + kKvChunk + tile * kKvTile);
    visit_tile(view, tile, [&](int from, int to, const int32_t* physical) {
      weigh_tile(view, kv, tile, from, to, physical, work, out.output, &next);
    });
  }
  for (int r = 0; r < drafted; r = keys.end) {
    Ahead next = look_ahead(pass, 0, kv, view.start + kKvChunk);
    if (keys.begin != r) collect_drafted(view, tiles * kKvTile, r, &keys);
    weigh_drafted(view, kv, keys, work, out.output, &next);
  }
  if (before != nullptr) fold_chunk(pass.padded_dim, queries, out, *before);
}

inline void fetch_keys(const AttentionPass& pass, int kv, int64_t chunk) {
  for (int tile = 0; tile < kKvTiles; ++tile) look_ahead(pass, 0, kv, chunk * kKvChunk + tile * kKvTile).fetch(kKvTile);
}

constexpr SpecAttentionKernels kSpecAttentionKernels{append_units, prepare_queries, fetch_keys, attend_chunk,
                                                     begin_state,  fold_chunk,      finish_rows};
