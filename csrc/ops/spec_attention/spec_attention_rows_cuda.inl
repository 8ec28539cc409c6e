// What happens to a head of a row before it is attended with, by one warp: norm, rotation, turning, rounding.

struct RowShared {
  float head[kMaxHeadDim];
  float scale[kv_groups(kMaxHeadDim)], inverse[kv_groups(kMaxHeadDim)];
  float errors[kKvGroup];
};

EDGE_RT_DEVICE bool turns_keys(const AttentionPass& pass) { return pass.format >= kKvInt4; }
EDGE_RT_DEVICE bool turns_values(const AttentionPass& pass) { return pass.format >= kKvK8V4; }
EDGE_RT_DEVICE bool has_query_codes(const AttentionPass& pass) { return pass.format >= kKvInt8; }

// 1 / sqrt(mean of x^2 + eps), by one warp, in the order of kernels/simd_rows.inl; all lanes get it.
EDGE_RT_DEVICE float rms_scale(const float* x, int n, float epsilon) {
  float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  for (int i = vector_lane(); i < n; i += 64) {
    EDGE_RT_UNROLL(4)
    for (int k = 0; k < 4; ++k) {
      const float a = i + 16 * k < n ? x[i + 16 * k] : 0.0f;
      sums[k] = fma(a, a, sums[k]);
    }
  }
  const float total = vf_sum(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
  return div(1.0f, sqrt(add(div(total, from_int(n)), epsilon)));
}

// Pair number `i` of a Hadamard transform's step.
EDGE_RT_DEVICE void butterfly(float* x, int distance, int i) {
  const int d = i / distance * (2 * distance) + i % distance;
  const float a = x[d], b = x[d + distance];
  x[d] = add(a, b);
  x[d + distance] = add(a, -b);
}

// The steps of a head, which lies in shared memory; lanes meet between steps that exchange elements.
struct RowHead {
  const AttentionPass& pass;
  float* x;
  int64_t position;

  EDGE_RT_DEVICE int dim() const { return pass.head_dim; }

  EDGE_RT_DEVICE void load(const float* in) const {
    for (int d = lane(); d < dim(); d += 32) x[d] = in[d];
    warp_barrier();
  }

  EDGE_RT_DEVICE void multiply(float factor) const {
    for (int d = lane(); d < dim(); d += 32) x[d] = mul(x[d], factor);
    warp_barrier();
  }

  EDGE_RT_DEVICE void norm(const float* in, float scale, const float* weight) const {
    for (int d = lane(); d < dim(); d += 32) x[d] = mul(mul(in[d], scale), weight[d]);
    warp_barrier();
  }

  EDGE_RT_DEVICE void rotate() const {
    const int half = pass.half_rotary, first = pass.interleaved ? 2 : 1, second = pass.interleaved ? 1 : half;
    const float *cos = pass.cos + position * half, *sin = pass.sin + position * half;
    for (int i = lane(); i < half; i += 32) {
      const float a = x[first * i], b = x[first * i + second];
      x[first * i] = fma(-b, sin[i], mul(a, cos[i]));
      x[first * i + second] = fma(a, sin[i], mul(b, cos[i]));
    }
    warp_barrier();
  }

  EDGE_RT_DEVICE void clip() const {
    if (pass.clip == 0) return;
    for (int d = lane(); d < dim(); d += 32) x[d] = vf_min(vf_max(x[d], -pass.clip), pass.clip);
    warp_barrier();
  }

  // Head number `index` of those that `row` begins with, which lies at `in`; `heads` of them share a norm of the row.
  EDGE_RT_DEVICE void norm_and_rotate(const float* row, const float* in, int heads, int index, const float* weight,
                                      bool of_row) const {
    if (weight != nullptr && !pass.norms_after_rotation) {
      const float scale = of_row ? rms_scale(row, heads * dim(), pass.epsilon) : rms_scale(in, dim(), pass.epsilon);
      norm(in, scale, of_row ? weight + static_cast<int64_t>(index) * dim() : weight);
    } else {
      load(in);
    }
    clip();
    if (pass.half_rotary > 0) rotate();
    if (weight != nullptr && pass.norms_after_rotation) {
      norm(x, rms_scale(x, dim(), pass.epsilon), weight);
    }
  }

  EDGE_RT_DEVICE void hadamard() const {
    const int block = dim() & -dim();
    const float factor = sqrt(div(1.0f, from_int(block)));
    for (int d = lane(); d < dim(); d += 32) x[d] = mul(x[d], factor);
    for (int distance = 1; distance < block; distance *= 2) {
      warp_barrier();
      for (int i = lane(); i < dim() / 2; i += 32) butterfly(x, distance, i);
    }
    warp_barrier();
  }
};

EDGE_RT_DEVICE float clamp_code(float x, float low, float high) { return vf_max(low, vf_min(high, x)); }

// Rounds a query to int8 per group; the two halves of the warp have a group each. Elements behind the head are zeros.
EDGE_RT_DEVICE void round_query(const AttentionPass& pass, const float* x, int64_t query) {
  const int groups = pass.groups(), column = vector_lane();
  int8_t* codes = pass.query_codes + query * padded_codes(pass.head_dim);
  for (int pair = 0; pair < groups; pair += 2) {
    const int group = pair + lane() / 16, d = group * kKvGroup + column;
    const float low = d < pass.head_dim ? x[d] : 0.0f, high = d + 16 < pass.head_dim ? x[d + 16] : 0.0f;
    const float largest = vf_hmax(vf_max(vf_abs(low), vf_abs(high)));
    int first = 0, second = 0;
    if (largest > 0) {
      const float inverse = div(127.0f, largest);
      first = round_to_int(clamp_code(mul(low, inverse), -127.0f, 127.0f));
      second = round_to_int(clamp_code(mul(high, inverse), -127.0f, 127.0f));
    }
    const int sum = vi_sum(first + second);
    if (group >= groups) continue;
    codes[d] = static_cast<int8_t>(first);
    codes[d + 16] = static_cast<int8_t>(second);
    if (column == 0) {
      pass.query_scales[query * groups + group] = div(largest, 127.0f);
      pass.query_sums[query * groups + group] = sum;
    }
  }
}

EDGE_RT_DEVICE void prepare_query(const RowHead& head, int64_t row, int index) {
  const AttentionPass& pass = head.pass;
  const int kv = index / pass.group, dim = pass.head_dim;
  head.norm_and_rotate(pass.query_of(row, 0), pass.query_of(row, index), pass.heads, index, pass.q_norm,
                       pass.q_norm_of_row);
  const bool turns = turns_keys(pass);
  for (int d = lane(); d < dim; d += 32) {
    float value = mul(head.x[d], pass.scale);
    if (pass.query_scale != nullptr) value = mul(value, pass.query_scale[head.position]);
    if (turns && pass.key_balance != nullptr) value = mul(value, pass.key_balance[static_cast<int64_t>(kv) * dim + d]);
    head.x[d] = value;
  }
  warp_barrier();
  if (turns) head.hadamard();
  const int64_t query = pass.query_index(kv, row) + index % pass.group;
  if (has_query_codes(pass)) {
    round_query(pass, head.x, query);
    return;
  }
  for (int d = lane(); d < pass.padded_dim; d += 32) {
    pass.queries[query * pass.padded_dim + d] = d < dim ? head.x[d] : 0.0f;
  }
}

EDGE_RT_DEVICE void prepare_key(const RowHead& head, int64_t row, int kv) {
  const AttentionPass& pass = head.pass;
  const int dim = pass.head_dim;
  const float* keys = pass.keys_of(row);
  head.norm_and_rotate(keys, keys + static_cast<int64_t>(kv) * dim, pass.kv_heads, kv, pass.k_norm, pass.k_norm_of_row);
  if (!turns_keys(pass)) return;
  const int64_t first = static_cast<int64_t>(kv) * dim;
  for (int d = lane(); d < dim; d += 32) {
    float key = head.x[d];
    if (pass.key_centre != nullptr) key = add(key, -pass.key_centre[first + d]);
    if (pass.key_balance != nullptr) key = div(key, pass.key_balance[first + d]);
    head.x[d] = key;
  }
  head.hadamard();
}
