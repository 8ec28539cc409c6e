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

// Marks experts of groups that are not chosen. Whatever the numbers are, as many groups as wanted are left.
inline void leave_groups(const Routing& job, const float* likely, bool* is_out) {
  const int size = job.experts / job.groups;
  bool is_taken[kMaxExperts];
  float sums[kMaxExperts];
  for (int g = 0; g < job.groups; ++g) {
    float first = 0.0f, second = 0.0f;
    for (int i = 0; i < size; ++i) {
      const int e = g * size + i;
      const float rank = job.choice_bias != nullptr ? likely[e] + job.choice_bias[e] : likely[e];
      if (i == 0 || rank > first) {
        second = i == 0 ? 0.0f : first;
        first = rank;
      } else if (i == 1 || rank > second) {
        second = rank;
      }
    }
    sums[g] = first + second;
    is_taken[g] = false;
  }
  for (int i = 0; i < job.chosen_groups; ++i) {
    int best = -1;
    for (int g = 0; g < job.groups; ++g) {
      if (!is_taken[g] && (best < 0 || sums[g] > sums[best])) best = g;
    }
    is_taken[best] = true;
  }
  for (int e = 0; e < job.experts; ++e) is_out[e] = !is_taken[e / size];
}

// Whatever the numbers are, as many experts as wanted are chosen.
inline void choose_rows(const Routing& job, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    float* const likely = job.scores + row * job.stride();
    for (int64_t e = job.experts; e < job.stride(); ++e) likely[e] = 0.0f;
    make_likely(job, likely);
    bool is_taken[kMaxExperts], is_out[kMaxExperts];
    for (int e = 0; e < job.experts; ++e) is_taken[e] = is_out[e] = false;
    if (job.chosen_groups < job.groups) leave_groups(job, likely, is_out);
    for (int i = 0; i < job.chosen; ++i) {
      int best = -1;
      float most = 0.0f;
      for (int e = 0; e < job.experts; ++e) {
        if (is_taken[e] || is_out[e]) continue;
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
    for (int i = 0; job.expert_scale != nullptr && i < job.chosen; ++i) weights[i] *= job.expert_scale[ids[i]];
    if (job.shared_gate != nullptr) {
      const float score = router_score(job.x + row * job.features, job.shared_gate, job.features);
      job.shares[row] = 1.0f / (1.0f + s_exp(-score));
    }
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

// One tile of the outputs of an expert, added to sums of its rows that lie `stride` apart.
inline void add_tile(const ExpertRows& expert, int64_t tile, int64_t fetch_end, uint8_t* unpacked, float* sums,
                     int64_t stride) {
  const LinearRows& job = expert.down;
  const JobTile own = open_tile(job, tile, fetch_end, job.in.groups() < kUnpackGroups ? nullptr : unpacked);
  for (int64_t group = 0; group < job.in.groups(); ++group) {
    VF value[kGroupRows];
    group_of_tile(job, own, group, group == 0, value);
    for (int m = 0; m < job.in.group_rows(group); ++m) {
      const int64_t i = group * kGroupRows + m;
      float* const y = sums + expert.rounding.numbers[i] * stride;
      vf_store(y, vf_fma(vf_set1(expert.weights[i]), add_bias(job, tile, value[m]), vf_load(y)));
    }
  }
}

// What stands behind the sum of experts, of 16 outputs of a row.
inline VF finish_sum(const ExpertSum& sum, int64_t row, int64_t column, VF value) {
  const int64_t at = row * sum.width + column;
  if (sum.shared != nullptr) {
    const VF shared = vf_load(sum.shared + at);
    value = sum.shares != nullptr ? vf_fma(vf_set1(sum.shares[row]), shared, value) : vf_add(value, shared);
  }
  if (sum.residual == nullptr) return value;
  return vf_fma(vf_set1(sum.residual_scale), value, vf_load(sum.residual + at));
}

// Behind the last lot; of others the sums alone.
inline void finish_tile(const ExpertSum& sum, int64_t column, const float* sums, int64_t stride) {
  for (int64_t row = 0; row < sum.rows; ++row) {
    const VF value = vf_load(sums + row * stride);
    vf_store(sum.y + row * sum.width + column, sum.is_last ? finish_sum(sum, row, column, value) : value);
  }
}

// Tile by tile, all experts of each: their weights come from the cache already, or rows are so many that it does not
// matter.
inline void add_many_rows(const ExpertSum& sum, int64_t begin, int64_t end, uint8_t* memory) {
  auto* const sums = reinterpret_cast<float*>(memory);
  for (int64_t tile = begin; tile < end; ++tile) {
    for (int64_t row = 0; row < sum.rows; ++row) {
      vf_store(sums + row * kTileRows, sum.is_first ? vf_zero() : vf_load(sum.y + row * sum.width + tile * kTileRows));
    }
    for (int64_t e = 0; e < sum.count; ++e) {
      add_tile(sum.experts[e], tile, end, memory + sum_bytes(sum.rows), sums, kTileRows);
    }
    finish_tile(sum, tile * kTileRows, sums, kTileRows);
  }
}

inline void add_experts(const ExpertSum& sum, int64_t begin, int64_t end, int64_t fetch_end, uint8_t* memory) {
  if (memory != nullptr) return add_many_rows(sum, begin, end, memory);
  const int64_t first = begin * kTileRows, last = end * kTileRows;
  for (int64_t row = 0; sum.is_first && row < sum.rows; ++row) {
    for (int64_t i = first; i < last; i += kTileRows) vf_store(sum.y + row * sum.width + i, vf_zero());
  }
  for (int64_t e = 0; e < sum.count; ++e) {
    for (int64_t tile = begin; tile < end; ++tile) {
      add_tile(sum.experts[e], tile, fetch_end, nullptr, sum.y + tile * kTileRows, sum.width);
    }
  }
  for (int64_t i = first; i < last; i += kTileRows) finish_tile(sum, i, sum.y + i, sum.width);
}

constexpr ExpertsKernels kExpertsKernels{norm_rows, router_scores, choose_rows, round_gathered, add_experts};
