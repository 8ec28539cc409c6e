// QuantLinear on the CPU, in terms of the 16-lane types.

#include "ops/quant_linear/quant_linear_tile.inl"
#include "ops/quant_linear/quant_linear_norm.inl"
#include "ops/quant_linear/quant_linear_finish.inl"

// --- rounding rows of x ---

template <class Source>
inline void copy_row(const RoundRows& job, int64_t row, int64_t begin, int64_t end) {
  const Source source(job, row);
  float* to = reinterpret_cast<float*>(job.out.codes) + row * job.out.blocks * kBlock;
  for (int64_t i = begin * kBlock; i < end * kBlock; i += 16) {
    const int64_t left = job.features - i;
    vf_store(to + i, left >= 16 ? source.load(i) : source.load_n(i, left > 0 ? static_cast<int>(left) : 0));
  }
}

// What a format needs of the sums of 16 blocks' codes.
inline void put_sums(const SumKind& kind, VF scale, VI sum, uint32_t* to, int count) {
  uint32_t words[16];
  if (kind.scaled) {
    vf_store(reinterpret_cast<float*>(words), vf_mul(scale, vf_from_i32(sum)));
  } else {
    const VI less = vi_sub(vi_zero(), sum), begin = vi_set1(kind.times > 1 ? kMagicBits : 0);
    vi_store(reinterpret_cast<int32_t*>(words), vi_add(begin, vi_shl(less, __builtin_ctz(kind.times | 256))));
  }
  __builtin_memcpy(to, words, sizeof(uint32_t) * static_cast<size_t>(count));
}

// The same of the halves of blocks: those of a block's rows follow each other, and behind them the second halves.
inline void put_halves(const SumKind& kind, VF scale, VI first, VI second, int rows, int64_t index, uint32_t* to,
                       int count) {
  uint32_t words[2][16];
  put_sums(kind, scale, first, words[0], 16);
  put_sums(kind, scale, second, words[1], 16);
  for (int i = 0; i < count; ++i) {
    const int64_t block = (index + i) / rows, row = (index + i) % rows;
    to[2 * block * rows + row] = words[0][i];
    to[(2 * block + 1) * rows + row] = words[1][i];
  }
}

// Rounds the blocks of a group in the order they are stored, 16 at a time, so that their divisions, sums and stores
// fill vectors. A block of `rows` is one of block number index / rows, row index % rows. With is_fine it is fine codes,
// stored from block number `to` on.
template <bool is_fine, class Source>
inline void round_blocks(const RoundRows& job, const Source* sources, int64_t group, int rows, int64_t begin,
                         int64_t end, int64_t to) {
  const int64_t moved = (to - begin) * rows;
  int8_t* codes = job.out.group_codes(group);
  float* scales = job.out.group_scale(group);
  int64_t column = begin * kBlock;
  int row = 0;
  for (int64_t index = begin * rows; index < end * rows; index += 16) {
    const int64_t left = end * rows - index;
    const int count = left < 16 ? static_cast<int>(left) : 16;
    float values[16 * kBlock];
    VF peaks[16];
    VI sums[2][16];
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
      sums[0][i] = sums[1][i] = vi_zero();
    }
    const VF peak = vf_hmax16(peaks), most = vf_set1(3.4028234663852886e38f);
    VF scale = vf_div(peak, vf_set1(127.0f));
    // The bound keeps blocks that are zero, or nearly so, from infinity.
    const VF factor = vf_min(vf_div(vf_set1(127.0f), peak), most);
    float up[16], down[16], more[16];
    vf_store(up, factor);
    if (is_fine) {
      vf_store(down, vf_neg(scale));
      vf_store(more, vf_min(vf_mul(factor, vf_set1(254.0f)), most));
      scale = vf_div(scale, vf_set1(254.0f));
    }
    for (int i = 0; i < count; ++i) {
      const auto code_of = [&](VF v) {
        const VI code = vi_round(vf_mul(v, vf_set1(up[i])));
        if (!is_fine) return code;
        return vi_round(vf_mul(vf_fma(vf_set1(down[i]), vf_from_i32(code), v), vf_set1(more[i])));
      };
      const VI low = code_of(vf_load(values + i * kBlock)), high = code_of(vf_load(values + i * kBlock + 16));
      vf_to_i8(codes + (moved + index + i) * kBlock, low);
      vf_to_i8(codes + (moved + index + i) * kBlock + 16, high);
      sums[0][i] = low;
      sums[1][i] = high;
    }
    vf_store_n(scales + moved + index, scale, count);
    const VI first = vi_sum16(sums[0]), second = vi_sum16(sums[1]);
    for (int kind = 0; kind < job.kinds.count; ++kind) {
      const SumKind& wanted = job.kinds.kinds[kind];
      uint32_t* to_sums = job.out.group_sums(kind, wanted.groups, group);
      if (wanted.groups == 1) {
        put_sums(wanted, scale, vi_add(first, second), to_sums + moved + index, count);
      } else {
        put_halves(wanted, scale, first, second, rows, moved + index, to_sums, count);
      }
    }
  }
}

template <class Source>
inline void round_group_of(const RoundRows& job, int64_t group, int64_t begin, int64_t end) {
  const int rows = job.out.group_rows(group);
  if (job.rounds) {
    Source sources[kGroupRows];
    for (int m = 0; m < rows; ++m) sources[m] = Source(job, group * kGroupRows + m);
    round_blocks<false>(job, sources, group, rows, begin, end, begin);
    int64_t to = job.blocks();
    for (int run = 0; run < job.fine.count; ++run) {
      const int64_t first = job.fine.begin[run], last = job.fine.end[run];
      const int64_t from = first > begin ? first : begin, until = last < end ? last : end;
      if (from < until) round_blocks<true>(job, sources, group, rows, from, until, to + from - first);
      to += last - first;
    }
  } else {
    for (int m = 0; m < rows; ++m) copy_row<Source>(job, group * kGroupRows + m, begin, end);
  }
}

inline void round_group(const RoundRows& job, int64_t group, int64_t begin, int64_t end) {
  if (job.is_layer_norm) {
    round_group_of<LayerNormedRow>(job, group, begin, end);
  } else {
    round_group_of<NormedRow>(job, group, begin, end);
  }
}

// --- tiles ---

inline VF load_weights(WeightFormat format, const uint8_t* at) {
  if (format == WeightFormat::kF32) return vf_load(reinterpret_cast<const float*>(at));
  const auto* halves = reinterpret_cast<const uint16_t*>(at);
  return format == WeightFormat::kF16 ? vf_from_half(halves) : vf_from_bfloat(halves);
}

template <WeightFormat format, int M>
inline void dot_tile_float(const Tile& tile, VF* out) {
  const float* x = reinterpret_cast<const float*>(tile.codes);
  const int64_t features = tile.blocks * kBlock;
  for (int64_t k = 0; k < features; ++k) {
    const VF w = load_weights(format, tile.weight + k * kTileRows * facts(format).float_bytes);
    for (int m = 0; m < M; ++m) out[m] = vf_fma(vf_set1(x[m * features + k]), w, out[m]);
  }
}

using DotTile = void (*)(const Tile&, VF*);

template <WeightFormat format, int M>
inline void dot_tile_any(const Tile& tile, VF* out) {
  if constexpr (rounds_activations(format)) {
    dot_tile<format, M>(tile, out);
  } else {
    dot_tile_float<format, M>(tile, out);
  }
}

struct DotTiles {
  DotTile of[kWeightFormatCount][kGroupRows];
  void (*unpack[kWeightFormatCount])(const Tile&, uint8_t*);  // nullptr: not on this instruction set
  DotTile unpacked[kWeightFormatCount];                       // of kGroupRows
  // Of a block: its share of a unit, of finer codes and, unpacked, of all.
  int64_t packed_bytes[kWeightFormatCount], finer_bytes[kWeightFormatCount], unpacked_bytes[kWeightFormatCount];
};

template <int format>
constexpr void set_tiles_of(DotTiles* table) {
  constexpr WeightFormat kFormat = read_as(static_cast<WeightFormat>(format));
  constexpr DotTile kTiles[] = {dot_tile_any<kFormat, 1>, dot_tile_any<kFormat, 2>, dot_tile_any<kFormat, 3>,
                                dot_tile_any<kFormat, 4>, dot_tile_any<kFormat, 5>, dot_tile_any<kFormat, 6>,
                                dot_tile_any<kFormat, 7>, dot_tile_any<kFormat, 8>};
  static_assert(kGroupRows == 8, "one for each number of rows");
  for (int i = 0; i < kGroupRows; ++i) table->of[format][i] = kTiles[i];
  table->packed_bytes[format] = block_bytes(kFormat);
  table->finer_bytes[format] = finer_bytes(kFormat);
#if defined(EDGE_RT_UNPACKS_TILES)
  if constexpr (rounds_activations(kFormat)) {
    table->unpack[format] = unpack_tile<kFormat>;
    table->unpacked[format] = dot_unpacked<kFormat>;
    table->unpacked_bytes[format] = unpacked_block_bytes(kFormat);
  }
#endif
  if constexpr (format + 1 < kWeightFormatCount) set_tiles_of<format + 1>(table);
}

constexpr DotTiles all_tiles() {
  DotTiles table{};
  set_tiles_of<0>(&table);
  return table;
}

constexpr DotTiles kDotTiles = all_tiles();

// Bytes of x's codes that stay in the second-level cache while a range of tiles walks over them.
constexpr int64_t kCodesAtOnce = 1 << 20;

inline int64_t groups_at_once(const LinearRows& job) {
  const int64_t groups = kCodesAtOnce / (kGroupRows * job.in.blocks * kBlock);
  return groups > kUnpackGroups ? groups : kUnpackGroups;
}

// A tile of a job, unpacked if that pays.
struct JobTile {
  Tile tile;
  int format;
  int kind;   // number of its kind of sums
  int words;  // of a block and row
  const uint8_t* unpacked;
  const float* row_scale;  // of the tile's 16 rows, or nullptr
};

// What multiplies whole rows of a tile, where its format has that.
inline const float* row_scale(WeightFormat format, const uint8_t* tile) {
  return has_row_scale(format) ? reinterpret_cast<const float*>(tile + unit_layout(format).d) : nullptr;
}

inline JobTile open_tile(const LinearRows& job, int64_t tile, int64_t prefetch_end, uint8_t* unpacked) {
  const int number = job.weight.find(&tile);
  const PackedWeight& weight = job.weight.parts[number];
  const int kind = job.weight.sums[number];
  JobTile out{{weight.tile(tile), weight.blocks, nullptr, nullptr, nullptr,
               weight.tile(job.weight.end_in(number, prefetch_end)), weight.finer(tile),
               weight.finer(job.weight.end_in(number, prefetch_end)), job.fetch},
              static_cast<int>(weight.format),
              kind,
              job.weight.kinds.kinds[kind].groups,
              nullptr,
              row_scale(weight.format, weight.tile(tile))};
  if (unpacked != nullptr && kDotTiles.unpack[out.format] != nullptr) {
    kDotTiles.unpack[out.format](out.tile, unpacked);
    out.unpacked = unpacked;
  }
  return out;
}

inline void group_of_tile(const LinearRows& job, const JobTile& of, int64_t group, bool is_first, VF* out) {
  const int64_t row_codes = job.weight.rounds() ? kBlock : kBlock * sizeof(float);
  const int rows = job.in.group_rows(group);
  Tile tile = of.tile;
  tile.codes = job.in.codes + group * kGroupRows * job.in.blocks * row_codes;
  tile.scale = job.in.group_scale(group);
  tile.sums = job.in.group_sums(of.kind, of.words, group);
  // Only the first group meets weights that are not in the cache yet.
  if (!is_first || of.unpacked != nullptr) tile.fetch_nothing();
  for (int m = 0; m < rows; ++m) out[m] = vf_zero();
  const bool is_unpacked = of.unpacked != nullptr && rows == kGroupRows;
  const DotTile dot = is_unpacked ? kDotTiles.unpacked[of.format] : kDotTiles.of[of.format][rows - 1];
  if (is_unpacked) tile.weight = of.unpacked;
  dot(tile, out);
  const FineBlocks& fine = job.weight.fine;
  // Units are not cut: fine blocks are whole ones.
  const int64_t bytes = (is_unpacked ? kDotTiles.unpacked_bytes : kDotTiles.packed_bytes)[of.format];
  const int64_t finer = kDotTiles.finer_bytes[of.format];
  const Tile all = tile;
  int64_t done = all.blocks;
  for (int run = 0; run < fine.count; ++run) {
    const int64_t first = fine.begin[run];
    tile.weight = all.weight + first * bytes;
    tile.finer = all.finer + first * finer;
    tile.blocks = fine.end[run] - first;
    tile.codes = all.codes + done * rows * kBlock;
    tile.scale = all.scale + done * rows;
    tile.sums = all.sums + done * rows * of.words;
    tile.fetch_nothing();
    dot(tile, out);
    done += tile.blocks;
  }
  if (of.row_scale == nullptr) return;
  const VF row_scale = vf_load(of.row_scale);
  for (int m = 0; m < rows; ++m) out[m] = vf_mul(row_scale, out[m]);
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

inline void linear_tiles(const LinearRows& job, int64_t begin, int64_t end, int64_t prefetch_end) {
  const int64_t groups = job.in.groups();
  const int64_t at_once = groups_at_once(job);
  const int step = job.paired ? 2 : 1;
  const bool is_plain = has_plain_steps(job);
  for (int64_t first = 0; first < groups; first += at_once) {
    const int64_t last = first + at_once < groups ? first + at_once : groups;
    for (int64_t tile = begin; tile < end; tile += step) {
      uint8_t* unpacked = last - first >= kUnpackGroups ? job.unpacked : nullptr;
      const JobTile own = open_tile(job, tile, prefetch_end, unpacked);
      if (unpacked != nullptr) unpacked += unpacked_bytes(job) / 2;
      const JobTile other = job.paired ? open_tile(job, tile + 1, prefetch_end, unpacked) : own;
      for (int64_t group = first; group < last; ++group) {
        const int rows = job.in.group_rows(group);
        const int64_t column = (job.paired ? tile / 2 : tile) * kTileRows;
        fetch_outputs(job, group, rows, column);
        VF value[kGroupRows], up[kGroupRows];
        group_of_tile(job, own, group, group == first, value);
        if (job.paired) group_of_tile(job, other, group, group == first, up);
        const int64_t left = job.width - column;
        const int count = static_cast<int>(left < kTileRows ? left : kTileRows);
        for (int m = 0; m < rows; ++m) {
          VF v = add_bias(job, tile, value[m]);
          if (job.paired) v = gated(job.steps, v, add_bias(job, tile + 1, up[m]));
          finish(job, group * kGroupRows + m, column, count, is_plain, v);
        }
      }
    }
  }
}

// --- whole rows behind all tiles ---

inline void post_norm_rows(const LinearRows& job, int64_t begin, int64_t end) {
  for (int64_t first = begin * job.width; first < end * job.width; first += job.post_width) {
    const VF rms = vf_set1(rms_scale(job.y + first, static_cast<int>(job.post_width), job.post_epsilon));
    for (int64_t i = 0; i < job.post_width; i += 16) {
      const int count = job.post_width - i < 16 ? static_cast<int>(job.post_width - i) : 16;
      float* y = job.y + first + i;
      const VF value = vf_mul(vf_mul(vf_load_n(y, count), rms), vf_load_n(job.post_norm + i, count));
      vf_store_n(y, add_residual(job, first + i, count, value), count);
    }
  }
}

constexpr QuantLinearKernels kQuantLinearKernels{round_group, linear_tiles, post_norm_rows};
