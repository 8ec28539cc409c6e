// Keys of 4 bits whose rounding errors are fed back; spec_attention.h says in what order. An element waits for the one
// before it, some 25 cycles, so that several keys side by side take little longer than one.

// A key under way: its elements less their group's minimum.
struct FedKey {
  const float* feedback;  // [head_dim][head_dim] of its kv head
  float left[kMaxHeadDim + 16];
  float errors[16];  // of the vector that was rounded last
  int8_t codes[kMaxHeadDim + kKvGroup];
  float scale[kv_groups(kMaxHeadDim)], inverse[kv_groups(kMaxHeadDim)];
};

// 16 rows of a key's feedback, from the column of the vector that is rounded on.
struct FeedbackRows {
  const float* first;
  int64_t stride;

  EDGE_RT_INLINE VF load(int lane, int vector) const { return vf_load(first + lane * stride + 16 * vector); }
};

constexpr float kWhole = 8388608.0f;  // 2^23: floats from here on are integers, so that adding it rounds

EDGE_RT_INLINE VF code_of(VF left, VF inverse) {
  const VF sum = vf_fma(left, inverse, vf_set1(kWhole));
  return vf_sub(vf_max(vf_min(sum, vf_set1(kWhole + 15.0f)), vf_set1(kWhole)), vf_set1(kWhole));
}

// Rounds element `Lane`, and takes its error times the feedback from what is left of this vector and the next.
template <int Keys, bool HasNext, int Lane>
EDGE_RT_INLINE void feed_back_lane(const FeedbackRows* rows, const VF* scale, const VF* inverse, VF* left, VF* next) {
  for (int i = 0; i < Keys; ++i) {
    const VF error = vf_lane<Lane>(vf_fnma(code_of(left[i], inverse[i]), scale[i], left[i]));
    if (Lane < 15) left[i] = vf_fnma(error, rows[i].load(Lane, 0), left[i]);
    if (HasNext) next[i] = vf_fnma(error, rows[i].load(Lane, 1), next[i]);
  }
  if constexpr (Lane < 15) feed_back_lane<Keys, HasNext, Lane + 1>(rows, scale, inverse, left, next);
}

template <int Keys, bool HasNext>
inline void feed_back_vector(FedKey* const* keys, const FeedbackRows* rows, int vector) {
  VF left[Keys], next[Keys], scale[Keys], inverse[Keys];
  for (int i = 0; i < Keys; ++i) {
    left[i] = vf_load(keys[i]->left + 16 * vector);
    next[i] = HasNext ? vf_load(keys[i]->left + 16 * vector + 16) : vf_zero();
    scale[i] = vf_set1(keys[i]->scale[vector / 2]);
    inverse[i] = vf_set1(keys[i]->inverse[vector / 2]);
  }
  feed_back_lane<Keys, HasNext, 0>(rows, scale, inverse, left, next);
  for (int i = 0; i < Keys; ++i) {
    // An element has not changed since it was rounded, because the feedback to it was 0.
    const VF code = code_of(left[i], inverse[i]);
    vf_to_i8(keys[i]->codes + 16 * vector, vi_round(code));
    vf_store(keys[i]->errors, vf_fnma(code, scale[i], left[i]));
    if (HasNext) vf_store(keys[i]->left + 16 * vector + 16, next[i]);
  }
}

// What a vector's errors change beyond the next one.
template <int Keys>
inline void feed_back_far(FedKey* const* keys, const FeedbackRows* rows, int vector, int vectors) {
  for (int other = vector + 2; other < vectors; ++other) {
    VF left[Keys];
    for (int i = 0; i < Keys; ++i) left[i] = vf_load(keys[i]->left + 16 * other);
    for (int lane = 0; lane < 16; ++lane) {
      for (int i = 0; i < Keys; ++i) {
        left[i] = vf_fnma(vf_set1(keys[i]->errors[lane]), rows[i].load(lane, other - vector), left[i]);
      }
    }
    for (int i = 0; i < Keys; ++i) vf_store(keys[i]->left + 16 * other, left[i]);
  }
}

template <int Keys>
inline void feed_back(FedKey* const* keys, const FeedbackRows* rows, int vector, int vectors) {
  if (vector + 1 < vectors) {
    feed_back_vector<Keys, true>(keys, rows, vector);
    feed_back_far<Keys>(keys, rows, vector, vectors);
  } else {
    feed_back_vector<Keys, false>(keys, rows, vector);
  }
}

template <int Keys>
inline void round_keys(FedKey* const* keys, int dim) {
  FeedbackRows rows[Keys];
  for (int vector = 0; vector < dim / 16; ++vector) {
    for (int i = 0; i < Keys; ++i) rows[i] = {keys[i]->feedback + (dim + 1) * 16 * vector, dim};
    feed_back<Keys>(keys, rows, vector, dim / 16);
  }
}

// The same for a head that is not of whole vectors: its rows are filled up with zeros.
inline void round_uneven_key(FedKey* key, int dim) {
  float filled[16 * (kMaxHeadDim + 16)];
  const int vectors = (dim + 15) / 16;
  for (int vector = 0; vector < vectors; ++vector) {
    const int begin = 16 * vector, width = 16 * (vectors - vector), n = dim - begin;
    std::memset(filled, 0, static_cast<size_t>(16 * width) * sizeof(float));
    for (int lane = 0; lane < (n < 16 ? n : 16); ++lane) {
      std::memcpy(filled + lane * width, key->feedback + (begin + lane) * dim + begin, static_cast<size_t>(n) * 4);
    }
    const FeedbackRows rows{filled, width};
    feed_back<1>(&key, &rows, vector, vectors);
  }
}

// Levels are those of the key before feedback.
inline void load_fed_key(const float* x, int dim, const float* feedback, uint8_t* extras, FedKey* key) {
  key->feedback = feedback;
  for (int g = 0; g < kv_groups(dim); ++g) {
    const int n = dim - g * kKvGroup;
    const CodedGroup group = load_coded_group(x + g * kKvGroup, n < kKvGroup ? n : kKvGroup, extras + 4 * g);
    key->scale[g] = group.levels.scale;
    key->inverse[g] = group.levels.scale > 0 ? 1.0f / group.levels.scale : 0.0f;
    for (int i = 0; i < 2 && n > 16 * i; ++i) {
      vf_store(key->left + g * kKvGroup + 16 * i, vf_sub(group.half[i], vf_set1(group.levels.minimum)));
    }
  }
}

inline void append_fed_back(const AttentionPass& pass, const AppendUnit* units, const float (*x)[kMaxHeadDim + 16],
                            int count) {
  const int dim = pass.head_dim;
  FedKey memory[kMostAppended];
  FedKey* keys[kMostAppended];
  uint8_t* codes[kMostAppended];
  for (int i = 0; i < count; ++i) {
    uint8_t* plane = pass.plane(0, units[i].kv);
    const CodedPlane in(pass, plane, kCodedNibbles);
    const int64_t at = pass.place_of(units[i].row);
    keys[i] = &memory[i];
    codes[i] = plane + at * in.code_bytes;
    load_fed_key(x[i], dim, pass.key_feedback + int64_t{units[i].kv} * dim * dim,
                 plane + (in.extras - in.codes) + at * in.extra_bytes, keys[i]);
  }
  if (dim % 16 != 0) {
    for (int i = 0; i < count; ++i) round_uneven_key(keys[i], dim);
  } else if (count == kMostAppended) {
    round_keys<kMostAppended>(keys, dim);
  } else {
    for (int i = 0; i < count; ++i) round_keys<1>(keys + i, dim);
  }
  for (int i = 0; i < count; ++i) {
    for (int g = 0; g < pass.groups(); ++g) {
      const int n = dim - g * kKvGroup;
      pack_group(keys[i]->codes + g * kKvGroup, 0, n < kKvGroup ? n : kKvGroup, codes[i] + 16 * g);
    }
  }
}
