// Kernels of ssm_scan.h.

inline void ssm_prepare(const SsmPass& pass, int64_t row) {
  const int64_t heads = pass.shape.value_heads;
  const float* const t = pass.t + row * pass.t_stride;
  float *const decay = pass.prepared + row * pass.row_floats(), *const steps = decay + heads;
  for (int64_t h = 0; h < heads; h += 16) {
    const int count = heads - h < 16 ? static_cast<int>(heads - h) : 16;
    const VF step = vf_softplus(vf_add(vf_load_n(t + h, count), vf_load_n(pass.dt_bias + h, count)));
    vf_store_n(decay + h, vf_exp(vf_mul(vf_load_n(pass.a_scale + h, count), step)), count);
    vf_store_n(steps + h, step, count);
  }
  matrix_note(pass, row, decay, pass.xbc + row * pass.width() + pass.shape.values());
}

// Rows as a stripe of a head sees them.
struct SsmRows {
  static constexpr bool kCorrects = false;
  const float *x, *b;  // of the stripe, and of the head's group, in the first row
  int64_t keys, width, row_floats;
  const float *decay, *steps;  // of the head

  const float* key(int64_t i) const { return b + i * width; }
  MatrixRow row(int64_t i) const { return {key(i), key(i) + keys, vf_set1(decay[i * row_floats]), vf_zero()}; }
  VF d(int64_t i, VF, VF) const { return vf_mul(vf_set1(steps[i * row_floats]), vf_load(x + i * width)); }
};

inline void ssm_stripe(const SsmPass& pass, int64_t head, int64_t stripe, float* scratch) {
  const MatrixShape& shape = pass.shape;
  const float* const decay = pass.prepared + head;
  const SsmRows rows{pass.xbc + head * shape.value_dim + stripe * kStripe,
                     pass.xbc + shape.values() + shape.key_head_of(head) * shape.key_dim,
                     shape.keys(),
                     pass.width(),
                     pass.row_floats(),
                     decay,
                     decay + shape.value_heads};
  matrix_stripe(pass, rows, head, stripe, scratch);
}

// y through its gate.
inline void ssm_gate(float* y, const float* z, int64_t count) {
  for (int64_t i = 0; i < count; i += 16) vf_store(y + i, vf_mul(vf_load(y + i), vf_silu(vf_load(z + i))));
}

inline void ssm_finish(const SsmPass& pass, int64_t row) {
  const MatrixShape& shape = pass.shape;
  const int64_t values = shape.values(), of_group = values / shape.key_heads;
  const float *const x = pass.xbc + row * pass.width(), *const z = pass.z + row * pass.z_stride;
  float* const y = pass.y + row * values;
  for (int64_t head = 0, i = 0; head < shape.value_heads; ++head) {
    const VF skip = vf_set1(pass.skip[head]);
    for (const int64_t end = i + shape.value_dim; i < end; i += 16) {
      vf_store(y + i, vf_fma(skip, vf_load(x + i), vf_load(y + i)));
    }
  }
  if (pass.order != GateOrder::kNormGate) ssm_gate(y, z, values);
  if (pass.order == GateOrder::kGate) return;
  for (int64_t group = 0; group < values; group += of_group) {
    const VF scale = vf_set1(rms_scale(y + group, static_cast<int>(of_group), pass.epsilon));
    for (int64_t i = group; i < group + of_group; i += 16) {
      vf_store(y + i, vf_mul(vf_mul(vf_load(y + i), scale), vf_load(pass.norm + i)));
    }
  }
  if (pass.order == GateOrder::kNormGate) ssm_gate(y, z, values);
}

constexpr SsmScanKernels kSsmScanKernels{ssm_prepare, ssm_stripe, ssm_finish};
