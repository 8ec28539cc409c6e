// RowTopK on the CPU. A part of a row is small enough to be read twice out of the first-level cache.

constexpr float kMinusInfinity = -__builtin_inff();

// Puts a value into its place; equal values stay in the order they came.
inline void insert_top(TopKPart* top, int k, float value, int32_t id) {
  int place = top->count < k ? top->count++ : k - 1;
  for (; place > 0 && top->values[place - 1] < value; --place) {
    top->values[place] = top->values[place - 1];
    top->ids[place] = top->ids[place - 1];
  }
  top->values[place] = value;
  top->ids[place] = id;
}

inline float least_of_top(const TopKPart* top, int k) { return top->count < k ? kMinusInfinity : top->values[k - 1]; }

// The inner maximum drops what is not a number.
inline VF numbers_of(const float* logits) { return vf_max(vf_load(logits), vf_set1(kMinusInfinity)); }

// A bound that the k-th largest logit reaches: the k-th largest of the 16 lanes' maxima.
inline float bound_of_top(const float* logits, int64_t begin, int64_t end, int k) {
  if (k > 16 || end - begin < 16) return kMinusInfinity;
  VF most = vf_set1(kMinusInfinity);
  for (int64_t i = begin; i + 16 <= end; i += 16) most = vf_max(numbers_of(logits + i), most);
  float lanes[16];
  vf_store(lanes, most);
  for (int i = 1; i < 16; ++i) {
    const float value = lanes[i];
    int place = i;
    for (; place > 0 && lanes[place - 1] < value; --place) lanes[place] = lanes[place - 1];
    lanes[place] = value;
  }
  return lanes[k - 1];
}

inline void find_top(const float* logits, int64_t begin, int64_t end, int k, TopKPart* top) {
  constexpr int kStride = 128;
  const float bound = bound_of_top(logits, begin, end, k);
  top->count = 0;
  for (int64_t first = begin; first < end; first += kStride) {
    const int64_t last = end - first < kStride ? end : first + kStride;
    if (last - first == kStride) {
      // Most strides hold nothing that is large enough.
      VF most = numbers_of(logits + first);
      for (int i = 16; i < kStride; i += 16) most = vf_max(numbers_of(logits + first + i), most);
      const float peak = vf_hmax(most);
      if (peak < bound || (top->count == k && peak <= top->values[k - 1])) continue;
    }
    for (int64_t i = first; i < last; ++i) {
      const float value = logits[i];
      if (value < bound) continue;
      if (value > least_of_top(top, k) || (top->count < k && value == value)) {
        insert_top(top, k, value, static_cast<int32_t>(i));
      }
    }
  }
}

inline float sum_of_exp(const float* logits, int64_t begin, int64_t end, float peak) {
  VF sum = vf_zero();
  const VF shift = vf_set1(peak);
  int64_t i = begin;
  for (; i + 16 <= end; i += 16) sum = vf_add(sum, vf_exp(vf_sub(vf_load(logits + i), shift)));
  if (i < end) {
    const int n = static_cast<int>(end - i);
    float lanes[16];
    vf_store(lanes, vf_exp(vf_sub(vf_load_n(logits + i, n), shift)));
    sum = vf_add(sum, vf_load_n(lanes, n));
  }
  return vf_sum(sum);
}

inline void top_k_part(const float* logits, int64_t begin, int64_t end, int k, TopKPart* out) {
  find_top(logits, begin, end, k, out);
  out->peak = out->count > 0 ? out->values[0] : kMinusInfinity;
  out->sum = out->count > 0 ? sum_of_exp(logits, begin, end, out->peak) : 0.0f;
}

inline void top_k_join(const TopKPart* parts, int64_t count, int k, int32_t* ids, float* values, float* log_sum_exp) {
  TopKPart top;
  top.count = 0;
  float peak = kMinusInfinity;
  for (int64_t p = 0; p < count; ++p) {
    peak = parts[p].peak > peak ? parts[p].peak : peak;
    for (int i = 0; i < parts[p].count; ++i) {
      if (top.count < k || parts[p].values[i] > top.values[k - 1])
        insert_top(&top, k, parts[p].values[i], parts[p].ids[i]);
    }
  }
  float sum = 0.0f;
  for (int64_t p = 0; p < count; ++p) {
    if (parts[p].count > 0) sum = s_fma(parts[p].sum, s_exp(parts[p].peak - peak), sum);
  }
  for (int i = 0; i < k; ++i) {
    ids[i] = i < top.count ? top.ids[i] : -1;
    values[i] = i < top.count ? top.values[i] : kMinusInfinity;
  }
  *log_sum_exp = top.count > 0 ? peak + s_log(sum) : kMinusInfinity;
}

constexpr RowTopKKernels kRowTopKKernels{top_k_part, top_k_join};
