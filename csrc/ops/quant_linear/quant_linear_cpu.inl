// QuantLinear on the CPU, in terms of the 16-lane types.

#include "ops/quant_linear/quant_linear_tile.inl"

// --- rounding rows of x ---

// v = x * rms * weight, or x alone.
struct NormedRow {
  const float* x;
  const float* weight;
  float rms;

  VF load(int64_t i) const {
    const VF v = vf_load(x + i);
    return weight == nullptr ? v : vf_mul(vf_mul(v, vf_set1(rms)), vf_load(weight + i));
  }
  VF load_n(int64_t i, int n) const {
    const VF v = vf_load_n(x + i, n);
    return weight == nullptr ? v : vf_mul(vf_mul(v, vf_set1(rms)), vf_load_n(weight + i, n));
  }
};

inline NormedRow normed_row(const RoundRows& job, int64_t row) {
  const float* x = job.x + row * job.features;
  const bool normed = job.norm_weight != nullptr;
  return {x, job.norm_weight, normed ? rms_scale(x, static_cast<int>(job.features), job.epsilon) : 1.0f};
}

inline void copy_row(const RoundRows& job, int64_t row, int64_t begin, int64_t end) {
  const NormedRow source = normed_row(job, row);
  float* to = reinterpret_cast<float*>(job.out.codes) + row * job.out.blocks * kBlock;
  for (int64_t i = begin * kBlock; i < end * kBlock; i += 16) {
    const int64_t left = job.features - i;
    vf_store(to + i, left >= 16 ? source.load(i) : source.load_n(i, left > 0 ? static_cast<int>(left) : 0));
  }
}

// Rounds the blocks of a group in the order they are stored, 16 at a time, so that their divisions, sums and stores
// fill vectors. A block of `rows` is one of block number index / rows, row index % rows.
inline void round_blocks(const RoundRows& job, int64_t group, int rows, int64_t begin, int64_t end) {
  NormedRow sources[kGroupRows];
  for (int m = 0; m < rows; ++m) sources[m] = normed_row(job, group * kGroupRows + m);
  int8_t* codes = job.out.group_codes(group);
  float* scales = job.out.group_scale(group);
  uint32_t* extras = job.out.group_extra(group);
  int64_t column = begin * kBlock;
  int row = 0;
  for (int64_t index = begin * rows; index < end * rows; index += 16) {
    const int64_t left = end * rows - index;
    const int count = left < 16 ? static_cast<int>(left) : 16;
    float values[16 * kBlock], up[16];
    VF peaks[16];
    VI sums[16];
    for (int i = 0; i < count; ++i) {
      const VF low = sources[row].load(column), high = sources[row].load(column + 16);
      vf_store(values + i * kBlock, low);
      vf_store(values + i * kBlock + 16, high);
      peaks[i] = vf_max(vf_abs(low), vf_abs(high));
      if (++row == rows) {
        row = 0;
        column += kBlock;
      }
    }
    for (int i = count; i < 16; ++i) {
      peaks[i] = vf_zero();
      sums[i] = vi_zero();
    }
    const VF peak = vf_hmax16(peaks), scale = vf_div(peak, vf_set1(127.0f));
    // The bound keeps blocks that are zero, or nearly so, from infinity.
    vf_store(up, vf_min(vf_div(vf_set1(127.0f), peak), vf_set1(3.4028234663852886e38f)));
    for (int i = 0; i < count; ++i) {
      const VF factor = vf_set1(up[i]);
      const VI low = vi_round(vf_mul(vf_load(values + i * kBlock), factor));
      const VI high = vi_round(vf_mul(vf_load(values + i * kBlock + 16), factor));
      vf_to_i8(codes + (index + i) * kBlock, low);
      vf_to_i8(codes + (index + i) * kBlock + 16, high);
      sums[i] = vi_add(low, high);
    }
    const VI sum = vi_sum16(sums);
    float total[16];
    int32_t correction[16];
    vf_store(total, vf_mul(scale, vf_from_i32(sum)));
    vi_store(correction, vi_shl(vi_sub(vi_zero(), sum), job.format == WeightFormat::kW4 ? 3 : 7));
    vf_store_n(scales + index, scale, count);
    const void* extra = job.format == WeightFormat::kW4M ? static_cast<const void*>(total) : correction;
    __builtin_memcpy(extras + index, extra, sizeof(uint32_t) * static_cast<size_t>(count));
  }
}

inline void round_group(const RoundRows& job, int64_t group, int64_t begin, int64_t end) {
  const int rows = job.out.group_rows(group);
  if (rounds_activations(job.format)) {
    round_blocks(job, group, rows, begin, end);
  } else {
    for (int m = 0; m < rows; ++m) copy_row(job, group * kGroupRows + m, begin, end);
  }
}

// --- tiles ---

template <int M, bool is_half>
inline void dot_tile_float(const Tile& tile, VF* out) {
  const float* x = reinterpret_cast<const float*>(tile.codes);
  const int64_t features = tile.blocks * kBlock;
  for (int m = 0; m < M; ++m) out[m] = vf_zero();
  for (int64_t k = 0; k < features; ++k) {
    const uint8_t* at = tile.weight + k * kTileRows * (is_half ? 2 : 4);
    const VF w =
        is_half ? vf_from_half(reinterpret_cast<const uint16_t*>(at)) : vf_load(reinterpret_cast<const float*>(at));
    for (int m = 0; m < M; ++m) out[m] = vf_fma(vf_set1(x[m * features + k]), w, out[m]);
  }
}

using DotTile = void (*)(const Tile&, VF*);

template <int M>
inline DotTile dot_tile_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::kW4M: return [](const Tile& tile, VF* out) { dot_tile_4bit<M, true>(tile, out); };
    case WeightFormat::kW4: return [](const Tile& tile, VF* out) { dot_tile_4bit<M, false>(tile, out); };
    case WeightFormat::kW8: return [](const Tile& tile, VF* out) { dot_tile_8bit<M>(tile, out); };
    case WeightFormat::kF16: return [](const Tile& tile, VF* out) { dot_tile_float<M, true>(tile, out); };
    case WeightFormat::kF32: return [](const Tile& tile, VF* out) { dot_tile_float<M, false>(tile, out); };
  }
  return nullptr;
}

inline DotTile dot_tile_of(WeightFormat format, int rows) {
  switch (rows) {
    case 1: return dot_tile_of<1>(format);
    case 2: return dot_tile_of<2>(format);
    case 3: return dot_tile_of<3>(format);
    case 4: return dot_tile_of<4>(format);
    case 5: return dot_tile_of<5>(format);
    case 6: return dot_tile_of<6>(format);
    case 7: return dot_tile_of<7>(format);
    default: return dot_tile_of<8>(format);
  }
  static_assert(kGroupRows == 8, "one case per number of rows");
}

// One output row of a tile, behind its product.
inline void finish(const LinearRows& job, int64_t row, int64_t column, int count, VF value) {
  const int64_t at = row * job.width + column;
  if (job.gate != nullptr) value = vf_mul(vf_silu(vf_load_n(job.gate + at, count)), value);
  if (job.residual != nullptr) value = vf_add(vf_load_n(job.residual + at, count), value);
  vf_store_n(job.y + at, value, count);
}

inline VF add_bias(const LinearRows& job, int64_t tile, VF value) {
  if (job.bias == nullptr) return value;
  const int64_t left = job.out_features - tile * kTileRows;
  return vf_add(value, vf_load_n(job.bias + tile * kTileRows, static_cast<int>(left < kTileRows ? left : kTileRows)));
}

// Rows of x whose codes stay in the second-level cache while a range of tiles walks over them.
constexpr int64_t kGroupsAtOnce = 16;

inline void group_of_tile(const LinearRows& job, int64_t tile, int64_t group, DotTile dot, const uint8_t* prefetch_end,
                          VF* out) {
  const PackedWeight& weight = job.weight;
  const int64_t row_codes = rounds_activations(weight.format) ? kBlock : kBlock * sizeof(float);
  const uint8_t* at = weight.data + tile * weight.tile_bytes();
  // Only the first group meets weights that are not in the cache yet.
  dot(Tile{at, weight.blocks, job.in.codes + group * kGroupRows * weight.blocks * row_codes, job.in.group_scale(group),
           job.in.group_extra(group), group % kGroupsAtOnce == 0 ? prefetch_end : at},
      out);
}

// Outputs of the last operator lie in other cores' caches, and so do the lines that ours will be written to. Both are
// asked for while the products are computed.
inline void fetch_outputs(const LinearRows& job, int64_t group, int rows, int64_t column) {
  for (int m = 0; m < rows; ++m) {
    const int64_t at = (group * kGroupRows + m) * job.width + column;
    prefetch_to_write(job.y + at);
    if (job.residual != nullptr) prefetch(job.residual + at);
    if (job.gate != nullptr) prefetch(job.gate + at);
  }
}

inline void linear_tiles(const LinearRows& job, int64_t begin, int64_t end, const uint8_t* prefetch_end) {
  const int64_t groups = job.in.groups();
  const int step = job.paired ? 2 : 1;
  for (int64_t first = 0; first < groups; first += kGroupsAtOnce) {
    const int64_t last = first + kGroupsAtOnce < groups ? first + kGroupsAtOnce : groups;
    for (int64_t tile = begin; tile < end; tile += step) {
      for (int64_t group = first; group < last; ++group) {
        const int rows = job.in.group_rows(group);
        const DotTile dot = dot_tile_of(job.weight.format, rows);
        const int64_t column = (job.paired ? tile / 2 : tile) * kTileRows;
        fetch_outputs(job, group, rows, column);
        VF value[kGroupRows], up[kGroupRows];
        group_of_tile(job, tile, group, dot, prefetch_end, value);
        if (job.paired) group_of_tile(job, tile + 1, group, dot, prefetch_end, up);
        const int64_t left = job.width - column;
        const int count = static_cast<int>(left < kTileRows ? left : kTileRows);
        for (int m = 0; m < rows; ++m) {
          VF v = add_bias(job, tile, value[m]);
          if (job.paired) v = vf_mul(vf_silu(v), add_bias(job, tile + 1, up[m]));
          finish(job, group * kGroupRows + m, column, count, v);
        }
      }
    }
  }
}

constexpr QuantLinearKernels kQuantLinearKernels{round_group, linear_tiles};
