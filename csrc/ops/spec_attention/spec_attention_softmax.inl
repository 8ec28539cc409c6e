// Scores to weights within a chunk, chunks to a row's result.

// Puts `value` where positions of the touched tiles do not count.
inline void fill_edges(float* scores, int first, int last, float value) {
  for (int j = first / kKvTile * kKvTile; j < first; ++j) scores[j] = value;
  for (int j = last; j % kKvTile != 0; ++j) scores[j] = value;
}

// -0 for scores that count, which changes none of them, then kNoScore; read from lane 16 - n on, n of them count.
alignas(64) constexpr float kEdge[32] = {
    -0.0f,    -0.0f,    -0.0f,    -0.0f,    -0.0f,    -0.0f,    -0.0f,    -0.0f,    -0.0f,    -0.0f,    -0.0f,
    -0.0f,    -0.0f,    -0.0f,    -0.0f,    -0.0f,    kNoScore, kNoScore, kNoScore, kNoScore, kNoScore, kNoScore,
    kNoScore, kNoScore, kNoScore, kNoScore, kNoScore, kNoScore, kNoScore, kNoScore, kNoScore, kNoScore};

// The scores of a tile of which the first n count, 0 < n < 16.
EDGE_RT_INLINE VF edge_scores(const float* scores, int n) {
  return vf_add(vf_load_n(scores, n), vf_load(kEdge + 16 - n));
}

inline void cap_scores(float softcap, int begin, int end, float* scores) {
  const VF cap = vf_set1(softcap);
  for (int j = begin; j < end; j += 16) {
    vf_store(scores + j, vf_mul(cap, vf_tanh(vf_div(vf_load(scores + j), cap))));
  }
}

// Readies the scores of positions [first, last) and returns the largest. That, and the weights, are loops of their own
// over all queries: chains of dependent steps of many queries then overlap.
inline float peak_of_scores(const AttentionPass& pass, int first, int last, float* scores) {
  const int begin = first / kKvTile * kKvTile;
  if (pass.softcap > 0) cap_scores(pass.softcap, begin, last, scores);
  const int whole = last / kKvTile * kKvTile;
  if (first == begin) {
    // The usual case, without single floats: vectors would have to wait for those.
    VF largest = whole > begin ? vf_load(scores + begin) : edge_scores(scores + begin, last - begin);
    for (int j = begin + 16; j < whole; j += 16) largest = vf_max(largest, vf_load(scores + j));
    if (whole > begin && last > whole) largest = vf_max(largest, edge_scores(scores + whole, last - whole));
    return vf_hmax(largest);
  }
  fill_edges(scores, first, last, kNoScore);
  VF largest = vf_load(scores + begin);
  for (int j = begin + 16; j < last; j += 16) largest = vf_max(largest, vf_load(scores + j));
  return vf_hmax(largest);
}

// Turns scores into weights; returns their sum.
inline float weights_of_scores(int first, int last, float peak, float* scores) {
  const VF shift = vf_set1(peak);
  VF sum = vf_zero();
  const int begin = first / kKvTile * kKvTile;
  if (first == begin) {
    for (int j = begin; j < last; j += 16) {
      VF weight = vf_exp(vf_sub(vf_load(scores + j), shift));
      vf_store(scores + j, weight);
      if (last - j < 16) {
        weight = vf_load_n(scores + j, last - j);
        vf_store(scores + j, weight);
      }
      sum = vf_add(sum, weight);
    }
    return vf_sum(sum);
  }
  for (int j = begin; j < last; j += 16) vf_store(scores + j, vf_exp(vf_sub(vf_load(scores + j), shift)));
  fill_edges(scores, first, last, 0.0f);
  for (int j = begin; j < last; j += 16) sum = vf_add(sum, vf_load(scores + j));
  return vf_sum(sum);
}

// The same for queries all of whose scores count, 16 at a time.
inline void weigh_whole_chunk(const AttentionPass& pass, int64_t queries, float* scores, const AttentionState& out) {
  for (int64_t begin = 0; begin < queries; begin += 16, scores += 16 * kKvChunk) {
    const int n = queries - begin < 16 ? static_cast<int>(queries - begin) : 16;
    VF all[16];
    for (int i = 0; i < n; ++i) {
      float* row = scores + i * kKvChunk;
      if (pass.softcap > 0) cap_scores(pass.softcap, 0, kKvChunk, row);
      const VF low = vf_max(vf_load(row), vf_load(row + 16)), high = vf_max(vf_load(row + 32), vf_load(row + 48));
      all[i] = vf_max(low, high);
    }
    for (int i = n; i < 16; ++i) all[i] = vf_zero();
    vf_store_n(out.peak + begin, vf_hmax16(all), n);
    for (int i = 0; i < n; ++i) {
      const VF shift = vf_set1(out.peak[begin + i]);
      float* row = scores + i * kKvChunk;
      VF sum = vf_zero();
      for (int j = 0; j < kKvChunk; j += 16) {
        const VF weight = vf_exp(vf_sub(vf_load(row + j), shift));
        vf_store(row + j, weight);
        sum = vf_add(sum, weight);
      }
      all[i] = sum;
    }
    vf_store_n(out.sum + begin, vf_sum16(all), n);
  }
}

inline void begin_state(int padded_dim, int64_t queries, const AttentionState& state) {
  for (int64_t i = 0; i < queries; ++i) {
    state.peak[i] = kNoScore;
    state.sum[i] = 0.0f;
  }
  std::memset(state.output, 0, static_cast<size_t>(queries * padded_dim) * 4);
}

// Joins peaks and sums of n queries from `begin` on, and gives the factors of their outputs.
EDGE_RT_INLINE void join_sums(int64_t begin, int n, const AttentionState& chunk, const AttentionState& state,
                              VF* old_factor, VF* new_factor) {
  const VF before = vf_load_n(state.peak + begin, n), now = vf_load_n(chunk.peak + begin, n);
  const VF peak = vf_max(before, now);
  const VF a = vf_exp(vf_sub(before, peak)), b = vf_exp(vf_sub(now, peak));
  vf_store_n(state.peak + begin, peak, n);
  vf_store_n(state.sum + begin, vf_fma(vf_load_n(chunk.sum + begin, n), b, vf_mul(vf_load_n(state.sum + begin, n), a)),
             n);
  *old_factor = a;
  *new_factor = b;
}

// The same for all queries; the factors take the place of the chunk's peaks and sums.
inline void join_all_sums(int64_t queries, const AttentionState& chunk, const AttentionState& state) {
  for (int64_t begin = 0; begin < queries; begin += 16) {
    const int n = queries - begin < 16 ? static_cast<int>(queries - begin) : 16;
    VF a, b;
    join_sums(begin, n, chunk, state, &a, &b);
    vf_store_n(chunk.peak + begin, a, n);
    vf_store_n(chunk.sum + begin, b, n);
  }
}

inline void fold_chunk(int padded_dim, int64_t queries, const AttentionState& chunk, const AttentionState& state) {
  for (int64_t begin = 0; begin < queries; begin += 16) {
    const int n = queries - begin < 16 ? static_cast<int>(queries - begin) : 16;
    VF a, b;
    join_sums(begin, n, chunk, state, &a, &b);
    float old_factor[16], new_factor[16];
    vf_store(old_factor, a);
    vf_store(new_factor, b);
    for (int i = 0; i < n; ++i) {
      if (chunk.peak[begin + i] == kNoScore) continue;  // not seen by this row: not even the sign of a zero changes
      const VF x = vf_set1(old_factor[i]), y = vf_set1(new_factor[i]);
      float* to = state.output + (begin + i) * padded_dim;
      const float* from = chunk.output + (begin + i) * padded_dim;
      for (int d = 0; d < padded_dim; d += 16) {
        vf_store(to + d, vf_fma(vf_load(from + d), y, vf_mul(vf_load(to + d), x)));
      }
    }
  }
}

inline void multiply_by_gate(const AttentionPass& pass, int64_t row, int head, float* y) {
  const float* gate = pass.gate_of(row, head);
  for (int d = 0; d < pass.head_dim; d += 16) {
    const int n = pass.head_dim - d < 16 ? pass.head_dim - d : 16;
    vf_store_n(y + d, vf_mul(vf_load_n(y + d, n), vf_sigmoid(vf_load_n(gate + d, n))), n);
  }
}

inline void finish_rows(const AttentionPass& pass, int kv, int64_t begin, int64_t end, const AttentionState& state) {
  for (int64_t i = 0; i < (end - begin) * pass.group; ++i) {
    const int64_t row = begin + i / pass.group;
    const int head = kv * pass.group + static_cast<int>(i % pass.group);
    float factor = 1.0f, sum = state.sum[i];
    if (pass.sinks != nullptr) {
      const float sink = pass.sinks[head], peak = state.peak[i] > sink ? state.peak[i] : sink;
      factor = s_exp(state.peak[i] - peak);
      sum = s_fma(sum, factor, s_exp(sink - peak));
    }
    float* y = pass.y + (row * pass.heads + head) * pass.head_dim;
    float turned[kMaxHeadDim];
    const bool turns = pass.form().turns_values;
    for (int d = 0; d < pass.head_dim; d += 16) {
      const VF value = vf_mul(vf_load(state.output + i * pass.padded_dim + d), vf_set1(factor));
      const VF result = vf_div(value, vf_set1(sum));
      if (turns) {
        vf_store(turned + d, result);
      } else {
        vf_store_n(y + d, result, pass.head_dim - d < 16 ? pass.head_dim - d : 16);
      }
    }
    if (turns) {
      hadamard(turned, pass.head_dim);
      std::memcpy(y, turned, static_cast<size_t>(pass.head_dim) * 4);
    }
    if (pass.has_gates) multiply_by_gate(pass, row, head, y);
  }
}
