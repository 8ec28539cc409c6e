#version 460
// A block's queries and the keys of a span: 32 threads have a chunk of it, and chunks are joined in ascending order.
// Grid: kv heads times blocks of queries, and spans; or, where spans are folded as they come, blocks, and kv heads.
//
// Where rows find different keys, as branches of a tree do, the block takes its rows one after the other: a round each.
#define THREADS 128
#include "gpu/vulkan/kernel.glsl"
#include "gpu/vulkan/lane_math.glsl"
#include "ops/spec_attention/vulkan/attention.glsl"
#include "ops/spec_attention/vulkan/attention_join.glsl"

const int kChunkThreads = 32, kQueries = 8, kMostScored = 4, kSlice = 64, kQueryWords = 1280;

// The queries of the block; then the outputs of a slice of dimensions, [queries][kSlice].
shared uint words[kQueryWords];
shared vec4 weights[kSpanChunks][kQueries][kKvChunk / 4];  // scores at first
shared int physical[kSpanChunks][kKvChunk];
shared int positions[kQueries];
shared float parts[kSpanChunks][kQueries][4];  // of what is known of a chunk
shared float peaks[kSpanChunks][kQueries], sums[kSpanChunks][kQueries];
// What sums so far, and those of a chunk, are multiplied by when they join; then the same of the span.
shared vec2 factors[kSpanChunks + 1][kQueries];
shared float span_peaks[kQueries];

// Some queries of a kv head, numbered (row, head within the group).
struct QueryBlock {
  int kv, begin, count, room;  // room: most queries of a block
  int group, rows, dim, padded_dim, window, past;
  int least, most;   // positions of its rows
  bool is_chain;     // the tree is one
};
QueryBlock block;

// Queries whose scores, and whose outputs, a thread has at once: as many as registers hold. A fma of integers is long:
// with one query there are few.
#ifdef MANY_AT_ONCE  // for tests of the code of other devices on one that has a long fma
bool has_long_fma() { return false; }
#else
bool has_long_fma() { return (mended & MENDS_FMA) != 0u; }
#endif
int scored_at_once() { return has_long_fma() ? 1 : has_query_codes() ? kMostScored : 2; }
int weighed_at_once() { return has_long_fma() ? 1 : kQueries; }

int chunk_lane() { return thread() % kChunkThreads; }
int chunk() { return thread() / kChunkThreads; }
int row_of(int query) { return (block.begin + query) / block.group; }

// Positions of a chunk, relative to it, that a row sees: from x to below y.
int clamp_to_chunk(int at) { return clamp(at, 0, kKvChunk); }
int first_in_chunk(int position, int start) {
  return block.window > 0 ? clamp_to_chunk(position + 1 - block.window - start) : 0;
}
ivec2 seen_by(int position, int start) {
  const ivec2 seen = ivec2(first_in_chunk(position, start), clamp_to_chunk(position + 1 - start));
  return seen.x < seen.y ? seen : ivec2(0);
}
// What some query sees, from the first one's first to the last one's last; and what all do.
ivec2 some_see(int start) {
  return ivec2(first_in_chunk(block.least, start), clamp_to_chunk(block.most + 1 - start));
}
ivec2 all_see(int start) {
  return ivec2(first_in_chunk(block.most, start), clamp_to_chunk(block.least + 1 - start));
}
bool has(ivec2 seen, int at) { return at >= seen.x && at < seen.y; }

// All rows find the same keys at every position of the chunk.
bool is_shared(int start) { return block.is_chain || start + kKvChunk <= block.past; }

// Physical rows of a chunk's positions, for a row if they are not shared. Positions that are not seen have one that may
// be read.
void map_chunk(int start, int row) {
  const int seen = first_seen(block.past), done = low(args.pass.done);
  for (int j = chunk_lane(); j < kKvChunk; j += kChunkThreads) {
    int node = max(start + j, seen) - block.past;
    if (is_shared(start)) {
      node = min(node, done + block.rows - 1);
    } else if (node >= 0) {
      const int wanted = node;
      node = done + row;
      for (int depth = args.pass.depths.at[row]; depth > wanted; --depth) node = args.pass.parents.at[node];
    }
    physical[chunk()][j] = args.pass.row_map.at[block.past + node];
  }
}

// What a chunk's threads do in a round: queries [begin, end), which see `seen` at the most.
struct Round {
  int begin, end;
  ivec2 seen;
};
Round round_of(int start, int round) {
  if (is_shared(start)) return Round(0, round == 0 ? block.count : 0, some_see(start));
  const int row = row_of(0) + round, first = row * block.group - block.begin;
  return Round(max(first, 0), min(first + block.group, block.count), seen_by(positions[max(first, 0)], start));
}

#include "ops/spec_attention/vulkan/attention_keys.glsl"
#include "ops/spec_attention/vulkan/attention_values.glsl"

void score_chunk(Plane keys, int start, Round now) {
  for (int j = chunk_lane(); j < kKvChunk; j += kChunkThreads) {
    if (!has(now.seen, j)) continue;
    for (int query = now.begin; query < now.end; query += scored_at_once()) {
      float scores[kMostScored];
      score_key(keys, physical[chunk()][j], query, now.end - query, scores);
      [[unroll]] for (int i = 0; i < scored_at_once(); ++i) {
        if (query + i < now.end) weights[chunk()][query + i][j / 4][j % 4] = scores[i];
      }
    }
  }
}

// Scores to weights, their largest and their sum: four threads have a chunk of a query. Sums are those of 16 lanes, of
// which a thread has every fourth.
void weigh_scores(int first_chunk) {
  const int of_chunk = thread() / (4 * kQueries), query = thread() / 4 % kQueries, part = thread() % 4;
  const int start = (first_chunk + of_chunk) * kKvChunk;
  const ivec2 seen = query < block.count ? seen_by(positions[query], start) : ivec2(0);
  const float softcap = args.pass.softcap;
  float largest = kNoScore;
  for (int j = part; j < kKvChunk; j += 4) {
    if (!has(seen, j)) continue;
    float score = weights[of_chunk][query][j / 4][part];
    if (softcap > 0.0) {
      score = softcap * vf_tanh(div_exact(score, softcap));
      weights[of_chunk][query][j / 4][part] = score;
    }
    largest = vf_max(largest, score);
  }
  parts[of_chunk][query][part] = largest;
  meet();
  for (int i = 0; i < 4; ++i) largest = vf_max(largest, parts[of_chunk][query][i]);
  meet();
  vec4 lanes = vec4(0.0);
  for (int j = part; j < kKvChunk; j += 4) {
    if (!has(seen, j)) continue;
    const float weight = vf_exp(weights[of_chunk][query][j / 4][part] - largest);
    weights[of_chunk][query][j / 4][part] = weight;
    [[unroll]] for (int k = 0; k < 4; ++k) lanes[k] = j / 4 % 4 == k ? lanes[k] + weight : lanes[k];
  }
  parts[of_chunk][query][part] = (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
  if (part == 0) peaks[of_chunk][query] = largest;
  meet();
  if (part == 0) {
    sums[of_chunk][query] = (parts[of_chunk][query][0] + parts[of_chunk][query][2]) +
                            (parts[of_chunk][query][1] + parts[of_chunk][query][3]);
  }
  meet();
}

// Joins the chunks' sums; `total` is what came before the span, and is what the thread knows of query number thread().
void join_sums(inout Joined total) {
  const int query = thread();
  if (query < block.count) {
    Joined span = nothing_joined();
    for (int c = 0; c < kSpanChunks; ++c) factors[c][query] = add_part(span, peaks[c][query], sums[c][query]);
    span_peaks[query] = span.peak;
    if (is(args.folds)) {
      factors[kSpanChunks][query] = add_part(total, span.peak, span.sum);
    } else {
      total = span;
    }
  }
  meet();
}

// Writes a slice of the span's outputs behind `to`, or joins it to what is there.
void write_outputs(uvec2 to, int slice, bool is_first) {
  const bool folds = is(args.folds);
  for (int i = thread(); i < block.count * kSlice; i += THREADS) {
    const int query = i / kSlice, d = slice + i % kSlice;
    if (d >= block.padded_dim) continue;
    Floats row = Floats(advanced(to, uint(query), 4u * block.padded_dim));
    float sum = uintBitsToFloat(words[i]);
    if (folds) {
      const vec2 joins = factors[kSpanChunks][query];
      const float before = is_first ? 0.0 : row.at[d];
      sum = span_peaks[query] == kNoScore ? before : fused(sum, joins.y, before * joins.x);
    }
    row.at[d] = sum;
  }
}

// A whole span; `to` are the outputs of the block's queries.
void attend_span(int span, bool is_first, uvec2 to, inout Joined total) {
  const int first_chunk = span * kSpanChunks, start = (first_chunk + chunk()) * kKvChunk;
  const bool is_shared_span = is_shared((first_chunk + kSpanChunks - 1) * kKvChunk);
  const int rounds = is_shared_span ? 1 : row_of(block.count - 1) - row_of(0) + 1;
  const Plane keys = plane_of(true, block.kv), values = plane_of(false, block.kv);
  load_queries();
  for (int i = 0; i < rounds; ++i) {
    const Round now = round_of(start, i);
    if (now.begin < now.end) map_chunk(start, row_of(now.begin));
    meet();
    score_chunk(keys, start, now);
    meet();
  }
  weigh_scores(first_chunk);
  join_sums(total);
  for (int slice = 0; slice < block.padded_dim; slice += kSlice) {
    for (int i = thread(); i < block.count * kSlice; i += THREADS) words[i] = 0u;
    for (int i = 0; i < rounds; ++i) {
      const Round now = round_of(start, i);
      if (rounds > 1 && now.begin < now.end) map_chunk(start, row_of(now.begin));
      meet();
      for (int some = 0; some < block.count; some += weighed_at_once()) {
        const Round part = Round(now.begin + some, min(now.end, now.begin + some + weighed_at_once()), now.seen);
        vec2 outputs[kQueries];
        weigh_values(values, start, slice, part, outputs);
        for (int c = 0; c < kSpanChunks; ++c) {
          if (c == chunk()) join_chunk(slice, part, outputs);
          meet();
        }
      }
    }
    write_outputs(to, slice, is_first);
    meet();
  }
}

void main() {
  block.group = args.pass.group;
  block.rows = low(args.pass.rows);
  block.dim = args.pass.head_dim;
  block.padded_dim = args.pass.padded_dim;
  block.window = low(args.pass.window);
  block.past = args.past.at[0];
  block.is_chain = args.tree.at[0] != 0;
  const int queries = block.rows * block.group, kv_heads = args.pass.kv_heads;
  const bool folds = is(args.folds);
  block.room = args.block_queries;
  block.kv = folds ? block_y() : block_x() % kv_heads;
  block.begin = (folds ? block_x() : block_x() / kv_heads) * block.room;
  // The last rows see the most keys: they are begun first.
  if (folds) block.begin = (queries - 1) / block.room * block.room - block.begin;
  block.count = min(queries - block.begin, block.room);
  if (thread() < block.count) positions[thread()] = block.past + args.pass.depths.at[row_of(thread())];
  meet();
  block.least = block.most = positions[0];
  for (int i = 1; i < block.count; ++i) {
    block.least = min(block.least, positions[i]);
    block.most = max(block.most, positions[i]);
  }
  const int first = first_seen(block.least) / kKvSpan, last = block.most / kKvSpan;
  const int base = folds ? first : first_seen(block.past) / kKvSpan + block_y();
  if (base < first || base > last) return;
  const int at = (folds ? 0 : block_y() * kv_heads * queries) + block.kv * queries + block.begin;
  const uvec2 outputs = advanced(uvec2(args.states.output_), uint(at), 4u * block.padded_dim);
  Joined total = nothing_joined();
  for (int span = base; span <= (folds ? last : base); ++span) attend_span(span, span == base, outputs, total);
  if (thread() < block.count) {
    args.states.peak.at[at + thread()] = total.peak;
    args.states.sum.at[at + thread()] = total.sum;
  }
}
