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

// Of n numbers behind `row`.
float scale_of_row(Floats row, int n) {
  float sum = 0.0;
  for (int i = thread(); i < n; i += THREADS) sum = fused(row.at[i], row.at[i], sum);
  return rms_scale_of(joined_row_sum(sum), n, args.pass.epsilon);
}
float scale_of_head() {
  const int dim = args.pass.head_dim;
  float sum = 0.0;
  for (int d = thread(); d < dim; d += THREADS) sum = fused(x[d], x[d], sum);
  return rms_scale_of(joined_row_sum(sum), dim, args.pass.epsilon);
}

void load_head(Floats from) {
  const int dim = args.pass.head_dim;
  for (int d = thread(); d < dim; d += THREADS) x[d] = from.at[d];
}
void norm_head(float scale, Floats weight, int first) {
  const int dim = args.pass.head_dim;
  for (int d = thread(); d < dim; d += THREADS) x[d] = x[d] * scale * weight.at[first + d];
}
void clip_head() {
  const int dim = args.pass.head_dim;
  const float most = args.pass.clip;
  if (most == 0.0) return;
  for (int d = thread(); d < dim; d += THREADS) x[d] = vf_min(vf_max(x[d], -most), most);
}

void rotate_head(int position) {
  const int count = args.pass.half_rotary;
  const bool interleaved = is(args.pass.interleaved);
  const int first = interleaved ? 2 : 1, second = interleaved ? 1 : count;
  Floats cosines = Floats(advanced(uvec2(args.pass.cos), uint(position), 4u * count));
  Floats sines = Floats(advanced(uvec2(args.pass.sin), uint(position), 4u * count));
  for (int i = thread(); i < count; i += THREADS) {
    const float a = x[first * i], b = x[first * i + second], c = cosines.at[i], s = sines.at[i];
    x[first * i] = fused(-b, s, a * c);
    x[first * i + second] = fused(a, s, b * c);
  }
}

// Head number `index` of `heads` that lie behind `row`; they may share a norm of the row. The block meets behind it.
void norm_and_rotate(Floats row, uvec2 head, int heads, int index, Floats weight, bool of_row, int position) {
  const int dim = args.pass.head_dim;
  const bool is_normed = !is_null(uvec2(weight)), comes_later = is(args.pass.norms_after_rotation);
  load_head(Floats(head));
  if (is_normed && !comes_later) {
    const float scale = of_row ? scale_of_row(row, heads * dim) : scale_of_head();
    norm_head(scale, weight, of_row ? index * dim : 0);
  }
  clip_head();
  meet();
  if (args.pass.half_rotary > 0) rotate_head(position);
  meet();
  if (is_normed && comes_later) {
    norm_head(scale_of_head(), weight, 0);
    meet();
  }
}

void prepare_query(int row, int index, int position) {
  const int dim = args.pass.head_dim, kv = index / args.pass.group;
  norm_and_rotate(Floats(query_of(row, 0)), query_of(row, index), args.pass.heads, index, args.pass.q_norm,
                  is(args.pass.q_norm_of_row), position);
  const bool is_scaled = !is_null(uvec2(args.pass.query_scale));
  const bool is_balanced = turns_keys() && !is_null(uvec2(args.pass.key_balance));
  for (int d = thread(); d < dim; d += THREADS) {
    float value = x[d] * args.pass.scale;
    if (is_scaled) value *= args.pass.query_scale.at[position];
    if (is_balanced) value *= args.pass.key_balance.at[kv * dim + d];
    x[d] = value;
  }
  meet();
  if (turns_keys()) hadamard();
  const int query = query_index(kv, row) + index % args.pass.group;
  if (has_query_codes()) {
    round_query(query);
    return;
  }
  const int padded = args.pass.padded_dim;
  Floats to = Floats(advanced(uvec2(args.pass.queries), uint(query), 4u * padded));
  for (int d = thread(); d < padded; d += THREADS) to.at[d] = d < dim ? x[d] : 0.0;
}

void append_key(int row, int kv, int position, int place) {
  const int dim = args.pass.head_dim;
  const uvec2 keys = query_of(row, args.pass.heads);
  norm_and_rotate(Floats(keys), advanced(keys, uint(kv), 4u * dim), args.pass.kv_heads, kv, args.pass.k_norm,
                  is(args.pass.k_norm_of_row), position);
  if (turns_keys()) {
    const bool has_centre = !is_null(uvec2(args.pass.key_centre)), is_balanced = !is_null(uvec2(args.pass.key_balance));
    for (int d = thread(); d < dim; d += THREADS) {
      float key = x[d];
      if (has_centre) key -= args.pass.key_centre.at[kv * dim + d];
      if (is_balanced) key = div_exact(key, args.pass.key_balance.at[kv * dim + d]);
      x[d] = key;
    }
    meet();
    hadamard();
  }
  const bool is_fed_back = key_coding() == kCodedNibbles && !is_null(uvec2(args.pass.key_feedback));
  if (is_fed_back) {
    append_fed_back(key_plane(kv), kv, place);
  } else {
    append_head(key_plane(kv), key_coding(), place);
  }
}

void append_value(int row, int kv, int place) {
  const int dim = args.pass.head_dim, first = is(args.pass.values_are_keys) ? 0 : args.pass.kv_heads;
  load_head(Floats(advanced(query_of(row, args.pass.heads), uint(first + kv), 4u * dim)));
  if (is(args.pass.norms_values)) {
    const float scale = scale_of_head();
    for (int d = thread(); d < dim; d += THREADS) x[d] *= scale;
  }
  clip_head();
  meet();
  if (turns_values()) hadamard();
  append_head(value_plane(kv), value_coding(), place);
}

void main() {
  const int row = block_x(), index = block_y(), past = args.past.at[0];
  const int position = past + args.pass.depths.at[row];
  if (index < args.pass.heads) {
    prepare_query(row, index, position);
    return;
  }
  const int place = args.pass.row_map.at[past + low(args.pass.done) + row], kv = index - args.pass.heads;
  if (kv < args.pass.kv_heads) {
    append_key(row, kv, position, place);
  } else {
    append_value(row, kv - args.pass.kv_heads, place);
  }
}
