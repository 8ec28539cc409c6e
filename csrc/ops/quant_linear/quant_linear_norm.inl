// Rows of x as the product reads them: normed, or as they are.

// v = x * rms * weight, or x alone.
struct NormedRow {
  const float* x;
  const float* weight;
  float rms;

  NormedRow() = default;
  NormedRow(const RoundRows& job, int64_t row) : x(job.x + row * job.features), weight(job.norm_weight), rms(1.0f) {
    if (weight != nullptr) rms = rms_scale(x, static_cast<int>(job.features), job.epsilon);
  }

  VF load(int64_t i) const {
    const VF v = vf_load(x + i);
    return weight == nullptr ? v : vf_mul(vf_mul(v, vf_set1(rms)), vf_load(weight + i));
  }
  VF load_n(int64_t i, int n) const {
    const VF v = vf_load_n(x + i, n);
    return weight == nullptr ? v : vf_mul(vf_mul(v, vf_set1(rms)), vf_load_n(weight + i, n));
  }
};

// v = (x - mean) * scale * weight + bias; the weight is always there.
struct LayerNormedRow {
  const float* x;
  const float* weight;
  const float* bias;
  LayerScale by;

  LayerNormedRow() = default;
  LayerNormedRow(const RoundRows& job, int64_t row)
      : x(job.x + row * job.features), weight(job.norm_weight), bias(job.norm_bias),
        by(layer_scale(x, static_cast<int>(job.features), job.epsilon)) {}

  VF normed(VF v) const { return vf_mul(vf_sub(v, vf_set1(by.mean)), vf_set1(by.scale)); }
  VF load(int64_t i) const {
    const VF v = normed(vf_load(x + i)), w = vf_load(weight + i);
    return bias == nullptr ? vf_mul(v, w) : vf_fma(v, w, vf_load(bias + i));
  }
  VF load_n(int64_t i, int n) const {
    const VF v = normed(vf_load_n(x + i, n)), w = vf_load_n(weight + i, n);
    return bias == nullptr ? vf_mul(v, w) : vf_fma(v, w, vf_load_n(bias + i, n));
  }
};
