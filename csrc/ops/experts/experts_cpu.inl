// Kernels of experts.h, behind those of quant_linear.h.

template <class Source>
inline void norm_to(const RoundRows& job, int64_t begin, int64_t end, float* to) {
  for (int64_t row = begin; row < end; ++row) {
    const Source source(job, row);
    for (int64_t i = 0; i < job.features; i += 16) {
      const int count = job.features - i < 16 ? static_cast<int>(job.features - i) : 16;
      vf_store_n(to + row * job.features + i, source.load_n(i, count), count);
    }
  }
}

inline void norm_rows(const RoundRows& job, int64_t begin, int64_t end, float* to) {
  if (job.is_layer_norm) {
    norm_to<LayerNormedRow>(job, begin, end, to);
  } else {
    norm_to<NormedRow>(job, begin, end, to);
  }
}

inline float router_score(const float* x, const float* weight, int64_t n) {
  VF sums[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    for (int k = 0; k < 4; ++k) sums[k] = vf_fma(vf_load(x + i + 16 * k), vf_load(weight + i + 16 * k), sums[k]);
  }
  for (int k = 0; i < n; ++k, i += 16) {
    const int count = n - i < 16 ? static_cast<int>(n - i) : 16;
    sums[k] = vf_fma(vf_load_n(x + i, count), vf_load_n(weight + i, count), sums[k]);
  }
  return vf_sum(vf_add(vf_add(sums[0], sums[1]), vf_add(sums[2], sums[3])));
}

inline void router_scores(const Routing& job, int64_t begin, int64_t end) {
  for (int64_t row = 0; row < job.rows; ++row) {
    for (int64_t e = begin; e < end; ++e) {
      const float score = router_score(job.x + row * job.features, job.router + e * job.features, job.features);
      job.scores[row * job.stride() + e] = job.bias != nullptr ? score + job.bias[e] : score;
    }
  }
}

// Scores become what is likely. Lanes behind the last expert are computed, too, and not read.
inline void make_likely(const Routing& job, float* scores) {
  if (job.gating == Gating::kChosen) return;
  float most = scores[0];
  for (int e = 1; e < job.experts; ++e) most = scores[e] > most ? scores[e] : most;
  const VF one = vf_set1(1.0f);
  for (int e = 0; e < job.experts; e += 16) {
    const VF score = vf_load(scores + e);
    const bool is_softmax = job.gating == Gating::kSoftmax;
    const VF power = vf_exp(is_softmax ? vf_sub(score, vf_set1(most)) : vf_neg(score));
    vf_store(scores + e, is_softmax ? power : vf_div(one, vf_add(one, power)));
  }
  if (job.gating == Gating::kSigmoid) return;
  float sum = 0.0f;
  for (int e = 0; e < job.experts; ++e) sum += scores[e];
  for (int e = 0; e < job.experts; ++e) scores[e] /= sum;
}

// Whatever the numbers are, as many experts as wanted are chosen.
inline void choose_rows(const Routing& job, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    float* const likely = job.scores + row * job.stride();
    for (int64_t e = job.experts; e < job.stride(); ++e) likely[e] = 0.0f;
    make_likely(job, likely);
    bool is_taken[kMaxExperts];
    for (int e = 0; e < job.experts; ++e) is_taken[e] = false;
    for (int i = 0; i < job.chosen; ++i) {
      int best = -1;
      float most = 0.0f;
      for (int e = 0; e < job.experts; ++e) {
        if (is_taken[e]) continue;
        const float rank = job.choice_bias != nullptr ? likely[e] + job.choice_bias[e] : likely[e];
        if (best < 0 || rank > most) best = e, most = rank;
      }
      is_taken[best] = true;
    }
    int32_t* const ids = job.ids + row * job.chosen;
    float* const weights = job.weights + row * job.chosen;
    for (int e = 0, i = 0; e < job.experts; ++e) {
      if (!is_taken[e]) continue;
      ids[i] = e;
      weights[i++] = likely[e];
    }
    float sum = 0.0f;
    if (job.gating == Gating::kChosen) {
      float most = weights[0];
      for (int i = 1; i < job.chosen; ++i) most = weights[i] > most ? weights[i] : most;
      for (int i = 0; i < job.chosen; ++i) sum += weights[i] = s_exp(weights[i] - most);
      for (int i = 0; i < job.chosen; ++i) weights[i] /= sum;
    }
    if (job.is_normalised) {
      sum = 0.0f;
      for (int i = 0; i < job.chosen; ++i) sum += weights[i];
      for (int i = 0; i < job.chosen; ++i) weights[i] /= sum + job.epsilon;
    }
    for (int i = 0; i < job.chosen; ++i) weights[i] *= job.scale;
  }
}

// Row number `row` of those that are gathered.
struct GatheredRow {
  const float* x;

  GatheredRow() = default;
  GatheredRow(const RoundRows& job, int64_t row)
      : x(job.x + static_cast<const GatheredRows&>(job).numbers[row] * job.features) {}

  VF load(int64_t i) const { return vf_load(x + i); }
  VF load_n(int64_t i, int n) const { return vf_load_n(x + i, n); }
};

inline void round_gathered(const GatheredRows& job, int64_t group) {
  round_group_of<GatheredRow>(job, group, 0, job.blocks());
}

inline void add_experts(const ExpertSum& sum, int64_t begin, int64_t end) {
  const int64_t first = begin * kTileRows, last = end * kTileRows;
  for (int64_t row = 0; row < sum.rows; ++row) {
    for (int64_t i = first; i < last; i += kTileRows) vf_store(sum.y + row * sum.width + i, vf_zero());
  }
  for (int64_t e = 0; e < sum.count; ++e) {
    const ExpertRows& expert = sum.experts[e];
    const LinearRows& job = expert.down;
    for (int64_t tile = begin; tile < end; ++tile) {
      const JobTile own = open_tile(job, tile, end, nullptr);
      for (int64_t group = 0; group < job.in.groups(); ++group) {
        VF value[kGroupRows];
        group_of_tile(job, own, group, group == 0, value);
        for (int m = 0; m < job.in.group_rows(group); ++m) {
          const int64_t i = group * kGroupRows + m;
          float* const y = sum.y + expert.rounding.numbers[i] * sum.width + tile * kTileRows;
          vf_store(y, vf_fma(vf_set1(expert.weights[i]), add_bias(job, tile, value[m]), vf_load(y)));
        }
      }
    }
  }
  if (sum.residual == nullptr) return;
  const VF scale = vf_set1(sum.residual_scale);
  for (int64_t row = 0; row < sum.rows; ++row) {
    for (int64_t i = row * sum.width + first; i < row * sum.width + last; i += kTileRows) {
      vf_store(sum.y + i, vf_fma(scale, vf_load(sum.y + i), vf_load(sum.residual + i)));
    }
  }
}

constexpr ExpertsKernels kExpertsKernels{norm_rows, router_scores, choose_rows, round_gathered, add_experts};
