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

// Readies the scores of positions [first, last) and returns the largest. That, and the weights, are loops of their own
// over all queries: chains of dependent steps of many queries then overlap.
inline float peak_of_scores(const AttentionPass& pass, int first, int last, float* scores) {
  const int begin = first / kKvTile * kKvTile;
  if (pass.softcap > 0) {
    const VF cap = vf_set1(pass.softcap);
    for (int j = begin; j < last; j += 16) {
      vf_store(scores + j, vf_mul(cap, vf_tanh(vf_div(vf_load(scores + j), cap))));
    }
  }
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
  if (last - first == kKvChunk) {
    for (int t = 0; t < kKvTiles; ++t) {
      const VF weight = vf_exp(vf_sub(vf_load(scores + 16 * t), shift));
      vf_store(scores + 16 * t, weight);
      sum = vf_add(sum, weight);
    }
    return vf_sum(sum);
  }
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

inline void begin_state(int padded_dim, int64_t queries, const AttentionState& state) {
  for (int64_t i = 0; i < queries; ++i) {
    state.peak[i] = kNoScore;
    state.sum[i] = 0.0f;
  }
  std::memset(state.output, 0, static_cast<size_t>(queries * padded_dim) * 4);
}

inline void fold_chunk(int padded_dim, int64_t queries, const AttentionState& chunk, const AttentionState& state) {
  for (int64_t begin = 0; begin < queries; begin += 16) {
    const int n = queries - begin < 16 ? static_cast<int>(queries - begin) : 16;
    const VF before = vf_load_n(state.peak + begin, n), now = vf_load_n(chunk.peak + begin, n);
    const VF peak = vf_max(before, now);
    const VF a = vf_exp(vf_sub(before, peak)), b = vf_exp(vf_sub(now, peak));
    vf_store_n(state.peak + begin, peak, n);
    vf_store_n(state.sum + begin,
               vf_fma(vf_load_n(chunk.sum + begin, n), b, vf_mul(vf_load_n(state.sum + begin, n), a)), n);
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
    if (!turns) continue;
    hadamard(turned, pass.head_dim);
    std::memcpy(y, turned, static_cast<size_t>(pass.head_dim) * 4);
  }
}
