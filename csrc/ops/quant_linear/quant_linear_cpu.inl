// QuantLinear on the CPU, in terms of the 16-lane types; included once per instruction set behind that set's
// quant_linear_tile_*.inl.

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

// Blocks rounded together, so that their divisions and sums fill a vector.
constexpr int kBlocksAtOnce = 16;

struct RoundedBlocks {
  float scale[kBlocksAtOnce];
  int32_t sum[kBlocksAtOnce];    // of the codes
  float total[kBlocksAtOnce];    // scale * sum
};

// Rounds `count` neighbouring blocks that begin at feature `first`; codes of a block lie `stride` bytes behind the last.
inline void round_blocks(const NormedRow& source, int64_t first, int count, int8_t* codes, int64_t stride,
                         RoundedBlocks* out) {
  float values[kBlocksAtOnce * kBlock], peak[kBlocksAtOnce] = {}, up[kBlocksAtOnce];
  for (int b = 0; b < count; ++b) {
    const VF low = source.load(first + b * kBlock), high = source.load(first + b * kBlock + 16);
    vf_store(values + b * kBlock, low);
    vf_store(values + b * kBlock + 16, high);
    peak[b] = vf_hmax(vf_max(vf_abs(low), vf_abs(high)));
  }
  const VF scale = vf_div(vf_load(peak), vf_set1(127.0f));
  // The bound keeps blocks that are zero, or nearly so, from infinity.
  vf_store(up, vf_min(vf_div(vf_set1(127.0f), vf_load(peak)), vf_set1(3.4028234663852886e38f)));
  VI sums[kBlocksAtOnce];
  for (int b = 0; b < kBlocksAtOnce; ++b) sums[b] = vi_zero();
  for (int b = 0; b < count; ++b, codes += stride) {
    const VF factor = vf_set1(up[b]);
    const VI low = vi_round(vf_mul(vf_load(values + b * kBlock), factor));
    const VI high = vi_round(vf_mul(vf_load(values + b * kBlock + 16), factor));
    vf_to_i8(codes, low);
    vf_to_i8(codes + 16, high);
    sums[b] = vi_add(low, high);
  }
  const VI sum = vi_sum16(sums);
  vf_store(out->scale, scale);
  vi_store(out->sum, sum);
  vf_store(out->total, vf_mul(scale, vf_from_i32(sum)));
}

// Blocks [begin, end) of one row of a group of `rows`.
inline void round_row(const RoundRows& job, int64_t group, int m, int rows, int64_t begin, int64_t end) {
  const NormedRow source = normed_row(job, group * kGroupRows + m);
  int8_t* codes = job.out.group_codes(group) + m * kBlock;
  float* scale = job.out.group_scale(group) + m;
  uint32_t* extra = job.out.group_extra(group) + m;
  const uint32_t offset = job.format == WeightFormat::kW4 ? -8u : -128u;
  const bool has_minimum = job.format == WeightFormat::kW4M;
  for (int64_t first = begin; first < end; first += kBlocksAtOnce) {
    const int64_t left = end - first;
    const int count = left < kBlocksAtOnce ? static_cast<int>(left) : kBlocksAtOnce;
    RoundedBlocks blocks;
    round_blocks(source, first * kBlock, count, codes + first * rows * kBlock, rows * kBlock, &blocks);
    for (int b = 0; b < count; ++b) {
      const int64_t at = (first + b) * rows;
      // Sums of what was no number may be any integer.
      const uint32_t correction = offset * static_cast<uint32_t>(blocks.sum[b]);
      scale[at] = blocks.scale[b];
      __builtin_memcpy(extra + at, has_minimum ? static_cast<const void*>(&blocks.total[b]) : &correction, 4);
    }
  }
}

inline void round_group(const RoundRows& job, int64_t group, int64_t begin, int64_t end) {
  const int rows = job.out.group_rows(group);
  for (int m = 0; m < rows; ++m) {
    if (rounds_activations(job.format)) {
      round_row(job, group, m, rows, begin, end);
    } else {
      copy_row(job, group * kGroupRows + m, begin, end);
    }
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
    const VF w = is_half ? vf_from_half(reinterpret_cast<const uint16_t*>(at)) : vf_load(reinterpret_cast<const float*>(at));
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

inline void linear_tiles(const LinearRows& job, int64_t begin, int64_t end, const uint8_t* prefetch_end) {
  const int64_t groups = job.in.groups();
  const int step = job.paired ? 2 : 1;
  for (int64_t first = 0; first < groups; first += kGroupsAtOnce) {
    const int64_t last = first + kGroupsAtOnce < groups ? first + kGroupsAtOnce : groups;
    for (int64_t tile = begin; tile < end; tile += step) {
      for (int64_t group = first; group < last; ++group) {
        const int rows = job.in.group_rows(group);
        const DotTile dot = dot_tile_of(job.weight.format, rows);
        VF value[kGroupRows], up[kGroupRows];
        group_of_tile(job, tile, group, dot, prefetch_end, value);
        if (job.paired) group_of_tile(job, tile + 1, group, dot, prefetch_end, up);
        const int64_t column = (job.paired ? tile / 2 : tile) * kTileRows;
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
