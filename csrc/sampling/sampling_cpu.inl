// Peaks, weights and moments of scores; see sampling_kernels.h.

// 16 scores, or fewer and minus infinity behind them.
inline VF load_scores(const float* scores, int64_t count) {
  if (count >= 16) return vf_load(scores);
  float lanes[16];
  for (int l = 0; l < 16; ++l) lanes[l] = l < count ? scores[l] : kMinusInfinity;
  return vf_load(lanes);
}

// Takes the larger of a lane and keeps what is no number, or plus infinity.
EDGE_RT_INLINE void add_peak(VF x, VF* most, VF* wrong) {
  *most = vf_max(x, *most);
  *wrong = vf_where_less(x, vf_set1(__builtin_inff()), *wrong, x);
}

inline float score_peak(const float* scores, int64_t count, bool* has_wrong) {
  VF most[4], wrong[4];
  for (int k = 0; k < 4; ++k) most[k] = vf_set1(kMinusInfinity), wrong[k] = vf_zero();
  int64_t i = 0;
  for (; i + 64 <= count; i += 64) {
    for (int k = 0; k < 4; ++k) add_peak(vf_load(scores + i + 16 * k), &most[k], &wrong[k]);
  }
  for (; i < count; i += 16) add_peak(load_scores(scores + i, count - i), &most[0], &wrong[0]);
  bool has = false;
  for (int k = 0; k < 4; ++k) {
    float lanes[16];
    vf_store(lanes, wrong[k]);
    for (const float lane : lanes) has |= lane != 0.0f;
  }
  *has_wrong = has;
  return vf_hmax(vf_max(vf_max(most[0], most[1]), vf_max(most[2], most[3])));
}

EDGE_RT_INLINE VF powers_of(VF scores, VF peak, VF scale) { return vf_exp(vf_mul(vf_sub(scores, peak), scale)); }
EDGE_RT_INLINE VI whole_weights(VF powers) {
  return vi_round(vf_mul(powers, vf_set1(static_cast<float>(kWholeWeight))));
}

inline void weigh_blocks(const float* scores, int64_t count, float peak, float scale, BlockWeights* blocks) {
  const VF top = vf_set1(peak), by = vf_set1(scale);
  for (int64_t begin = 0; begin < count; begin += kWeightBlock, ++blocks) {
    const int64_t end = count - begin < kWeightBlock ? count : begin + kWeightBlock;
    VS sums = vs_zero();
    VF most = vf_zero();
    int64_t i = begin;
    for (; i + 16 <= end; i += 16) {
      const VF powers = powers_of(vf_load(scores + i), top, by);
      most = vf_max(powers, most);
      sums = vs_add(sums, whole_weights(powers));
    }
    if (i < end) {
      const VF powers = powers_of(load_scores(scores + i, end - i), top, by);
      most = vf_max(powers, most);
      sums = vs_add(sums, whole_weights(powers));
    }
    int32_t lanes[16];
    vi_store(lanes, whole_weights(vf_set1(vf_hmax(most))));
    *blocks = {vs_total(sums), lanes[0]};
  }
}

inline void block_moments(const float* scores, int64_t count, float peak, float scale, BlockMoments* blocks) {
  const VF top = vf_set1(peak), by = vf_set1(scale), lowest = vf_set1(kMinusInfinity), one = vf_set1(1.0f);
  for (int64_t begin = 0; begin < count; begin += kWeightBlock, ++blocks) {
    const int64_t end = count - begin < kWeightBlock ? count : begin + kWeightBlock;
    VF information = vf_zero(), counted = vf_zero(), sum = vf_zero(), squares = vf_zero();
    for (int64_t i = begin; i < end; i += 16) {
      const VF below = vf_sub(load_scores(scores + i, end - i), top);
      const VF logarithm = vf_max(vf_set1(-87.3f), vf_mul(below, by));
      information = vf_fma(vf_exp(logarithm), logarithm, information);
      const VF difference = vf_where_less(lowest, below, below, vf_zero());
      counted = vf_add(counted, vf_where_less(lowest, below, one, vf_zero()));
      sum = vf_add(sum, difference);
      squares = vf_fma(difference, difference, squares);
    }
    *blocks = {vf_sum(information), vf_sum(counted), vf_sum(sum), vf_sum(squares)};
  }
}

inline void score_weights(const float* scores, int64_t count, float peak, float scale, int32_t* weights) {
  const VF top = vf_set1(peak), by = vf_set1(scale);
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) vi_store(weights + i, whole_weights(powers_of(vf_load(scores + i), top, by)));
  if (i < count) {
    int32_t lanes[16];
    vi_store(lanes, whole_weights(powers_of(load_scores(scores + i, count - i), top, by)));
    for (int64_t l = i; l < count; ++l) weights[l] = lanes[l - i];
  }
}

constexpr SamplingKernels kSamplingKernels{score_peak, weigh_blocks, block_moments, score_weights};
