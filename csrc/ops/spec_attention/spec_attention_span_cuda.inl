// A block's queries and the keys of a span: each warp has a chunk, whose results are joined in ascending order.

struct AttendShared {
  union {
    alignas(16) uint32_t queries[kQueryWords];
    float outputs[kSpanChunks][kAttendQueries][kSlice];  // of chunks, once there are weights
  };
  alignas(16) float weights[kSpanChunks][kAttendQueries][kKvChunk];  // scores at first
  int physical[kSpanChunks][kKvChunk];
  int positions[kAttendQueries];  // -1: no query
  float peaks[kSpanChunks][kAttendQueries], sums[kSpanChunks][kAttendQueries];
  // What sums so far, and those of a chunk, are multiplied by when they join; then the same of the span.
  float old_factors[kSpanChunks + 1][kAttendQueries], new_factors[kSpanChunks + 1][kAttendQueries];
  float span_peaks[kAttendQueries];
};

// Joins a part to what came before it: the sums here, the outputs by the factors that it returns.
struct Joined {
  float peak = kNoScore, sum = 0.0f;

  EDGE_RT_DEVICE void add_part(float part_peak, float part_sum, float* old_factor, float* new_factor) {
    const float before = peak;
    peak = vf_max(before, part_peak);
    *old_factor = vf_exp(vf_sub(before, peak));
    *new_factor = vf_exp(vf_sub(part_peak, peak));
    sum = fma(part_sum, *new_factor, mul(sum, *old_factor));
  }
};

// Some queries of a kv head, numbered (row, head within the group).
struct QueryBlock {
  int kv;
  int64_t begin;
  int count;
  int past;
  int low, high;  // positions of its rows
};

EDGE_RT_DEVICE int first_seen(const AttentionPass& pass, int position) {
  return static_cast<int>(pass.first_seen(position));
}

template <KvCoding Key, KvCoding Value>
struct SpanWork {
  const AttentionArgs& args;
  const AttentionPass& pass;
  const QueryBlock& block;
  AttendShared* shared;

  EDGE_RT_DEVICE int64_t first_query() const { return block.kv * pass.rows * pass.group + block.begin; }
  EDGE_RT_DEVICE BlockQueries queries() const { return {shared->queries, args.block_queries}; }

  EDGE_RT_DEVICE void load_queries() const {
    const int64_t first = first_query();
    if constexpr (Key == kCodedF32 || Key == kCodedF16) {
      float* to = reinterpret_cast<float*>(shared->queries);
      const float* from = pass.queries + first * pass.padded_dim;
      EDGE_RT_UNROLL(1)
      for (int i = thread(); i < block.count * pass.padded_dim; i += kAttendThreads) to[i] = from[i];
    } else {
      const int groups = pass.groups(), words = 8 * groups, stride = padded_codes(pass.head_dim) / 4;
      const uint32_t* from = reinterpret_cast<const uint32_t*>(pass.query_codes) + first * stride;
      EDGE_RT_UNROLL(1)
      for (int i = thread(); i < block.count * words; i += kAttendThreads) {
        shared->queries[i] = from[i / words * stride + i % words];
      }
      EDGE_RT_UNROLL(1)
      for (int i = thread(); i < block.count * groups; i += kAttendThreads) {
        queries().scales(pass, 0)[i] = bits_of_float(pass.query_scales[first * groups + i]);
        queries().sums(pass, 0)[i] = static_cast<uint32_t>(pass.query_sums[first * groups + i]);
      }
    }
    barrier();
  }

  // The block's rows find the same keys at every position of the chunk.
  EDGE_RT_DEVICE bool is_shared(int start) const { return args.tree[0] != 0 || start + kKvChunk <= block.past; }

  // Physical rows of a chunk's positions, for the row of a query if they are not shared. Positions that are not seen
  // have a row that may be read.
  EDGE_RT_DEVICE void map_chunk(int start, int query) const {
    warp_barrier();
    const int seen = first_seen(pass, block.past);
    const bool same = is_shared(start);
    const int64_t row = (block.begin + query) / pass.group, end = pass.done + pass.rows;
    EDGE_RT_UNROLL(1)
    for (int j = lane(); j < kKvChunk; j += 32) {
      const int at = start + j < seen ? seen : start + j;
      int64_t node = at - block.past;
      if (same) {
        if (node >= end) node = end - 1;
      } else if (node >= 0) {
        const int64_t wanted = node;
        node = pass.done + row;
        EDGE_RT_UNROLL(1)
        for (int64_t depth = pass.depths[row]; depth > wanted; --depth) node = pass.parents[node];
      }
      shared->physical[warp()][j] = pass.row_map[block.past + node];
    }
    warp_barrier();
  }

  template <int Queries>
  EDGE_RT_DEVICE void score_keys(const Keys<Key>& keys, int first, Seen all) const {
    EDGE_RT_UNROLL(1)
    for (int j = lane(); j < kKvChunk; j += 32) {
      if (!all.has(j)) continue;
      float scores[Queries];
      keys.template score<Queries>(queries(), first, shared->physical[warp()][j], scores);
      EDGE_RT_UNROLL(8)
      for (int i = 0; i < Queries; ++i) shared->weights[warp()][first + i][j] = scores[i];
    }
  }

  // Calls use(query) for each query behind its row's map of the chunk.
  template <class Use>
  EDGE_RT_DEVICE void visit_queries(int start, const Use& use) const {
    int64_t mapped = -1;
    EDGE_RT_UNROLL(1)
    for (int query = 0; query < block.count; ++query) {
      const int64_t row = (block.begin + query) / pass.group;
      if (row != mapped) map_chunk(start, query);
      mapped = row;
      use(query);
    }
  }

  // What some row of the block sees of a chunk, from the first one's first to the last one's last; and what all do.
  EDGE_RT_DEVICE Seen some_see(int start) const {
    Seen seen(pass, block.low, start);
    if (pass.window > 0) seen.first = Seen::clamp(block.low + 1 - static_cast<int>(pass.window) - start);
    seen.last = Seen::clamp(block.high + 1 - start);
    return seen;
  }
  EDGE_RT_DEVICE Seen all_see(int start) const {
    Seen seen(pass, block.low, start);
    if (pass.window > 0) seen.first = Seen::clamp(block.high + 1 - static_cast<int>(pass.window) - start);
    return seen;
  }

  EDGE_RT_DEVICE void score_chunk(int start) const {
    const Keys<Key> keys(pass, block.kv);
    if (is_shared(start)) {
      map_chunk(start, 0);
      constexpr int kStep = Keys<Key>::kQueries;
      EDGE_RT_UNROLL(1)
      for (int query = 0; query < block.count; query += kStep) score_keys<kStep>(keys, query, some_see(start));
    } else {
      visit_queries(start, [&](int query) { score_keys<1>(keys, query, Seen(pass, shared->positions[query], start)); });
    }
    warp_barrier();
  }

  // Scores to weights, their largest and their sum: a half of the warp has a query, a lane the positions of its number
  // mod 16.
  EDGE_RT_DEVICE void weigh_scores(int start) const {
    EDGE_RT_UNROLL(1)
    for (int pair = 0; pair < block.count; pair += 2) {
      const int query = pair + lane() / 16;
      const bool exists = query < block.count;
      const Seen seen(pass, exists ? shared->positions[query] : -1, start);
      float scores[kKvTiles], largest = kNoScore;
      EDGE_RT_UNROLL(8)
      for (int t = 0; t < kKvTiles; ++t) {
        const int j = t * kKvTile + vector_lane();
        scores[t] = kNoScore;
        if (!seen.has(j)) continue;
        scores[t] = shared->weights[warp()][query][j];
        if (pass.softcap > 0) scores[t] = mul(pass.softcap, vf_tanh(div(scores[t], pass.softcap)));
        largest = vf_max(largest, scores[t]);
      }
      largest = vf_hmax(largest);
      float sum = 0.0f;
      EDGE_RT_UNROLL(8)
      for (int t = 0; t < kKvTiles; ++t) {
        const int j = t * kKvTile + vector_lane();
        if (!seen.has(j)) continue;
        const float weight = vf_exp(vf_sub(scores[t], largest));
        shared->weights[warp()][query][j] = weight;
        sum = add(sum, weight);
      }
      sum = vf_sum(sum);
      if (exists && vector_lane() == 0) {
        shared->peaks[warp()][query] = largest;
        shared->sums[warp()][query] = sum;
      }
    }
  }

  EDGE_RT_DEVICE void weigh_values(int start, int slice) const {
    const Values<Value> values(pass, block.kv, slice);
    const auto add_queries = [&](auto number, int query, Seen all, Seen whole) {
      weigh<Value, decltype(number)::value>(pass, values, shared->physical[warp()], start, shared->positions + query,
                                            all, whole, shared->weights[warp()] + query,
                                            shared->outputs[warp()] + query);
    };
    if (!is_shared(start)) {
      visit_queries(start, [&](int query) {
        const Seen seen(pass, shared->positions[query], start);
        add_queries(std::integral_constant<int, 1>{}, query, seen, seen);
      });
      return;
    }
    EDGE_RT_UNROLL(1)
    for (int query = 0; query < block.count; query += 8) {
      if (block.count - query > 4) {
        add_queries(std::integral_constant<int, 8>{}, query, some_see(start), all_see(start));
      } else {
        add_queries(std::integral_constant<int, 4>{}, query, some_see(start), all_see(start));
      }
    }
  }

  // The warp's chunk.
  EDGE_RT_DEVICE void attend_chunk(int start) const {
    const Seen seen = some_see(start);
    if (seen.first < seen.last) {
      score_chunk(start);
      weigh_scores(start);
    } else if (lane() < kAttendQueries) {
      shared->peaks[warp()][lane()] = kNoScore;
      shared->sums[warp()][lane()] = 0.0f;
    }
    barrier();
  }

  // Joins the chunks' sums; `total` is what came before the span and is what the thread knows of query number thread().
  EDGE_RT_DEVICE void join_sums(Joined* total) const {
    const int query = thread();
    if (query >= block.count) return;
    Joined span;
    for (int c = 0; c < kSpanChunks; ++c) {
      span.add_part(shared->peaks[c][query], shared->sums[c][query], &shared->old_factors[c][query],
                    &shared->new_factors[c][query]);
    }
    shared->span_peaks[query] = span.peak;
    if (!args.folds) {
      *total = span;
      return;
    }
    total->add_part(span.peak, span.sum, &shared->old_factors[kSpanChunks][query],
                    &shared->new_factors[kSpanChunks][query]);
  }

  // Joins a slice of the chunks' outputs, and writes it to `to`, or joins it to what is there.
  EDGE_RT_DEVICE void join_outputs(int slice, float* to, bool is_first) const {
    const int width = pass.padded_dim - slice < kSlice ? pass.padded_dim - slice : kSlice;
    EDGE_RT_UNROLL(1)
    for (int i = thread(); i < block.count * kSlice; i += kAttendThreads) {
      const int query = i / kSlice, d = i % kSlice;
      if (d >= width) continue;
      float sum = 0.0f;
      for (int c = 0; c < kSpanChunks; ++c) {
        if (shared->peaks[c][query] == kNoScore) continue;  // not seen: not even the sign of a zero changes
        sum = fma(shared->outputs[c][query][d], shared->new_factors[c][query], mul(sum, shared->old_factors[c][query]));
      }
      float& out = to[static_cast<int64_t>(query) * pass.padded_dim + slice + d];
      if (args.folds) {
        const float before = is_first ? 0.0f : out;
        const bool is_seen = shared->span_peaks[query] != kNoScore;
        out = is_seen ? fma(sum, shared->new_factors[kSpanChunks][query],
                            mul(before, shared->old_factors[kSpanChunks][query]))
                      : before;
      } else {
        out = sum;
      }
    }
  }

  // A whole span; `to` are the outputs of the block's queries.
  EDGE_RT_DEVICE void attend_span(int span, bool is_first, float* to, Joined* total) const {
    const int start = (span * kSpanChunks + warp()) * kKvChunk;
    load_queries();
    attend_chunk(start);
    const Seen seen = some_see(start);
    join_sums(total);
    EDGE_RT_UNROLL(1)
    for (int slice = 0; slice < pass.padded_dim; slice += kSlice) {
      if (seen.first < seen.last) weigh_values(start, slice);
      barrier();
      join_outputs(slice, to, is_first);
      barrier();
    }
  }
};

template <KvCoding Key, KvCoding Value>
EDGE_RT_DEVICE void attend(const AttentionArgs& args, AttendShared* shared) {
  const AttentionPass& pass = args.pass;
  const int64_t queries = pass.rows * pass.group;  // of a kv head
  QueryBlock block;
  block.kv = block_x() % pass.kv_heads;
  block.begin = static_cast<int64_t>(block_x() / pass.kv_heads) * args.block_queries;
  // The last rows see the most keys: they are begun first.
  if (args.folds) block.begin = (queries - 1) / args.block_queries * args.block_queries - block.begin;
  block.count =
      queries - block.begin < args.block_queries ? static_cast<int>(queries - block.begin) : args.block_queries;
  block.past = *args.past;
  if (thread() < kAttendQueries) {
    const bool exists = thread() < block.count;
    shared->positions[thread()] = exists ? block.past + pass.depths[(block.begin + thread()) / pass.group] : -1;
  }
  barrier();
  block.low = block.high = shared->positions[0];
  for (int i = 1; i < block.count; ++i) {
    block.low = shared->positions[i] < block.low ? shared->positions[i] : block.low;
    block.high = shared->positions[i] > block.high ? shared->positions[i] : block.high;
  }
  const int first = first_seen(pass, block.low) / kKvSpan, last = block.high / kKvSpan;
  const int base = args.folds ? first : first_seen(pass, block.past) / kKvSpan + block_y();
  if (base < first || base > last) return;
  const SpanWork<Key, Value> work{args, pass, block, shared};
  const int64_t at = (args.folds ? 0 : block_y() * pass.kv_heads * queries) + work.first_query();
  float* outputs = args.states.output + at * pass.padded_dim;
  Joined total;
  EDGE_RT_UNROLL(1)
  for (int span = base; span <= (args.folds ? last : base); ++span)
    work.attend_span(span, span == base, outputs, &total);
  if (thread() < block.count) {
    args.states.peak[at + thread()] = total.peak;
    args.states.sum[at + thread()] = total.sum;
  }
}
