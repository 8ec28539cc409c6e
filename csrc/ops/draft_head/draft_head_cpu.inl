// DraftHead on the CPU: what its products and RowTopK's parts leave to be done.

inline void head_norm(const float* x, const float* weight, int64_t features, float epsilon, float* y) {
  const VF rms = vf_set1(rms_scale(x, static_cast<int>(features), epsilon));
  for (int64_t i = 0; i < features; i += 16) {
    const int count = features - i < 16 ? static_cast<int>(features - i) : 16;
    vf_store_n(y + i, vf_mul(vf_mul(vf_load_n(x + i, count), rms), vf_load_n(weight + i, count)), count);
  }
}

// Puts a value into its place; of equal values the smaller id comes first.
inline void insert_by_id(TopKPart* top, int k, float value, int32_t id) {
  const auto is_behind = [&](int place) {
    return top->values[place] < value || (top->values[place] == value && top->ids[place] > id);
  };
  if (top->count == k && !is_behind(k - 1)) return;
  int place = top->count < k ? top->count++ : k - 1;
  for (; place > 0 && is_behind(place - 1); --place) {
    top->values[place] = top->values[place - 1];
    top->ids[place] = top->ids[place - 1];
  }
  top->values[place] = value;
  top->ids[place] = id;
}

inline int join_guesses(const TopKPart* parts, int64_t count, int64_t head_parts, const int32_t* head_ids,
                        const int32_t* more_ids, int width, int32_t* ids, float* log_probs) {
  TopKPart top;
  top.count = 0;
  float peak = kMinusInfinity, sum = 0.0f;
  for (int64_t p = 0; p < count; ++p) {
    const int32_t* tokens = p < head_parts ? head_ids : more_ids;
    peak = parts[p].peak > peak ? parts[p].peak : peak;
    for (int i = 0; i < parts[p].count; ++i) insert_by_id(&top, width, parts[p].values[i], tokens[parts[p].ids[i]]);
  }
  for (int64_t p = 0; p < count; ++p) {
    if (parts[p].count > 0) sum = s_fma(parts[p].sum, s_exp(parts[p].peak - peak), sum);
  }
  const float log_sum = peak + s_log(sum);
  int found = 0;
  for (int i = 0; i < top.count; ++i) {
    const float log_prob = top.values[i] - log_sum;
    // Neither infinite nor no number.
    if (!(log_prob >= -3.4028234663852886e38f && log_prob <= 3.4028234663852886e38f)) continue;
    ids[found] = top.ids[i];
    log_probs[found++] = log_prob < 0.0f ? log_prob : 0.0f;
  }
  return found;
}

constexpr DraftHeadKernels kDraftHeadKernels{head_norm, join_guesses};
