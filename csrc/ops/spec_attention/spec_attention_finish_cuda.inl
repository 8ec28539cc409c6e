// What is known after the spans of a query, joined in ascending order, and its result: a block of threads has a query,
// and a thread some of its dimensions.

struct FinishShared {
  float head[kMaxHeadDim];
  // Of some spans.
  float peaks[kFinishThreads], sums[kFinishThreads], old_factors[kFinishThreads], new_factors[kFinishThreads];
};

constexpr int kFinishDims = kMaxHeadDim / kFinishThreads;  // of a thread

// Joins spans [0, spans) of a query; `outputs` are its dimensions thread(), thread() + kFinishThreads ...
EDGE_RT_DEVICE Joined join_spans(const AttentionArgs& args, int64_t query, int first, int spans, FinishShared* shared,
                                 float (&outputs)[kFinishDims]) {
  const AttentionPass& pass = args.pass;
  const int64_t queries = pass.rows * pass.heads;
  Joined total;
  for (int begin = 0; begin < spans; begin += kFinishThreads) {
    const int count = spans - begin < kFinishThreads ? spans - begin : kFinishThreads;
    const int64_t at = (first + begin) * queries + query;
    barrier();
    if (thread() < count) {
      shared->peaks[thread()] = args.states.peak[at + thread() * queries];
      shared->sums[thread()] = args.states.sum[at + thread() * queries];
    }
    barrier();
    if (thread() < count) {
      // The factors of a span need the largest score before it alone.
      Joined joined;
      joined.peak = total.peak;
      for (int i = 0; i < thread(); ++i) joined.peak = vf_max(joined.peak, shared->peaks[i]);
      joined.add_part(shared->peaks[thread()], 0.0f, &shared->old_factors[thread()], &shared->new_factors[thread()]);
    }
    barrier();
    for (int i = 0; i < count; ++i) {
      const float old_factor = shared->old_factors[i], new_factor = shared->new_factors[i];
      total.peak = vf_max(total.peak, shared->peaks[i]);
      total.sum = fma(shared->sums[i], new_factor, mul(total.sum, old_factor));
      if (shared->peaks[i] == kNoScore) continue;
      const float* from = args.states.output + (at + i * queries) * pass.padded_dim;
      EDGE_RT_UNROLL(8)
      for (int k = 0; k < kFinishDims; ++k) {
        const int d = thread() + k * kFinishThreads;
        if (d < pass.head_dim) outputs[k] = fma(from[d], new_factor, mul(outputs[k], old_factor));
      }
    }
  }
  return total;
}

// In place, by the whole block.
EDGE_RT_DEVICE void turn_back(int dim, float* x) {
  const int block = dim & -dim;
  const float factor = sqrt(div(1.0f, from_int(block)));
  for (int d = thread(); d < dim; d += kFinishThreads) x[d] = mul(x[d], factor);
  for (int distance = 1; distance < block; distance *= 2) {
    barrier();
    for (int i = thread(); i < dim / 2; i += kFinishThreads) butterfly(x, distance, i);
  }
  barrier();
}

EDGE_RT_DEVICE void finish(const AttentionArgs& args, FinishShared* shared) {
  const AttentionPass& pass = args.pass;
  const int64_t row = block_x();
  const int head = block_y(), kv = head / pass.group;
  const int64_t query = pass.query_index(kv, row) + head % pass.group;
  float outputs[kFinishDims] = {};
  Joined total;
  if (args.folds) {
    total.peak = args.states.peak[query];
    total.sum = args.states.sum[query];
    EDGE_RT_UNROLL(8)
    for (int k = 0; k < kFinishDims; ++k) {
      const int d = thread() + k * kFinishThreads;
      if (d < pass.head_dim) outputs[k] = args.states.output[query * pass.padded_dim + d];
    }
  } else {
    const int position = *args.past + pass.depths[row], base = first_seen(pass, *args.past) / kKvSpan;
    const int first = first_seen(pass, position) / kKvSpan;
    total = join_spans(args, query, first - base, position / kKvSpan + 1 - first, shared, outputs);
  }
  float factor = 1.0f, sum = total.sum;
  if (pass.sinks != nullptr) {
    const float sink = pass.sinks[head], peak = total.peak > sink ? total.peak : sink;
    factor = vf_exp(vf_sub(total.peak, peak));
    sum = fma(sum, factor, vf_exp(vf_sub(sink, peak)));
  }
  EDGE_RT_UNROLL(8)
  for (int k = 0; k < kFinishDims; ++k) {
    const int d = thread() + k * kFinishThreads;
    if (d < pass.head_dim) shared->head[d] = div(mul(outputs[k], factor), sum);
  }
  if (turns_values(pass)) turn_back(pass.head_dim, shared->head);
  float* y = pass.y + (row * pass.heads + head) * pass.head_dim;
  const float* gate = pass.gate_of(row, head);
  for (int d = thread(); d < pass.head_dim; d += kFinishThreads) {
    y[d] = pass.has_gates ? mul(shared->head[d], vf_sigmoid(gate[d])) : shared->head[d];
  }
}
