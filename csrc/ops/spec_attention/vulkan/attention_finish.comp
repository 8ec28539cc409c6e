#version 460
// A query's result: its spans, joined in ascending order, its sink, and the gate. A block has a query, and a thread some
// of its dimensions. Grid: rows and heads.
#define THREADS 128
#include "gpu/vulkan/kernel.glsl"
#include "gpu/vulkan/lane_math.glsl"
#include "ops/spec_attention/vulkan/attention.glsl"
#include "ops/spec_attention/vulkan/attention_join.glsl"
#include "ops/spec_attention/vulkan/attention_turn.glsl"

const int kDims = kMaxHeadDim / THREADS;  // of a thread: thread(), thread() + THREADS ...

// Of some spans.
shared float peaks[THREADS], sums[THREADS];
shared vec2 factors[THREADS];

// Joins spans [first, first + spans).
Joined join_spans(int query, int first, int spans, inout float outputs[kDims]) {
  const int queries = low(args.pass.rows) * args.pass.heads, dim = args.pass.head_dim, padded = args.pass.padded_dim;
  Joined total = nothing_joined();
  for (int begin = 0; begin < spans; begin += THREADS) {
    const int count = min(spans - begin, THREADS), at = (first + begin) * queries + query;
    meet();
    if (thread() < count) {
      peaks[thread()] = args.states.peak.at[at + thread() * queries];
      sums[thread()] = args.states.sum.at[at + thread() * queries];
    }
    meet();
    if (thread() < count) {
      // The factors of a span need the largest score before it alone.
      Joined before = total;
      for (int i = 0; i < thread(); ++i) before.peak = vf_max(before.peak, peaks[i]);
      factors[thread()] = add_part(before, peaks[thread()], 0.0);
    }
    meet();
    for (int i = 0; i < count; ++i) {
      const float before = factors[i].x, now = factors[i].y;
      total.peak = vf_max(total.peak, peaks[i]);
      total.sum = fused(sums[i], now, total.sum * before);
      if (peaks[i] == kNoScore) continue;
      Floats from = Floats(advanced(uvec2(args.states.output_), uint(at + i * queries), 4u * padded));
      [[unroll]] for (int k = 0; k < kDims; ++k) {
        const int d = thread() + k * THREADS;
        if (d < dim) outputs[k] = fused(from.at[d], now, outputs[k] * before);
      }
    }
  }
  return total;
}

void main() {
  const int row = block_x(), head = block_y(), group = args.pass.group, kv = head / group, dim = args.pass.head_dim;
  const int query = query_index(kv, row) + head % group;
  float outputs[kDims];
  [[unroll]] for (int k = 0; k < kDims; ++k) outputs[k] = 0.0;
  Joined total;
  if (is(args.folds)) {
    total.peak = args.states.peak.at[query];
    total.sum = args.states.sum.at[query];
    Floats from = Floats(advanced(uvec2(args.states.output_), uint(query), 4u * args.pass.padded_dim));
    [[unroll]] for (int k = 0; k < kDims; ++k) {
      const int d = thread() + k * THREADS;
      if (d < dim) outputs[k] = from.at[d];
    }
  } else {
    const int past = args.past.at[0], position = past + args.pass.depths.at[row], base = first_seen(past) / kKvSpan;
    const int first = first_seen(position) / kKvSpan;
    total = join_spans(query, first - base, position / kKvSpan + 1 - first, outputs);
  }
  float factor = 1.0, sum = total.sum;
  if (!is_null(uvec2(args.pass.sinks))) {
    const float sink = args.pass.sinks.at[head], peak = total.peak > sink ? total.peak : sink;
    factor = vf_exp(total.peak - peak);
    sum = fused(sum, factor, vf_exp(sink - peak));
  }
  [[unroll]] for (int k = 0; k < kDims; ++k) {
    const int d = thread() + k * THREADS;
    if (d < dim) x[d] = div_exact(outputs[k] * factor, sum);
  }
  if (turns_values()) hadamard();
  Floats y = Floats(advanced(uvec2(args.pass.y), uint(row * args.pass.heads + head), 4u * dim));
  const bool has_gates = is(args.pass.has_gates);
  Floats gate = Floats(advanced(query_of(row, head), uint(dim), 4u));
  for (int d = thread(); d < dim; d += THREADS) y.at[d] = has_gates ? x[d] * vf_sigmoid(gate.at[d]) : x[d];
}
