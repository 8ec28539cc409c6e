// What happens to the outputs of a tile behind the product. GPU kernels include it, too, where a thread is a lane.

inline VF add_bias(const LinearRows& job, int64_t tile, VF value) {
  if (job.bias == nullptr) return value;
  const int64_t left = job.out_features - tile * kTileRows;
  return vf_add(value, vf_load_n(job.bias + tile * kTileRows, static_cast<int>(left < kTileRows ? left : kTileRows)));
}

// With limits; what is no number stays so.
inline VF gated_within(const LinearSteps& steps, VF gate, VF value) {
  if (steps.limit != 0.0f) {
    const VF limit = vf_set1(steps.limit);
    gate = vf_min(limit, gate);
    value = vf_max(vf_neg(limit), vf_min(limit, value));
  }
  const VF power = vf_exp(vf_neg(vf_mul(vf_set1(steps.slope), gate)));
  return vf_mul(vf_div(gate, vf_add(vf_set1(1.0f), power)), vf_add(value, vf_set1(steps.up_offset)));
}

inline VF gated(const LinearSteps& steps, VF gate, VF value) {
  if (steps.activation == Activation::kGeluGate) return vf_mul(vf_gelu(value), gate);
  if (steps.has_limits()) return gated_within(steps, gate, value);
  return vf_mul(steps.activation == Activation::kGeglu ? vf_gelu(gate) : vf_silu(gate), value);
}

// A gate, a bias and a residual are all there is.
inline bool has_plain_steps(const LinearRows& job) {
  const LinearSteps& steps = job.steps;
  return steps.activation != Activation::kRelu2 && steps.output_scale == 1.0f && steps.softcap == 0.0f &&
         steps.residual_scale == 1.0f && job.post_norm == nullptr;
}

inline VF bend_and_scale(const LinearSteps& steps, VF value) {
  if (steps.activation == Activation::kRelu2) {
    const VF above = vf_max(vf_zero(), value);
    value = vf_mul(above, above);
  }
  if (steps.output_scale != 1.0f) value = vf_mul(vf_set1(steps.output_scale), value);
  if (steps.softcap != 0.0f) {
    const VF cap = vf_set1(steps.softcap);
    value = vf_mul(cap, vf_tanh(vf_div(value, cap)));
  }
  return value;
}

inline VF add_residual(const LinearRows& job, int64_t at, int count, VF value) {
  if (job.residual == nullptr) return value;
  return vf_fma(vf_set1(job.steps.residual_scale), value, vf_load_n(job.residual + at, count));
}

// One output row of a tile, behind its product.
inline void finish(const LinearRows& job, int64_t row, int64_t column, int count, bool is_plain, VF value) {
  const int64_t at = row * job.width + column;
  if (job.gate != nullptr) value = gated(job.steps, vf_load_n(job.gate + at, count), value);
  if (is_plain) {
    if (job.residual != nullptr) value = vf_add(vf_load_n(job.residual + at, count), value);
  } else {
    value = bend_and_scale(job.steps, value);
    if (job.post_norm == nullptr) value = add_residual(job, at, count, value);
  }
  vf_store_n(job.y + at, value, count);
}
