// Rows in the cache's formats: writing them, and reading a tile of them.

// Copies the n < 16 elements at the end of a row, so that nothing behind the row is read.
template <class T>
inline void copy_tail(T out[16], const T* in, int n) {
  std::memset(out, 0, 16 * sizeof(T));
  std::memcpy(out, in, static_cast<size_t>(n) * sizeof(T));
}

inline void append_f32(const AttentionPass& pass, uint8_t* plane, int64_t at, const float* x) {
  float* row = reinterpret_cast<float*>(plane) + at * pass.head_dim;
  for (int d = 0; d < pass.head_dim; d += 16) {
    const int n = pass.head_dim - d < 16 ? pass.head_dim - d : 16;
    vf_store_n(row + d, vf_load_n(x + d, n), n);
  }
}

inline void append_f16(const AttentionPass& pass, uint8_t* plane, int64_t at, const float* x) {
  uint8_t* row = plane + at * pass.head_dim * 2;
  for (int d = 0; d < pass.head_dim; d += 16) {
    const int n = pass.head_dim - d < 16 ? pass.head_dim - d : 16;
    uint16_t halves[16];
    vf_to_half(halves, vf_load_n(x + d, n));
    std::memcpy(row + d * 2, halves, static_cast<size_t>(n) * 2);
  }
}

inline float half_scale(float largest, uint16_t* bits) {
  uint16_t halves[16];
  float floats[16];
  vf_to_half(halves, vf_set1(largest / 127.0f));
  vf_store(floats, vf_from_half(halves));
  *bits = halves[0];
  return floats[0];
}

inline VI to_codes(VF x) { return vi_round(vf_max(vf_set1(-127.0f), vf_min(vf_set1(127.0f), x))); }

inline void append_int8(const AttentionPass& pass, uint8_t* plane, int64_t at, const float* x) {
  uint8_t* codes = plane + at * pass.head_dim;
  uint8_t* scales = plane + pass.capacity * pass.head_dim + at * kv_groups(pass.head_dim) * 2;
  for (int d = 0; d < pass.head_dim; d += kKvGroup) {
    const int n = pass.head_dim - d < kKvGroup ? pass.head_dim - d : kKvGroup;
    const VF low = vf_load_n(x + d, n < 16 ? n : 16), high = vf_load_n(x + d + 16, n < 16 ? 0 : n - 16);
    uint16_t bits;
    const float scale = half_scale(vf_hmax(vf_max(vf_abs(low), vf_abs(high))), &bits);
    int8_t group[kKvGroup] = {};
    if (scale > 0) {
      vf_to_i8(group, to_codes(vf_div(low, vf_set1(scale))));
      vf_to_i8(group + 16, to_codes(vf_div(high, vf_set1(scale))));
    }
    std::memcpy(codes + d, group, static_cast<size_t>(n));
    std::memcpy(scales + d / kKvGroup * 2, &bits, 2);
  }
}

// The rows of a tile as floats: out[j] points to padded_dim floats, in the cache itself where its form allows.
inline void read_f32(const AttentionPass& pass, const uint8_t* plane, const int32_t* rows, const AttentionWork& work,
                     const float** out) {
  const float* base = reinterpret_cast<const float*>(plane);
  for (int j = 0; j < kKvTile; ++j) out[j] = base + static_cast<int64_t>(rows[j]) * pass.head_dim;
  if (pass.padded_dim == pass.head_dim) return;
  for (int j = 0; j < kKvTile; ++j) {
    float* to = work.rows + j * pass.padded_dim;
    for (int d = 0; d < pass.head_dim; d += 16) {
      vf_store(to + d, vf_load_n(out[j] + d, pass.head_dim - d < 16 ? pass.head_dim - d : 16));
    }
    out[j] = to;
  }
}

inline void read_f16(const AttentionPass& pass, const uint8_t* plane, const int32_t* rows, const AttentionWork& work,
                     const float** out) {
  for (int j = 0; j < kKvTile; ++j) {
    const uint16_t* from = reinterpret_cast<const uint16_t*>(plane) + static_cast<int64_t>(rows[j]) * pass.head_dim;
    float* to = work.rows + j * pass.padded_dim;
    int d = 0;
    for (; d + 16 <= pass.head_dim; d += 16) vf_store(to + d, vf_from_half(from + d));
    if (d < pass.head_dim) {
      uint16_t tail[16];
      copy_tail(tail, from + d, pass.head_dim - d);
      vf_store(to + d, vf_from_half(tail));
    }
    out[j] = to;
  }
}

// Scales of a tile, of one row after the other: scales[row * groups + group].
inline void read_scales(const AttentionPass& pass, const uint8_t* plane, const int32_t* rows, float* scales) {
  constexpr int kMost = kKvTile * kv_groups(kMaxHeadDim);
  const int groups = kv_groups(pass.head_dim);
  const uint8_t* base = plane + pass.capacity * pass.head_dim;
  uint16_t halves[kMost];
  if (groups == 2) {
    // The usual size: copies of a length that the compiler knows.
    for (int j = 0; j < kKvTile; ++j) std::memcpy(halves + 2 * j, base + static_cast<int64_t>(rows[j]) * 4, 4);
  } else {
    for (int j = 0; j < kKvTile; ++j) {
      const uint8_t* from = base + static_cast<int64_t>(rows[j]) * groups * 2;
      for (int g = 0; g < groups; ++g) std::memcpy(halves + j * groups + g, from + 2 * g, 2);
    }
  }
  for (int i = 0; i < groups; ++i) vf_store(scales + i * 16, vf_from_half(halves + i * 16));
}

inline void read_int8(const AttentionPass& pass, const uint8_t* plane, const int32_t* rows, const AttentionWork& work,
                      const float** out) {
  const int dim = pass.head_dim;
  read_scales(pass, plane, rows, work.scales);
  const float* scales = work.scales;
  for (int j = 0; j < kKvTile; ++j) {
    const int8_t* from = reinterpret_cast<const int8_t*>(plane) + static_cast<int64_t>(rows[j]) * dim;
    float* to = work.rows + j * pass.padded_dim;
    out[j] = to;
    int d = 0;
    for (; d + kKvGroup <= dim; d += kKvGroup) {
      const VF scale = vf_set1(*scales++);
      vf_store(to + d, vf_mul(vf_from_i8(from + d), scale));
      vf_store(to + d + 16, vf_mul(vf_from_i8(from + d + 16), scale));
    }
    if (d == dim) continue;
    const VF scale = vf_set1(*scales++);
    for (; d < dim; d += 16) {
      int8_t tail[16];
      copy_tail(tail, from + d, dim - d < 16 ? dim - d : 16);
      vf_store(to + d, vf_mul(vf_from_i8(tail), scale));
    }
  }
}

struct KvKernels {
  void (*append)(const AttentionPass& pass, uint8_t* plane, int64_t at, const float* x);
  void (*read)(const AttentionPass& pass, const uint8_t* plane, const int32_t* rows, const AttentionWork& work,
               const float** out);
  bool integer_keys;    // scores are integer sums over codes
};
constexpr KvKernels kKvKernels[kKvFormatCount] = {
    {append_f32, read_f32, false}, {append_f16, read_f16, false}, {append_int8, read_int8, true}};
