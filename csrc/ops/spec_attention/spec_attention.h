// SpecAttention: rotates queries and keys, appends keys and values to the cache, and attends over the committed rows
// and a row's own ancestors in the draft tree.
//
// What is computed, in this order of operations on every instruction set:
// - q and k heads: RMS norm where weights are given (x * rms_scale * weight), rotation, q *= scale.
// - A key counts at its logical position. Positions fall into chunks of kKvChunk, chunks into tiles of kKvTile, both
//   aligned to position 0, so the sums below do not depend on how a pass was cut or where a row lies in the cache.
// - Score of float keys: products added by fma in 16 lanes (lane = dimension mod 16, ascending; the first product is a
//   multiplication), then vf_sum's tree. Of int8 keys: the query is rounded to int8 per group of kKvGroup dimensions
//   (as QuantLinear rounds), integer sums per group, s = fma(float(dot) * key scale, query scale, s) ascending.
// - Then softcap * tanh(s / softcap).
// - Chunk: m = largest score, p = exp(score - m), l = p added in 16 lanes (lane = position mod 16) and vf_sum's tree,
//   o = p * value added by fma, positions ascending; keys that do not count are skipped.
// - Chunks join in ascending order: M' = max(M, m), a = exp(M - M'), b = exp(m - M'), L = fma(l, b, L * a), O likewise,
//   beginning with M = kNoScore, L = O = 0. So do the chunks of a span of kKvSpan positions, aligned to position 0, and
//   then the spans of a row. A sink joins last, as one more score without a value. y = O / L.
#pragma once

#include <cstdint>

namespace edge_rt {

constexpr int kKvTile = 16;
constexpr int kKvChunk = 64;
constexpr int kKvTiles = kKvChunk / kKvTile;
constexpr int kKvSpan = 256;        // what threads share out; smaller pieces cost more to move than to compute
constexpr int kSpanChunks = kKvSpan / kKvChunk;
constexpr int kKvGroup = 32;        // dimensions that share a scale in quantised formats
constexpr int kMaxHeadDim = 512;
constexpr int kMaxBlockRows = 32;   // rows of the pass that are computed together
constexpr float kNoScore = -3.0e38f;

// How rows lie in the cache. One plane (keys or values of one kv head) holds `capacity` rows:
//   f32    capacity x D floats
//   f16    capacity x D halves
//   int8   capacity x D codes, then capacity x ceil(D / 32) half scales of groups of 32:
//          scale = half(max|x| / 127), code = round(x / scale) within -127 ... 127, 0 where the scale is 0
// A plane takes capacity * (the cache's last dimension) bytes. Speed needs the cache on a 64-byte boundary.
// Another format is an entry here, its functions in spec_attention_cache.inl, an entry in kKvKernels there, and a way
// to its scores in spec_attention_tile.inl if they are not sums of floats.
enum KvFormatId : int { kKvF32 = 0, kKvF16 = 1, kKvInt8 = 2, kKvFormatCount = 3 };

struct KvFormat {
  const char* name;
  int alignment;           // that the cache's last dimension must have
  int bytes_per_dim;
  int bytes_per_group;
};
constexpr KvFormat kKvFormats[kKvFormatCount] = {{"f32", 4, 4, 0}, {"f16", 2, 2, 0}, {"int8", 2, 1, 2}};

inline constexpr int64_t kv_row_bytes(const KvFormat& format, int64_t head_dim) {
  return format.bytes_per_dim * head_dim + format.bytes_per_group * ((head_dim + kKvGroup - 1) / kKvGroup);
}

// One run of the op, checked. Queries are numbered (kv head, row, head within the group).
struct AttentionPass {
  int heads, kv_heads, group;         // group = heads / kv_heads
  int head_dim, padded_dim;           // padded_dim: head_dim up to a multiple of 16
  int half_rotary;                    // R / 2
  float scale, softcap, epsilon;      // softcap 0: none
  int64_t window;                     // 0: none
  bool interleaved;
  int format;
  int64_t rows, past, capacity;
  bool chain;                         // every row's parent is the row before it
  const float *qkv, *cos, *sin;
  const float *q_norm, *k_norm, *sinks;  // or nullptr
  uint8_t* cache;
  int64_t plane_bytes;
  const int32_t *row_map, *parents;
  const int32_t* depths;              // [rows]: 0 for the first row after the committed ones
  float* y;
  // Scratch memory, 64-byte aligned.
  int64_t first_query;                // number of the query that `queries` begins with
  float* queries;                     // [kv_heads][rows][group][padded_dim], ends padded with zeros
  int8_t* query_codes;                // int8 keys only: the same with padded_codes(head_dim) codes,
  float* query_scales;                // and its scale per group of dimensions

  int64_t query_index(int kv, int64_t row) const { return (kv * rows + row) * group; }
  // Where a query lies in scratch memory.
  int64_t query_place(int kv, int64_t row) const { return query_index(kv, row) - first_query; }
  uint8_t* plane(int which, int kv) const { return cache + (which * kv_heads + kv) * plane_bytes; }
};

inline constexpr int kv_groups(int head_dim) { return (head_dim + kKvGroup - 1) / kKvGroup; }
// Codes of one row in scratch memory: whole vectors of 64.
inline constexpr int padded_codes(int head_dim) { return (head_dim + 63) / 64 * 64; }

// What is known of queries after some chunks, or from one.
struct AttentionState {
  float* peak;    // [queries]
  float* sum;     // [queries]
  float* output;  // [queries][padded_dim]
};

// Memory of one worker: scores, and a tile of keys or a chunk of values as floats.
struct AttentionWork {
  float* scores;  // [queries of a block][kKvChunk]
  float* rows;    // [kKvChunk][padded_dim], or padded_codes bytes each
  float* across;  // a tile of the same, transposed
  float* scales;  // [kv_groups][kKvTile]
};

struct SpecAttentionKernels {
  // Writes a row's key and value of a kv head to the cache.
  void (*append_row)(const AttentionPass& pass, int64_t row, int kv);
  // Writes a row's queries of a kv head's group to scratch memory.
  void (*prepare_queries)(const AttentionPass& pass, int64_t row, int kv);
  // Begins to fetch the keys of a chunk.
  void (*fetch_keys)(const AttentionPass& pass, int kv, int64_t chunk);
  // One chunk of keys for the queries of rows [begin, end) of a kv head; at most kMaxBlockRows rows.
  void (*attend_chunk)(const AttentionPass& pass, int kv, int64_t begin, int64_t end, int64_t chunk,
                       const AttentionWork& work, const AttentionState& out);
  void (*begin)(int padded_dim, int64_t queries, const AttentionState& state);
  // Joins a chunk to what came before it.
  void (*fold)(int padded_dim, int64_t queries, const AttentionState& chunk, const AttentionState& state);
  // Sinks and division; writes y of rows [begin, end), the heads of one kv head.
  void (*finish)(const AttentionPass& pass, int kv, int64_t begin, int64_t end, const AttentionState& state);
};

}  // namespace edge_rt
