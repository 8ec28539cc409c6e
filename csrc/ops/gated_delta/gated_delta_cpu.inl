// Kernels of gated_delta.h.

// A head of a row, times `factor` over its length.
inline void delta_unit(const float* x, const DeltaPass& pass, float factor, float* out) {
  const auto n = static_cast<int>(pass.shape.key_dim);
  const VF scale = vf_set1(1.0f / s_sqrt(sum_of_squares(x, n) + pass.key_epsilon) * factor);
  for (int i = 0; i < n; i += 16) vf_store(out + i, vf_mul(vf_load(x + i), scale));
}

inline void delta_prepare(const DeltaPass& pass, int64_t row) {
  const MatrixShape& shape = pass.shape;
  const int64_t keys = shape.keys(), heads = shape.value_heads;
  const float* const q_in = pass.qkv + row * (2 * keys + shape.values());
  float *const q = pass.prepared + row * pass.row_floats(), *const k = q + keys, *const decay = k + keys,
               *const beta = decay + heads;
  const float shrink = 1.0f / s_sqrt(static_cast<float>(shape.key_dim));
  for (int64_t at = 0; at < keys; at += shape.key_dim) {
    delta_unit(q_in + at, pass, shrink, q + at);
    delta_unit(q_in + keys + at, pass, 1.0f, k + at);
  }
  for (int64_t h = 0; h < heads; h += 16) {
    const int count = heads - h < 16 ? static_cast<int>(heads - h) : 16;
    const VF dt = vf_softplus(vf_add(vf_load_n(pass.a + row * heads + h, count), vf_load_n(pass.dt_bias + h, count)));
    vf_store_n(decay + h, vf_exp(vf_mul(vf_load_n(pass.a_scale + h, count), dt)), count);
    vf_store_n(beta + h, vf_sigmoid(vf_load_n(pass.b + row * heads + h, count)), count);
  }
  matrix_note(pass, row, decay, k);
}

// Rows as a stripe of a head sees them.
struct DeltaRows {
  static constexpr bool kCorrects = true;
  const float* prepared;  // q of the head in the first row
  const float* v;         // of the stripe
  int64_t keys, row_floats, width;
  const float *decay, *beta;  // of the head

  const float* key(int64_t i) const { return prepared + i * row_floats + keys; }
  MatrixRow row(int64_t i) const {
    return {key(i), prepared + i * row_floats, vf_set1(decay[i * row_floats]), vf_zero()};
  }
  VF d(int64_t i, VF shrink, VF dot) const {
    return vf_mul(vf_set1(beta[i * row_floats]), vf_fnma(shrink, dot, vf_load(v + i * width)));
  }
};

inline void delta_stripe(const DeltaPass& pass, int64_t head, int64_t stripe, float* scratch) {
  const MatrixShape& shape = pass.shape;
  const int64_t keys = shape.keys();
  const float* const decay = pass.prepared + 2 * keys + head;
  const DeltaRows rows{pass.prepared + shape.key_head_of(head) * shape.key_dim,
                       pass.qkv + 2 * keys + head * shape.value_dim + stripe * kStripe,
                       keys,
                       pass.row_floats(),
                       2 * keys + shape.values(),
                       decay,
                       decay + shape.value_heads};
  matrix_stripe(pass, rows, head, stripe, scratch);
}

inline void delta_finish(const DeltaPass& pass, int64_t row) {
  const MatrixShape& shape = pass.shape;
  const auto dim = static_cast<int>(shape.value_dim);
  for (int64_t head = 0; head < shape.value_heads; ++head) {
    float* const y = pass.y + row * shape.values() + head * dim;
    const float* const z = pass.z + row * shape.values() + head * dim;
    const VF scale = vf_set1(rms_scale(y, dim, pass.epsilon));
    for (int i = 0; i < dim; i += 16) {
      const VF normed = vf_mul(vf_mul(vf_load(y + i), scale), vf_load(pass.norm + i));
      vf_store(y + i, vf_mul(normed, vf_silu(vf_load(z + i))));
    }
  }
}

constexpr GatedDeltaKernels kGatedDeltaKernels{delta_prepare, delta_stripe, delta_finish};
