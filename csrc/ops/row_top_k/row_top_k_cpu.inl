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

// Logits of a stride; most strides hold nothing that is large enough.
constexpr int kTopKStride = 128;

// Peaks of a part's whole strides, and a bound that its k-th largest logit reaches.
struct StridePeaks {
  float of[kTopKPart / kTopKStride];
  float bound;
};

// The k-th largest of 16 numbers.
inline float bound_of_lanes(VF most, int k) {
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

inline void find_peaks(const float* logits, int64_t strides, int k, StridePeaks* out) {
  // This walk is a part's first: its logits may lie in another core's cache.
  constexpr int kAhead = 512;
  VF most = vf_set1(kMinusInfinity);
  for (int64_t first = 0; first < strides; first += 16) {
    VF peaks[16];
    for (int s = 0; s < 16; ++s) {
      peaks[s] = vf_set1(kMinusInfinity);
      if (first + s >= strides) continue;
      const float* at = logits + (first + s) * kTopKStride;
      for (int i = 0; i < kTopKStride; i += 16) {
        prefetch(at + i + kAhead);
        peaks[s] = vf_max(numbers_of(at + i), peaks[s]);
      }
      most = vf_max(most, peaks[s]);
    }
    vf_store(out->of + first, vf_hmax16(peaks));
  }
  out->bound = k <= 16 && strides > 0 ? bound_of_lanes(most, k) : kMinusInfinity;
}

inline void find_top(const float* logits, int64_t begin, int64_t end, int k, TopKPart* top) {
  const int64_t strides = (end - begin) / kTopKStride;
  StridePeaks peaks;
  find_peaks(logits + begin, strides, k, &peaks);
  top->count = 0;
  const auto insert_from = [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const float value = logits[i];
      if (value < peaks.bound) continue;
      if (value > least_of_top(top, k) || (top->count < k && value == value)) {
        insert_top(top, k, value, static_cast<int32_t>(i));
      }
    }
  };
  for (int64_t s = 0; s < strides; ++s) {
    if (peaks.of[s] < peaks.bound || (top->count == k && peaks.of[s] <= top->values[k - 1])) continue;
    const int64_t first = begin + s * kTopKStride;
    for (int64_t i = first; i < first + kTopKStride; i += 16) {
      if (vf_hmax(numbers_of(logits + i)) >= peaks.bound) insert_from(i, i + 16);
    }
  }
  insert_from(begin + strides * kTopKStride, end);
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
  // The logarithm of what is no number would be one.
  *log_sum_exp = top.count == 0 ? kMinusInfinity : sum == sum ? peak + s_log(sum) : sum;
}

constexpr RowTopKKernels kRowTopKKernels{top_k_part, top_k_join};
