// SpecAttention: rotates queries and keys, appends keys and values to the cache, and attends over the committed rows
// and a row's own ancestors in the draft tree.
//
// What is computed, in this order of operations on every instruction set:
// - q and k heads: RMS norm where weights are given (x * rms_scale * weight, the scale that of the head, or of all
// heads
//   of the row together), rotation, q *= scale, and q *= query_scale[position] where that is given. The norm may also
//   stand behind the rotation. Where there is a clip, q and k behind the norm, and v, are limited to plus and minus it.
// - In formats that say so below, keys and queries are then turned by a normalised Hadamard transform, which leaves
//   scores as they are and spreads large elements, so that 4 bits hold them; likewise values, and y, which turns them
//   back. The transform is of blocks: the largest power of two that divides the head size. x *= sqrt(1 / block), then
//   (a + b, a - b) at distances 1, 2, 4 ... within a block.
// - A value may be normed: v *= rms_scale, without weights. It may be the key of its head as it is before norm and
// rotation.
// - Keys and values may be those of an earlier layer: then a pass has queries only, and appends nothing.
// - Before that, in formats that turn keys, where these are given: key = (key - centre) / balance, and
//   q = q * balance, each of its kv head. Softmax does not see the centre, nor scores the balance; but keys of a layer
//   share much, and their dimensions differ in size, which would take up the range of 4 bits.
// - A key counts at its logical position. Positions fall into chunks of kKvChunk, chunks into tiles of kKvTile, both
//   aligned to position 0, so the sums below do not depend on how a pass was cut or where a row lies in the cache.
// - Score of float keys: products added by fma in 16 lanes (lane = dimension mod 16, ascending; the first product is a
//   multiplication), then vf_sum's tree. Of int8 keys: the query is rounded to int8 per group of kKvGroup dimensions
//   (as QuantLinear rounds), integer sums per group, s = fma(float(dot) * key scale, query scale, s) ascending. Of keys
//   that are codes over a minimum: s = fma(query scale, fma(key scale, float(dot), minimum * float(sum)), s), where sum
//   is that of the query's codes of the group.
// - Then softcap * tanh(s / softcap).
// - Chunk: m = largest score, p = exp(score - m), l = p added in 16 lanes (lane = position mod 16) and vf_sum's tree,
//   o = p * value added by fma, positions ascending; keys that do not count are skipped.
// - Chunks join in ascending order: M' = max(M, m), a = exp(M - M'), b = exp(m - M'), L = fma(l, b, L * a), O likewise,
//   beginning with M = kNoScore, L = O = 0. So do the chunks of a span of kKvSpan positions, aligned to position 0, and
//   then the spans of a row. A sink joins last, as one more score without a value. y = O / L.
// With gates, y = y * sigmoid(gate) behind all that; sigmoid(x) = 1 / (1 + exp(-x)).
// Inputs should be finite. Of a row whose q, k or v is not, y and what it leaves in the cache are unspecified, and so
// is y of rows that attend to it. All others have the bits that they would have beside a finite row.
#pragma once

#include <cstdint>

#include "ops/pass_rows/pass_rows.h"

namespace edge_rt {

constexpr int kKvTile = 16;
constexpr int kKvChunk = 64;
constexpr int kKvTiles = kKvChunk / kKvTile;
constexpr int kKvSpan = 256;  // what threads share out; smaller pieces cost more to move than to compute
constexpr int kSpanChunks = kKvSpan / kKvChunk;
constexpr int kKvGroup = 32;  // dimensions that share a scale in quantised formats
constexpr int kMaxHeadDim = 512;
constexpr int kMaxBlockRows = 32;  // rows of the pass that are computed together
constexpr float kNoScore = -3.0e38f;

// How rows lie in the cache. First the key planes of all kv heads, then their value planes, each of `capacity` rows
// without gaps between planes; what is left of the cache's last dimension lies behind them all.
//   f32      capacity x D floats
//   f16      capacity x D halves
//   int8     capacity x D codes, then capacity x ceil(D / 32) half scales of groups of 32:
//            scale = half(max|x| / 127), code = round(x / scale) within -127 ... 127, 0 where the scale is 0
//   nibbles  capacity x ceil(D / 32) x 16 bytes of codes: byte j of a group holds element j in its low half and element
//            j + 16 in the other; then capacity x ceil(D / 32) pairs of halves, scale and minimum:
//            minimum = half(min x), scale = half((max x - min x) / 15), code = round((x - minimum) / scale) within
//            0 ... 15, 0 where the scale is 0; the value is fma(code, scale, minimum)
//            Keys with feedback are rounded element by element: see below
//   pairs    the same codes, then as many bytes of finer ones for what the first leave over, then scales and minimums:
//            finer code = 8 + round((x - value) / (scale / 16)) within 0 ... 15, 8 where the scale is 0. Both are one
//            code 16 * code + finer code of 8 bits: value = fma(that, scale / 16, minimum - scale / 2)
//   upper    `pairs` of which the first codes alone are read, as if they were `nibbles`: half the bytes, for drafts
// Feedback F of a kv head, strictly upper triangular: later elements of a key make up for the errors of earlier ones,
// as far as queries tend to point that way (GPTQ, arXiv:2210.17323, with queries in the place of a layer's inputs).
// Scales and minimums are those of the key before; left = x - minimum. Then for i ascending:
//   code = fma(left[i], 1 / scale, 2^23), which rounds, within 2^23 + (0 ... 15), less 2^23; with 0 for 1 / 0
//   error = fma(-code, scale, left[i]);  left[j] = fma(-error, F[i][j], left[j]) for j > i
// Finer codes hold the errors themselves, so `pairs` and `upper` do without.
// Elements that fill up the last group have code 0. Speed needs the cache on a 64-byte boundary.
// Another coding is an entry here, its functions in spec_attention_cache.inl or spec_attention_nibbles.inl, an entry in
// kKvKernels there, and a way to its scores in spec_attention_codes.inl if they are not sums of floats.
enum KvCoding : int { kCodedF32, kCodedF16, kCodedInt8, kCodedNibbles, kCodedPairs, kCodedUpper, kKvCodingCount };

struct KvRow {
  int bytes_per_dim;
  int nibble_planes;    // of 16 bytes per group
  int bytes_per_group;  // of scales and minimums
};
constexpr KvRow kKvRows[kKvCodingCount] = {{4, 0, 0}, {2, 0, 0}, {1, 0, 2}, {0, 1, 4}, {0, 2, 4}, {0, 2, 4}};

enum KvFormatId : int {
  kKvF32 = 0,
  kKvF16 = 1,
  kKvInt8 = 2,
  kKvK8V4 = 3,
  kKvInt4 = 4,
  kKvInt4x2 = 5,
  kKvInt4x2Upper = 6,
  kKvFormatCount = 7
};

struct KvFormat {
  const char* name;
  int alignment;  // that the cache's last dimension must have, and its address
  KvCoding key, value;
  bool turns_keys, turns_values;  // by the Hadamard transform

  KvCoding coding(int which) const { return which == 0 ? key : value; }
};
// clang-format off: a table
constexpr KvFormat kKvFormats[kKvFormatCount] = {
    {"f32", 4, kCodedF32, kCodedF32, false, false},
    {"f16", 2, kCodedF16, kCodedF16, false, false},
    {"int8", 2, kCodedInt8, kCodedInt8, false, false},
    {"k8v4", 1, kCodedInt8, kCodedNibbles, false, true},
    {"int4", 2, kCodedNibbles, kCodedNibbles, true, true},
    {"int4x2", 2, kCodedPairs, kCodedPairs, true, true},
    {"int4x2_upper", 2, kCodedUpper, kCodedUpper, true, true}};
// clang-format on

inline constexpr int64_t kv_groups(int64_t head_dim) { return (head_dim + kKvGroup - 1) / kKvGroup; }
// Bytes of a row's codes in one of its planes, of all its codes, and of the row.
inline constexpr int64_t kv_code_bytes(const KvRow& row, int64_t head_dim) {
  return row.bytes_per_dim * head_dim + (row.nibble_planes > 0 ? kKvGroup / 2 * kv_groups(head_dim) : 0);
}
inline constexpr int64_t kv_all_code_bytes(const KvRow& row, int64_t head_dim) {
  return kv_code_bytes(row, head_dim) * (row.nibble_planes > 1 ? row.nibble_planes : 1);
}
inline constexpr int64_t kv_row_bytes(const KvRow& row, int64_t head_dim) {
  return kv_all_code_bytes(row, head_dim) + row.bytes_per_group * kv_groups(head_dim);
}
// What the cache's last dimension must hold: half of a key and a value.
inline constexpr int64_t kv_row_bytes(const KvFormat& format, int64_t head_dim) {
  return (kv_row_bytes(kKvRows[format.key], head_dim) + kv_row_bytes(kKvRows[format.value], head_dim) + 1) / 2;
}

// One run of the op, checked. Queries are numbered (kv head, row, head within the group).
struct AttentionPass : PassRows {
  int heads, kv_heads, group;     // group = heads / kv_heads
  int head_dim, padded_dim;       // padded_dim: head_dim up to a multiple of 16
  int half_rotary;                // R / 2; 0: no rotation
  float scale, softcap, epsilon;  // softcap 0: none
  float clip;                     // 0: none
  Flag interleaved;
  Flag has_gates;  // behind the query of every head
  Flag norms_after_rotation;
  Flag q_norm_of_row, k_norm_of_row;  // weights of all heads, [H * D] and [KV * D]; else of a head, [D]
  Flag shares_cache;                  // rows of qkv are queries only; their keys and values are in the cache
  Flag norms_values, values_are_keys;
  int format;
  const float *qkv, *cos, *sin;
  const float *q_norm, *k_norm, *sinks, *query_scale;    // or nullptr
  const float *key_centre, *key_balance, *key_feedback;  // likewise
  uint8_t* cache;
  int64_t plane_bytes[2];  // of keys, of values
  float* y;
  // Scratch memory, 64-byte aligned.
  int64_t first_query;  // number of the query that `queries` begins with
  float* queries;       // [kv_heads][rows][group][padded_dim], ends padded with zeros
  int8_t* query_codes;  // keys of codes only: the same with padded_codes(head_dim) codes,
  float* query_scales;  // and the scale and the sum of codes per group of dimensions
  int32_t* query_sums;

  // Where things lie in a row of qkv: [heads of queries, each with its gate | keys | values].
  int64_t query_features() const { return int64_t{head_dim} * (has_gates ? 2 : 1); }
  int64_t key_features() const { return int64_t{kv_heads} * head_dim; }
  int64_t row_features() const { return heads * query_features() + key_parts() * key_features(); }
  // Keys, and values if they are others; neither where another layer has appended them.
  int64_t key_parts() const { return shares_cache ? 0 : values_are_keys ? 1 : 2; }
  const float* query_of(int64_t row, int head) const { return qkv + row * row_features() + head * query_features(); }
  const float* keys_of(int64_t row) const { return query_of(row, heads); }
  const float* gate_of(int64_t row, int head) const { return query_of(row, head) + head_dim; }

  int64_t query_index(int kv, int64_t row) const { return (kv * rows + row) * group; }
  // Where a query lies in scratch memory.
  int64_t query_place(int kv, int64_t row) const { return query_index(kv, row) - first_query; }
  const KvFormat& form() const { return kKvFormats[format]; }
  int groups() const { return static_cast<int>(kv_groups(head_dim)); }
  bool has_query_codes() const { return form().key >= kCodedInt8; }
  // Where the planes of `capacity` rows lie in the cache.
  void lay_planes() {
    for (int i = 0; i < 2; ++i) plane_bytes[i] = capacity * kv_row_bytes(kKvRows[form().coding(i)], head_dim);
  }
  uint8_t* plane(int which, int kv) const {
    return cache + which * kv_heads * plane_bytes[0] + kv * plane_bytes[which];
  }
};

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
  float* rows;    // [kKvChunk][padded_dim]
  float* across;  // a tile of the same, transposed
  float* scales;  // [kv_groups][kKvTile], then as many minimums
};

// A row's key and value of a kv head.
struct AppendUnit {
  int64_t row;
  int kv;
};
constexpr int kMostAppended = 4;

struct SpecAttentionKernels {
  // Writes at most kMostAppended units to the cache.
  void (*append)(const AttentionPass& pass, const AppendUnit* units, int count);
  // Writes a row's queries of a kv head's group to scratch memory.
  void (*prepare_queries)(const AttentionPass& pass, int64_t row, int kv);
  // Begins to fetch the keys of a chunk.
  void (*fetch_keys)(const AttentionPass& pass, int kv, int64_t chunk);
  // One chunk of keys for the queries of rows [begin, end) of a kv head; at most kMaxBlockRows rows. Its state goes to
  // `out`, or is joined to `before`, with `out` for memory.
  void (*attend_chunk)(const AttentionPass& pass, int kv, int64_t begin, int64_t end, int64_t chunk,
                       const AttentionWork& work, const AttentionState& out, const AttentionState* before);
  void (*begin)(int padded_dim, int64_t queries, const AttentionState& state);
  // Joins a chunk to what came before it.
  void (*fold)(int padded_dim, int64_t queries, const AttentionState& chunk, const AttentionState& state);
  // Sinks and division; writes y of rows [begin, end), the heads of one kv head.
  void (*finish)(const AttentionPass& pass, int kv, int64_t begin, int64_t end, const AttentionState& state);
};

}  // namespace edge_rt
