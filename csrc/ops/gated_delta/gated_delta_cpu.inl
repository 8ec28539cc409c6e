// Kernels of gated_delta.h.

EDGE_RT_INLINE VF delta_joined(const VF sums[4]) { return vf_add(vf_add(sums[0], sums[1]), vf_add(sums[2], sums[3])); }

// A head of a row, times `factor` over its length.
inline void delta_unit(const float* x, const DeltaShape& shape, float factor, float* out) {
  const auto n = static_cast<int>(shape.key_dim);
  const VF scale = vf_set1(1.0f / s_sqrt(sum_of_squares(x, n) + shape.key_epsilon) * factor);
  for (int i = 0; i < n; i += 16) vf_store(out + i, vf_mul(vf_load(x + i), scale));
}

inline void delta_prepare(const DeltaPass& pass, int64_t row) {
  const DeltaShape& shape = pass.shape;
  const int64_t keys = shape.keys(), heads = shape.value_heads;
  const float* const q_in = pass.qkv + row * (2 * keys + shape.values());
  float *const q = pass.prepared + row * shape.row_floats(), *const k = q + keys, *const decay = k + keys,
               *const beta = decay + heads;
  const float shrink = 1.0f / s_sqrt(static_cast<float>(shape.key_dim));
  for (int64_t at = 0; at < keys; at += shape.key_dim) {
    delta_unit(q_in + at, shape, shrink, q + at);
    delta_unit(q_in + keys + at, shape, 1.0f, k + at);
  }
  for (int64_t h = 0; h < heads; h += 16) {
    const int count = heads - h < 16 ? static_cast<int>(heads - h) : 16;
    const VF dt = vf_softplus(vf_add(vf_load_n(pass.a + row * heads + h, count), vf_load_n(pass.dt_bias + h, count)));
    vf_store_n(decay + h, vf_exp(vf_mul(vf_load_n(pass.a_scale + h, count), dt)), count);
    vf_store_n(beta + h, vf_sigmoid(vf_load_n(pass.b + row * heads + h, count)), count);
  }
  if (row < pass.certain) return;
  float* const transition = pass.transition(pass.written, row - pass.certain);
  std::memcpy(transition, decay, static_cast<size_t>(heads) * sizeof(float));
  std::memcpy(transition + heads, k, static_cast<size_t>(keys) * sizeof(float));
}

// A transition as a stripe of a head sees it.
struct DeltaTransition {
  const float *k, *d;
  float decay;
};

// Applies transitions, one after the other, to a stripe. Four at a time go through registers.
inline void delta_advance(const DeltaPass& pass, int64_t head, int64_t stripe, const float* from, float* to) {
  constexpr int64_t kTogether = 4;
  const DeltaShape& shape = pass.shape;
  for (int64_t first = 0; first < pass.advance_count; first += kTogether, from = to) {
    DeltaTransition list[kTogether];
    int64_t count = 0;
    for (; count < kTogether && first + count < pass.advance_count; ++count) {
      const float* const transition = pass.transition(const_cast<float*>(pass.read), pass.advance[first + count]);
      const float* const k = transition + shape.value_heads;
      list[count] = {k + shape.key_head_of(head) * shape.key_dim,
                     k + shape.keys() + head * shape.value_dim + stripe * kStripe, transition[head]};
    }
    for (int64_t i = 0; i < shape.key_dim; ++i) {
      VF s = vf_load(from + i * kStripe);
      for (int64_t t = 0; t < count; ++t) {
        s = vf_fma(vf_set1(list[t].k[i]), vf_load(list[t].d), vf_mul(vf_set1(list[t].decay), s));
      }
      vf_store(to + i * kStripe, s);
    }
  }
}

// The sum of k S.
inline VF delta_dot(const float* s, const float* k, int64_t dim) {
  VF sums[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
  for (int64_t i = 0; i < dim; i += 4) {
    for (int j = 0; j < 4; ++j) sums[j] = vf_fma(vf_set1(k[i + j]), vf_load(s + (i + j) * kStripe), sums[j]);
  }
  return delta_joined(sums);
}

// What a row adds to a stripe.
struct DeltaUpdate {
  const float *k, *q;
  VF decay, d;
};

// S after the row, and o. With `next`, the k of the row that follows, its sum with the new S as well: a stripe is then
// read and written once per row.
template <bool has_next>
EDGE_RT_INLINE VF delta_update(const float* from, float* to, const DeltaUpdate& row, const float* next, int64_t dim,
                               VF* next_dot) {
  VF o[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()}, dots[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
  for (int64_t i = 0; i < dim; i += 4) {
    for (int j = 0; j < 4; ++j) {
      const VF s = vf_fma(vf_set1(row.k[i + j]), row.d, vf_mul(row.decay, vf_load(from + (i + j) * kStripe)));
      vf_store(to + (i + j) * kStripe, s);
      o[j] = vf_fma(vf_set1(row.q[i + j]), s, o[j]);
      if constexpr (has_next) dots[j] = vf_fma(vf_set1(next[i + j]), s, dots[j]);
    }
  }
  if constexpr (has_next) *next_dot = delta_joined(dots);
  return delta_joined(o);
}

inline void delta_stripe(const DeltaPass& pass, int64_t head, int64_t stripe, float* scratch) {
  const DeltaShape& shape = pass.shape;
  const int64_t keys = shape.keys(), dim = shape.key_dim, width = 2 * keys + shape.values();
  const int64_t column = head * shape.value_dim + stripe * kStripe;
  const int64_t begin = (head * shape.stripes() + stripe) * shape.stripe_floats();
  float* const state = pass.written + begin;
  const float* start = pass.read != nullptr ? pass.read + begin : state;
  if (pass.read == nullptr) std::memset(state, 0, static_cast<size_t>(shape.stripe_floats()) * sizeof(float));
  if (pass.advance_count > 0) {
    delta_advance(pass, head, stripe, start, state);
    start = state;
  }
  if (pass.certain == 0 && start != state) {
    std::memcpy(state, start, static_cast<size_t>(shape.stripe_floats()) * sizeof(float));
    start = state;
  }
  VF dot = vf_zero();
  bool has_dot = false;
  for (int64_t i = 0; i < pass.rows; ++i) {
    const DeltaStep& step = pass.steps[i];
    const float* const q = pass.prepared + i * shape.row_floats() + shape.key_head_of(head) * dim;
    const float* const numbers = pass.prepared + i * shape.row_floats() + 2 * keys;  // decay and beta
    const float* const from = i == 0 ? start : step.from < 0 ? state : scratch + step.from * shape.stripe_floats();
    float* const to = step.to < 0 ? state : scratch + step.to * shape.stripe_floats();
    DeltaUpdate row{q + keys, q, vf_set1(numbers[head]), vf_zero()};
    if (!has_dot) dot = delta_dot(from, row.k, dim);
    const VF rest = vf_fnma(row.decay, dot, vf_load(pass.qkv + i * width + 2 * keys + column));
    row.d = vf_mul(vf_set1(numbers[shape.value_heads + head]), rest);
    if (i >= pass.certain) {
      float* const transition = pass.transition(pass.written, i - pass.certain);
      vf_store(transition + shape.value_heads + keys + column, row.d);
    }
    has_dot = step.is_followed;
    const VF o = has_dot ? delta_update<true>(from, to, row, row.k + shape.row_floats(), dim, &dot)
                         : delta_update<false>(from, to, row, nullptr, dim, &dot);
    vf_store(pass.y + i * shape.values() + column, o);
  }
}

inline void delta_finish(const DeltaPass& pass, int64_t row) {
  const DeltaShape& shape = pass.shape;
  const auto dim = static_cast<int>(shape.value_dim);
  for (int64_t head = 0; head < shape.value_heads; ++head) {
    float* const y = pass.y + row * shape.values() + head * dim;
    const float* const z = pass.z + row * shape.values() + head * dim;
    const VF scale = vf_set1(rms_scale(y, dim, shape.epsilon));
    for (int i = 0; i < dim; i += 16) {
      const VF normed = vf_mul(vf_mul(vf_load(y + i), scale), vf_load(pass.norm + i));
      vf_store(y + i, vf_mul(normed, vf_silu(vf_load(z + i))));
    }
  }
}

constexpr GatedDeltaKernels kGatedDeltaKernels{delta_prepare, delta_stripe, delta_finish};
