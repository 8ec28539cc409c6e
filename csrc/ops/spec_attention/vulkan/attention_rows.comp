#version 460
// Heads of the rows: norm, rotation, turning; queries go to scratch memory, keys and values to the cache. A block has a
// head. Grid: rows, and heads of queries, then of keys and values where the pass has them.
#define THREADS 64
#include "gpu/vulkan/kernel.glsl"
#include "gpu/vulkan/lane_math.glsl"
#include "gpu/vulkan/block_rows.glsl"
#include "ops/spec_attention/vulkan/attention.glsl"
#include "ops/spec_attention/vulkan/attention_turn.glsl"
#include "ops/spec_attention/vulkan/attention_append.glsl"

const int kQuery = 0, kKey = 1, kValue = 2;

// The block's head. What it is the code asks as late as it can: every step is there once.
struct Head {
  int kind, row, kv, position;
  int index;  // among those of its kind
};
Head head;

Head head_of(int row, int number, int past) {
  const int heads = args.pass.heads, kv_heads = args.pass.kv_heads, position = past + args.pass.depths.at[row];
  if (number < heads) return Head(kQuery, row, number / args.pass.group, position, number);
  const int other = number - heads, kv = other % kv_heads;
  return Head(other < kv_heads ? kKey : kValue, row, kv, position, kv);
}

// 1 / sqrt(mean of x^2 + epsilon) of the head, or of the n numbers behind `row`.
float scale_of(bool of_row, Floats row, int n) {
  float sum = 0.0;
  for (int i = thread(); i < n; i += THREADS) {
    const float a = of_row ? row.at[i] : x[i];
    sum = fused(a, a, sum);
  }
  return rms_scale_of(joined_row_sum(sum), n, args.pass.epsilon);
}

void norm_head(Floats row, bool is_query) {
  const int dim = args.pass.head_dim;
  Floats weight = is_query ? args.pass.q_norm : args.pass.k_norm;
  const bool has_weight = head.kind != kValue;
  const bool of_row = has_weight && is(is_query ? args.pass.q_norm_of_row : args.pass.k_norm_of_row);
  const int heads = is_query ? args.pass.heads : args.pass.kv_heads;
  const float scale = scale_of(of_row, row, of_row ? heads * dim : dim);
  const int first = of_row ? head.index * dim : 0;
  for (int d = thread(); d < dim; d += THREADS) {
    float value = x[d] * scale;
    if (has_weight) value *= weight.at[first + d];
    x[d] = value;
  }
}

void rotate_head() {
  const int count = args.pass.half_rotary;
  const bool interleaved = is(args.pass.interleaved);
  const int first = interleaved ? 2 : 1, second = interleaved ? 1 : count;
  Floats cosines = Floats(advanced(uvec2(args.pass.cos), uint(head.position), 4u * count));
  Floats sines = Floats(advanced(uvec2(args.pass.sin), uint(head.position), 4u * count));
  for (int i = thread(); i < count; i += THREADS) {
    const float a = x[first * i], b = x[first * i + second], c = cosines.at[i], s = sines.at[i];
    x[first * i] = fused(-b, s, a * c);
    x[first * i + second] = fused(a, s, b * c);
  }
}

// Loads the head; norm, clip and rotation. The block meets behind it.
void load_head() {
  const int dim = args.pass.head_dim;
  const bool is_query = head.kind == kQuery, is_value = head.kind == kValue;
  // Of queries, of keys, or of values, which may be keys.
  uvec2 row = query_of(head.row, is_query ? 0 : args.pass.heads);
  if (is_value && !is(args.pass.values_are_keys)) row = advanced(row, uint(args.pass.kv_heads), 4u * dim);
  Floats from = Floats(advanced(row, uint(head.index), 4u * (is_query ? query_features() : dim)));
  for (int d = thread(); d < dim; d += THREADS) x[d] = from.at[d];
  const bool is_normed = is_value ? is(args.pass.norms_values)
                                  : !is_null(uvec2(is_query ? args.pass.q_norm : args.pass.k_norm));
  const bool comes_later = !is_value && is(args.pass.norms_after_rotation);
  for (int step = 0; step < 2; ++step) {
    if (is_normed && comes_later == (step == 1)) norm_head(Floats(row), is_query);
    if (step == 1) break;
    const float most = args.pass.clip;
    if (most != 0.0) {
      for (int d = thread(); d < dim; d += THREADS) x[d] = vf_min(vf_max(x[d], -most), most);
    }
    meet();
    if (!is_value && args.pass.half_rotary > 0) rotate_head();
    meet();
  }
  meet();
}

// What queries and keys are before they are turned. The block meets behind it.
void scale_query() {
  const int dim = args.pass.head_dim;
  const bool is_scaled = !is_null(uvec2(args.pass.query_scale));
  const bool is_balanced = turns_keys() && !is_null(uvec2(args.pass.key_balance));
  for (int d = thread(); d < dim; d += THREADS) {
    float value = x[d] * args.pass.scale;
    if (is_scaled) value *= args.pass.query_scale.at[head.position];
    if (is_balanced) value *= args.pass.key_balance.at[head.kv * dim + d];
    x[d] = value;
  }
  meet();
}
void balance_key() {
  const int dim = args.pass.head_dim;
  const bool has_centre = !is_null(uvec2(args.pass.key_centre)), is_balanced = !is_null(uvec2(args.pass.key_balance));
  for (int d = thread(); d < dim; d += THREADS) {
    float key = x[d];
    if (has_centre) key -= args.pass.key_centre.at[head.kv * dim + d];
    if (is_balanced) key = div_exact(key, args.pass.key_balance.at[head.kv * dim + d]);
    x[d] = key;
  }
  meet();
}

void write_query() {
  const int query = query_index(head.kv, head.row) + head.index % args.pass.group;
  if (has_query_codes()) {
    round_query(query);
    return;
  }
  const int dim = args.pass.head_dim, padded = args.pass.padded_dim;
  Floats to = Floats(advanced(uvec2(args.pass.queries), uint(query), 4u * padded));
  for (int d = thread(); d < padded; d += THREADS) to.at[d] = d < dim ? x[d] : 0.0;
}

void main() {
  const int past = args.past.at[0];
  head = head_of(block_x(), block_y(), past);
  load_head();
  if (head.kind == kQuery) {
    scale_query();
  } else if (head.kind == kKey && turns_keys()) {
    balance_key();
  }
  if (head.kind == kValue ? turns_values() : turns_keys()) hadamard();
  if (head.kind == kQuery) {
    write_query();
  } else {
    append_head(head.kind == kKey, head.kv, args.pass.row_map.at[past + low(args.pass.done) + head.row]);
  }
}
