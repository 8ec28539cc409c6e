// What happens to a row before it is attended with: norm, rotation, append, and its queries.

inline void rotate_pairs(float* a, float* b, const float* cos, const float* sin, int count) {
  for (int i = 0; i < count; i += 16) {
    const int n = count - i < 16 ? count - i : 16;
    const VF x = vf_load_n(a + i, n), y = vf_load_n(b + i, n), c = vf_load_n(cos + i, n), s = vf_load_n(sin + i, n);
    vf_store_n(a + i, vf_fnma(y, s, vf_mul(x, c)), n);
    vf_store_n(b + i, vf_fma(x, s, vf_mul(y, c)), n);
  }
}

// The norm of a head.
struct HeadNorm {
  const float* weight;  // of this head; nullptr: none
  bool has_scale;       // that of the whole row; else the head has its own
  float scale;

  HeadNorm at(int64_t head, int dim) const { return {has_scale ? weight + head * dim : weight, has_scale, scale}; }
};

// The norm of the first of `heads` heads that lie one behind the other.
inline HeadNorm norm_of(const AttentionPass& pass, const float* weight, bool of_row, const float* row, int heads) {
  if (weight == nullptr || !of_row) return {weight, false, 0.0f};
  return {weight, true, rms_scale(row, heads * pass.head_dim, pass.epsilon)};
}

// `in` may be `x`.
inline void norm_head(const AttentionPass& pass, const HeadNorm& norm, const float* in, float* x) {
  const int dim = pass.head_dim;
  const VF scale = vf_set1(norm.has_scale ? norm.scale : rms_scale(in, dim, pass.epsilon));
  for (int d = 0; d < dim; d += 16) {
    const int n = dim - d < 16 ? dim - d : 16;
    vf_store_n(x + d, vf_mul(vf_mul(vf_load_n(in + d, n), scale), vf_load_n(norm.weight + d, n)), n);
  }
}

inline void rotate(const AttentionPass& pass, int64_t position, float* x) {
  const int half = pass.half_rotary;
  const float *cos = pass.cos + position * half, *sin = pass.sin + position * half;
  if (!pass.interleaved) {
    rotate_pairs(x, x + half, cos, sin, half);
    return;
  }
  float even[kMaxHeadDim / 2], odd[kMaxHeadDim / 2];
  for (int i = 0; i < half; ++i) {
    even[i] = x[2 * i];
    odd[i] = x[2 * i + 1];
  }
  rotate_pairs(even, odd, cos, sin, half);
  for (int i = 0; i < half; ++i) {
    x[2 * i] = even[i];
    x[2 * i + 1] = odd[i];
  }
}

inline void clip_head(const AttentionPass& pass, const float* in, float* x) {
  const VF most = vf_set1(pass.clip), least = vf_neg(most);
  for (int d = 0; d < pass.head_dim; d += 16) {
    const int n = pass.head_dim - d < 16 ? pass.head_dim - d : 16;
    vf_store_n(x + d, vf_min(vf_max(vf_load_n(in + d, n), least), most), n);
  }
}

// Copies a head from `in` to `x`, clips and rotates it, and norms it before or behind that if there is a weight.
inline void rotate_head(const AttentionPass& pass, const float* in, const HeadNorm& norm, int64_t position, float* x) {
  const int dim = pass.head_dim;
  const bool is_normed = norm.weight != nullptr;
  if (is_normed && !pass.norms_after_rotation) {
    norm_head(pass, norm, in, x);
  } else {
    for (int d = 0; d < dim; d += 16) vf_store(x + d, vf_load_n(in + d, dim - d < 16 ? dim - d : 16));
  }
  if (pass.clip > 0) clip_head(pass, x, x);
  if (pass.half_rotary > 0) rotate(pass, position, x);
  if (is_normed && pass.norms_after_rotation) norm_head(pass, norm, x, x);
}

// Rounds a query to int8 per group, like the activations of QuantLinear.
inline void round_query(const float* query, int head_dim, int8_t* codes, float* scales, int32_t* sums) {
  for (int g = 0; g < kv_groups(head_dim); ++g) {
    const int left = head_dim - g * kKvGroup;
    const VF low = vf_load(query + g * kKvGroup);
    const VF high = left > 16 ? vf_load(query + g * kKvGroup + 16) : vf_zero();
    const float largest = vf_hmax(vf_max(vf_abs(low), vf_abs(high)));
    scales[g] = largest / 127.0f;
    if (largest > 0) {
      const VF inverse = vf_set1(127.0f / largest);
      const VI first = to_codes(vf_mul(low, inverse)), second = to_codes(vf_mul(high, inverse));
      vf_to_i8(codes + g * kKvGroup, first);
      vf_to_i8(codes + g * kKvGroup + 16, second);
      sums[g] = vi_sum(vi_add(first, second));
    } else {
      std::memset(codes + g * kKvGroup, 0, kKvGroup);
      sums[g] = 0;
    }
  }
}

// rotate_head for rows of whole vectors that are rotated by halves and not normed or clipped, as most are.
inline bool rotates_whole(const AttentionPass& pass, const float* norm) {
  return norm == nullptr && pass.clip == 0 && !pass.interleaved && 2 * pass.half_rotary == pass.head_dim &&
         pass.half_rotary % 16 == 0;
}

// use(d, rotated vector) for every 16 dimensions.
template <class Use>
EDGE_RT_INLINE void rotate_whole(const AttentionPass& pass, const float* in, int64_t position, const Use& use) {
  const int half = pass.half_rotary;
  const float *cos = pass.cos + position * half, *sin = pass.sin + position * half;
  for (int i = 0; i < half; i += 16) {
    const VF x = vf_load(in + i), y = vf_load(in + half + i), c = vf_load(cos + i), s = vf_load(sin + i);
    use(i, vf_fnma(y, s, vf_mul(x, c)));
    use(half + i, vf_fma(x, s, vf_mul(y, c)));
  }
}

inline void scale_query(const AttentionPass& pass, int64_t position, float* query) {
  const VF scale = vf_set1(pass.query_scale[position]);
  for (int d = 0; d < pass.padded_dim; d += 16) vf_store(query + d, vf_mul(vf_load(query + d), scale));
}

// The steps of a query and of a key before they are turned; x has room for whole vectors.
inline void balance_query(const AttentionPass& pass, int kv, float* x) {
  if (pass.key_balance == nullptr) return;
  const float* balance = pass.key_balance + int64_t{kv} * pass.head_dim;
  for (int d = 0; d < pass.head_dim; d += 16) {
    const int n = pass.head_dim - d < 16 ? pass.head_dim - d : 16;
    vf_store(x + d, vf_mul(vf_load(x + d), vf_load_n(balance + d, n)));
  }
}
inline void balance_key(const AttentionPass& pass, int kv, float* x) {
  const int64_t first = int64_t{kv} * pass.head_dim;
  for (int d = 0; d < pass.head_dim; d += 16) {
    const int n = pass.head_dim - d < 16 ? pass.head_dim - d : 16;
    VF key = vf_load(x + d);
    if (pass.key_centre != nullptr) key = vf_sub(key, vf_load_n(pass.key_centre + first + d, n));
    if (pass.key_balance != nullptr) key = vf_div(key, vf_load_n(pass.key_balance + first + d, n));
    vf_store_n(x + d, key, n);
  }
}

inline const float* key_of(const AttentionPass& pass, const AppendUnit& unit) {
  return pass.keys_of(unit.row) + int64_t{unit.kv} * pass.head_dim;
}

// A key as it is to be stored.
inline void prepare_key(const AttentionPass& pass, const AppendUnit& unit, float* x) {
  const float* key = key_of(pass, unit);
  const int64_t position = pass.past + pass.depths[unit.row];
  if (rotates_whole(pass, pass.k_norm)) {
    rotate_whole(pass, key, position, [&](int d, VF value) { vf_store(x + d, value); });
  } else {
    const HeadNorm norm = norm_of(pass, pass.k_norm, pass.k_norm_of_row, pass.keys_of(unit.row), pass.kv_heads);
    rotate_head(pass, key, norm.at(unit.kv, pass.head_dim), position, x);
  }
  if (!pass.form().turns_keys) return;
  if (pass.key_centre != nullptr || pass.key_balance != nullptr) balance_key(pass, unit.kv, x);
  hadamard(x, pass.head_dim);
}

inline void append_value(const AttentionPass& pass, const AppendUnit& unit) {
  const KvFormat& format = pass.form();
  const float* value = key_of(pass, unit) + (pass.values_are_keys ? 0 : pass.key_features());
  float x[kMaxHeadDim + 16];
  if (pass.norms_values || pass.clip > 0 || format.turns_values) {
    const VF scale = vf_set1(pass.norms_values ? rms_scale(value, pass.head_dim, pass.epsilon) : 1.0f);
    for (int d = 0; d < pass.head_dim; d += 16) {
      vf_store(x + d, vf_mul(vf_load_n(value + d, pass.head_dim - d < 16 ? pass.head_dim - d : 16), scale));
    }
    if (pass.clip > 0) clip_head(pass, x, x);
    if (format.turns_values) hadamard(x, pass.head_dim);
    value = x;
  }
  kKvKernels[format.value].append(pass, pass.plane(1, unit.kv), pass.place_of(unit.row), value);
}

inline void append_units(const AttentionPass& pass, const AppendUnit* units, int count) {
  const KvCoding coding = pass.form().key;
  float x[kMostAppended][kMaxHeadDim + 16];
  if (coding == kCodedNibbles && pass.key_feedback != nullptr) {
    for (int i = 0; i < count; ++i) prepare_key(pass, units[i], x[i]);
    append_fed_back(pass, units, x, count);
  } else {
    for (int i = 0; i < count; ++i) {
      prepare_key(pass, units[i], x[0]);
      kKvKernels[coding].append(pass, pass.plane(0, units[i].kv), pass.place_of(units[i].row), x[0]);
    }
  }
  for (int i = 0; i < count; ++i) append_value(pass, units[i]);
}

inline void prepare_queries(const AttentionPass& pass, int64_t row, int kv) {
  const int64_t position = pass.past + pass.depths[row];
  float x[kMaxHeadDim + 16];
  const VF scale = vf_set1(pass.scale);
  const bool whole = rotates_whole(pass, pass.q_norm);
  const HeadNorm norm = norm_of(pass, pass.q_norm, pass.q_norm_of_row, pass.query_of(row, 0), pass.heads);
  for (int g = 0; g < pass.group; ++g) {
    const int64_t index = pass.query_place(kv, row) + g;
    const float* head = pass.query_of(row, kv * pass.group + g);
    float* query = pass.queries + index * pass.padded_dim;
    if (whole) {
      rotate_whole(pass, head, position, [&](int d, VF value) { vf_store(query + d, vf_mul(value, scale)); });
    } else {
      rotate_head(pass, head, norm.at(kv * pass.group + g, pass.head_dim), position, x);
      for (int d = 0; d < pass.head_dim; d += 16) {
        vf_store(query + d, vf_mul(vf_load_n(x + d, pass.head_dim - d < 16 ? pass.head_dim - d : 16), scale));
      }
    }
    if (pass.query_scale != nullptr) scale_query(pass, position, query);
    if (pass.form().turns_keys) {
      balance_query(pass, kv, query);
      hadamard(query, pass.head_dim);
    }
    if (pass.has_query_codes()) {
      round_query(query, pass.head_dim, pass.query_codes + index * padded_codes(pass.head_dim),
                  pass.query_scales + index * pass.groups(), pass.query_sums + index * pass.groups());
    }
  }
}
