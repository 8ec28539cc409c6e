// Rounding of rows, 16 in the lanes of a vector; quantise.h says what, edge_rt/export/quantise/ why.
//
// Errors reach the inputs behind them in three steps: at once within a block of 32, after each block within a panel of
// 256, after each panel beyond it. Wherever an input lies, its sum takes the errors in the order of their inputs.

constexpr int64_t kRoundingBlock = 32, kRoundingPanel = 256;
// Inputs that a step adds to at once, as many as registers hold sums of. Which does not matter to the bits.
#if defined(EDGE_RT_SIMD_AVX512)
constexpr int kRoundingInputs = 8;
#else
constexpr int kRoundingInputs = 4;
#endif
constexpr float kTinyScale = 1e-30f;

// The floats of 16 rows: weights with the errors made up for so far, and the errors of a panel.
struct RoundingTile {
  float* target;  // [width][16]
  float* errors;  // [panel][16]
  int64_t row;    // the first one
  int64_t rows;   // up to 16; the other lanes are zeros
};

// Scale of a group, what it is divided by, and minimum.
struct RoundingScale {
  VF scale, inverse, minimum;
};

EDGE_RT_INLINE VF inverse_scale(VF scale) {
  return vf_where_less(vf_set1(kTinyScale), vf_abs(scale), vf_div(vf_set1(1.0f), scale), vf_zero());
}

// The integers, as floats, that weights over their scale are rounded to.
template <bool kIsTable>
EDGE_RT_INLINE VF rounded_to(const RoundingFormat& format, VF ratio) {
  if constexpr (kIsTable) {
    // What is no number becomes the lower end, as it does not in the other order.
    const VI integer = vi_round(vf_min(vf_max(ratio, vf_set1(-128.0f)), vf_set1(127.0f)));
    return vf_lookup(*format.table, integer);
  } else {
    return vf_from_i32(vi_round(vf_min(vf_max(ratio, vf_set1(format.lowest)), vf_set1(format.highest))));
  }
}

// Writes inputs of a tile's rows into lanes, [count][16]; lanes without a row are zeros.
void load_lanes(const RoundingTask& task, const RoundingTile& tile, int64_t input, int64_t count, float* lanes) {
  for (int64_t l = 0; l < 16; ++l) {
    if (l >= tile.rows) {
      for (int64_t i = 0; i < count; ++i) lanes[16 * i + l] = 0.0f;
      continue;
    }
    const float* row = task.weights + (tile.row + l) * task.inputs + input;
    for (int64_t i = 0; i < count; ++i) lanes[16 * i + l] = row[i];
  }
}

// The scale of a group without a minimum. For integers q of weights w of importance h the best one is
// sum h w q / sum h q^2, and what it gains, that times the first sum, is largest for the best q.
template <bool kIsTable>
VF fit_scale(const RoundingFormat& format, const float* target, const float* importance) {
  VF largest = vf_zero(), peak = vf_zero();
  for (int64_t i = 0; i < format.group; ++i) {
    const VF w = vf_load(target + 16 * i), size = vf_abs(w);
    peak = vf_where_less(largest, size, w, peak);
    largest = vf_max(size, largest);
  }
  VF best = vf_set1(-1.0f), scale = vf_zero();
  for (int start = 0; start < format.num_starts; ++start) {
    VF tried = vf_div(peak, vf_set1(format.starts[start])), gain = vf_zero();
    for (int round = 0; round < format.rounds; ++round) {
      const VF inverse = inverse_scale(tried);
      VF mixed = vf_zero(), squares = vf_zero();
      for (int64_t i = 0; i < format.group; ++i) {
        const VF w = vf_load(target + 16 * i), q = rounded_to<kIsTable>(format, vf_mul(w, inverse));
        const VF hq = vf_mul(vf_set1(importance[i]), q);
        mixed = vf_fma(hq, w, mixed);
        squares = vf_fma(hq, q, squares);
      }
      tried = vf_div(mixed, vf_max(squares, vf_set1(kTinyScale)));
      gain = vf_mul(mixed, tried);
    }
    scale = vf_where_less(best, gain, tried, scale);
    best = vf_max(gain, best);
  }
  return scale;
}

// Scale and minimum of a group, least squares of two unknowns.
void fit_range(const RoundingFormat& format, const float* target, const float* importance, VF* scale, VF* minimum) {
  const VF zero = vf_zero(), tiny = vf_set1(kTinyScale), steps = vf_set1(format.highest);
  VF least = vf_load(target), most = least, total = zero, sums = zero, squares = zero;
  for (int64_t i = 0; i < format.group; ++i) {
    const VF w = vf_load(target + 16 * i), h = vf_set1(importance[i]), hw = vf_mul(h, w);
    least = vf_min(w, least);
    most = vf_max(w, most);
    total = vf_add(total, h);
    sums = vf_add(sums, hw);
    squares = vf_fma(hw, w, squares);
  }
  // A format with factors cannot hold a minimum above 0.
  const bool has_factors = format.scales != kHalfScales;
  VF best = vf_set1(__builtin_inff());
  *scale = zero;
  *minimum = least;
  for (int start = 0; start < format.num_starts; ++start) {
    const VF half = vf_mul(vf_sub(most, least), vf_set1(format.starts[start] / 2));
    VF low = vf_sub(vf_mul(vf_add(least, most), vf_set1(0.5f)), half);
    VF step = vf_div(vf_add(half, half), steps);
    if (has_factors) {
      step = vf_where_less(zero, low, vf_div(vf_add(low, vf_add(half, half)), steps), step);
      low = vf_min(low, zero);
    }
    VF one = zero, two = zero, mixed = zero;
    for (int round = 0; round < format.rounds; ++round) {
      const VF inverse = inverse_scale(step);
      one = two = mixed = zero;
      for (int64_t i = 0; i < format.group; ++i) {
        const VF w = vf_load(target + 16 * i), q = rounded_to<false>(format, vf_mul(vf_sub(w, low), inverse));
        const VF hq = vf_mul(vf_set1(importance[i]), q);
        one = vf_add(one, hq);
        two = vf_fma(hq, q, two);
        mixed = vf_fma(hq, w, mixed);
      }
      const VF products = vf_mul(total, two), spread = vf_sub(products, vf_mul(one, one));
      const VF found = vf_div(vf_sub(vf_mul(total, mixed), vf_mul(one, sums)), vf_max(spread, tiny));
      const VF usable = vf_where_less(vf_mul(vf_set1(1e-6f), products), spread, found, zero);
      step = vf_where_less(zero, usable, found, step);
      low = vf_div(vf_sub(sums, vf_mul(step, one)), total);
      if (has_factors) {
        const VF alone = vf_where_less(zero, two, vf_div(mixed, vf_max(two, tiny)), step);
        step = vf_where_less(zero, low, alone, step);
        low = vf_min(low, zero);
      }
    }
    // The square of the error, multiplied out.
    VF error = vf_sub(squares, vf_mul(vf_set1(2.0f), vf_fma(step, mixed, vf_mul(low, sums))));
    error = vf_fma(vf_mul(step, step), two, error);
    error = vf_fma(vf_mul(vf_add(step, step), low), one, error);
    error = vf_fma(vf_mul(low, low), total, error);
    *scale = vf_where_less(error, best, step, *scale);
    *minimum = vf_where_less(error, best, low, *minimum);
    best = vf_min(error, best);
  }
}

// A number that groups of a unit share, as it is stored, and what a factor is: a scale over it.
struct SharedScale {
  VF stored, inverse;
};

// A unit of a tile while its blocks are rounded.
struct RoundingUnit {
  VF scales[16], minima[16];  // of its groups, as they were found
  SharedScale d, m;
};

template <bool kIsTable>
void fit_group(const RoundingFormat& format, const float* target, const float* importance, VF* scale, VF* minimum) {
  if (format.has_minimum != 0) {
    fit_range(format, target, importance, scale, minimum);
  } else {
    *scale = fit_scale<kIsTable>(format, target, importance);
    *minimum = vf_zero();
  }
}

// Writes d or m of a tile's rows, `units` numbers apart.
SharedScale store_shared(const RoundingTile& tile, VF number, uint16_t* to, int64_t units) {
  uint16_t halves[16];
  vf_to_half(halves, number);
  for (int64_t l = 0; l < tile.rows; ++l) to[(tile.row + l) * units] = halves[l];
  const VF stored = vf_from_half(halves);
  return {stored, inverse_scale(stored)};
}

// Writes the factor that makes most of a scale, and returns the scale that it makes.
VF store_factor(const RoundingTile& tile, VF scale, const SharedScale& shared, float lowest, float most, uint8_t* to,
                int64_t groups) {
  const VF ratio = vf_mul(scale, shared.inverse);
  const VI factor = vi_round(vf_min(vf_max(ratio, vf_set1(lowest)), vf_set1(most)));
  int32_t factors[16];
  vi_store(factors, factor);
  for (int64_t l = 0; l < tile.rows; ++l) to[(tile.row + l) * groups] = static_cast<uint8_t>(factors[l]);
  return vf_mul(shared.stored, vf_from_i32(factor));
}

// Searches the scales of the unit at `input`, and stores what its groups share.
template <bool kIsTable>
void fit_unit(const RoundingTask& task, const RoundingTile& tile, const float* target, int64_t input,
              RoundingUnit* found) {
  const RoundingFormat& format = *task.format;
  const int groups = format.unit / format.group;
  VF largest = vf_zero(), largest_minimum = vf_zero();
  for (int g = 0; g < groups; ++g) {
    const int at = g * format.group;
    fit_group<kIsTable>(format, target + 16 * at, task.importance + input + at, &found->scales[g], &found->minima[g]);
    largest = vf_max(vf_abs(found->scales[g]), largest);
    largest_minimum = vf_max(vf_abs(found->minima[g]), largest_minimum);
  }
  const int64_t units = task.inputs / format.unit, unit = input / format.unit;
  const bool has_factors = format.scales != kHalfScales;
  const VF most = vf_set1(format.scales == kSignedScales ? 127.0f : 255.0f);
  found->d = store_shared(tile, has_factors ? vf_div(largest, most) : found->scales[0], task.d + unit, units);
  if (format.has_minimum == 0) return;
  found->m = store_shared(tile, has_factors ? vf_div(largest_minimum, most) : found->minima[0], task.m + unit, units);
}

// Settles the scale of group `g` of a unit, which begins at `input`. `is_late`: errors made it another group than the
// one whose scale was found with the unit's.
template <bool kIsTable>
RoundingScale settle_group(const RoundingTask& task, const RoundingTile& tile, const float* target, int64_t input,
                           bool is_late, RoundingUnit* unit, int64_t g) {
  const RoundingFormat& format = *task.format;
  if (format.scales == kHalfScales) {
    return {unit->d.stored, unit->d.inverse, format.has_minimum != 0 ? unit->m.stored : vf_zero()};
  }
  if (is_late) {
    fit_group<kIsTable>(format, target, task.importance + input, &unit->scales[g], &unit->minima[g]);
  }
  const int64_t groups = task.inputs / format.group, group = input / format.group;
  VF scale, minimum = vf_zero();
  if (format.scales == kSignedScales) {
    scale = store_factor(tile, unit->scales[g], unit->d, -127.0f, 127.0f, task.scales + group, groups);
  } else {
    scale = store_factor(tile, unit->scales[g], unit->d, 0.0f, 255.0f, task.scales + group, groups);
    // Factors of minima are of their size: no minimum is above 0.
    minimum = vf_neg(store_factor(tile, vf_neg(unit->minima[g]), unit->m, 0.0f, 255.0f, task.minima + group, groups));
  }
  return {scale, inverse_scale(scale), minimum};
}

// Adds what the errors of inputs [first, last) make of the targets of [begin, end); rows of `factor` are inputs.
EDGE_RT_INLINE void add_errors_of(const float* factor, int64_t width, const float* errors, int64_t first, int64_t last,
                                  float* target, int64_t begin, int64_t count) {
  VF sums[kRoundingInputs];
  const float* rows[kRoundingInputs];
  for (int r = 0; r < kRoundingInputs; ++r) {
    // Where fewer inputs are left, the last one stands in for those beyond it.
    const int64_t i = begin + (r < count ? r : count - 1);
    sums[r] = vf_load(target + 16 * i);
    rows[r] = factor + i * width;
  }
  for (int64_t j = first; j < last; ++j) {
    const VF error = vf_load(errors + 16 * (j - first));
    for (int r = 0; r < kRoundingInputs; ++r) sums[r] = vf_fma(vf_set1(rows[r][j]), error, sums[r]);
  }
  for (int r = 0; r < kRoundingInputs && r < count; ++r) vf_store(target + 16 * (begin + r), sums[r]);
}

void add_errors(const float* factor, int64_t width, const RoundingTile* tiles, int num_tiles, int64_t panel,
                int64_t first, int64_t last, int64_t end) {
  for (int64_t i = last; i < end; i += kRoundingInputs) {
    for (int t = 0; t < num_tiles; ++t) {
      add_errors_of(factor, width, tiles[t].errors + 16 * (first - panel), first, last, tiles[t].target, i, end - i);
    }
  }
}

// Rounds the 32 inputs at `at`, which make up for each other's errors.
template <bool kIsTable>
void round_block(const RoundingTask& task, const float* factor, int64_t width, int64_t origin, int64_t at,
                 int64_t panel, const RoundingTile& tile, const RoundingScale* scales) {
  const RoundingFormat& format = *task.format;
  alignas(64) float weights[kRoundingBlock][16];
  alignas(64) int32_t integers[kRoundingBlock][16];
  const int64_t input = origin + at;
  load_lanes(task, tile, input, kRoundingBlock, weights[0]);
  float* target = tile.target + 16 * at;
  float* errors = tile.errors + 16 * (at - panel);
  for (int64_t j = 0; j < kRoundingBlock; ++j) {
    const RoundingScale& group = scales[j / format.group];
    const VF ratio = vf_mul(vf_sub(vf_load(target + 16 * j), group.minimum), group.inverse);
    const VF integer = rounded_to<kIsTable>(format, ratio);
    const VF value = vf_add(vf_mul(group.scale, integer), group.minimum);
    const VF error = vf_sub(vf_load(weights[j]), value);
    vi_store(integers[j], vi_round(integer));
    vf_store(errors + 16 * j, error);
    if (factor == nullptr) continue;
    for (int64_t i = j + 1; i < kRoundingBlock; ++i) {
      const VF share = vf_set1(factor[(at + i) * width + at + j]);
      vf_store(target + 16 * i, vf_fma(share, error, vf_load(target + 16 * i)));
    }
  }
  for (int64_t l = 0; l < tile.rows; ++l) {
    const int64_t place = (tile.row + l) * task.inputs + input;
    for (int64_t j = 0; j < kRoundingBlock; ++j) {
      const int32_t integer = integers[j][l];
      task.codes[place + j] =
          kIsTable ? format.table_codes[integer + 128] : static_cast<uint8_t>(integer + format.offset);
    }
    if (task.errors == nullptr) continue;
    for (int64_t j = 0; j < kRoundingBlock; ++j) task.errors[place + j] = errors[16 * j + l];
  }
}

// Rounds inputs [origin, origin + width), whose errors stay among them.
template <bool kIsTable>
void round_inputs(const RoundingTask& task, const float* factor, int64_t width, int64_t origin,
                  const RoundingTile* tiles, int num_tiles) {
  const RoundingFormat& format = *task.format;
  for (int t = 0; t < num_tiles; ++t) {
    load_lanes(task, tiles[t], origin, width, tiles[t].target);
  }
  RoundingUnit units[kMostTiles];
  for (int64_t panel = 0; panel < width; panel += kRoundingPanel) {
    const int64_t end = panel + kRoundingPanel < width ? panel + kRoundingPanel : width;
    for (int64_t at = panel; at < end; at += kRoundingBlock) {
      const int64_t within = at % format.unit;
      for (int t = 0; t < num_tiles; ++t) {
        const float* target = tiles[t].target + 16 * at;
        if (within == 0) fit_unit<kIsTable>(task, tiles[t], target, origin + at, &units[t]);
        RoundingScale scales[2];
        for (int64_t i = 0; i < kRoundingBlock; i += format.group) {
          scales[i / format.group] =
              settle_group<kIsTable>(task, tiles[t], target + 16 * i, origin + at + i, factor != nullptr && within > 0,
                                     &units[t], (within + i) / format.group);
        }
        round_block<kIsTable>(task, factor, width, origin, at, panel, tiles[t], scales);
      }
      if (factor != nullptr) add_errors(factor, width, tiles, num_tiles, panel, at, at + kRoundingBlock, end);
    }
    if (factor != nullptr) add_errors(factor, width, tiles, num_tiles, panel, panel, end, width);
  }
}

int64_t rounding_scratch(int64_t width) { return kMostTiles * 16 * (width + kRoundingPanel) + 16; }

void round_rows(const RoundingTask& task, int64_t begin, float* scratch) {
  const int64_t width = task.format->unit;
  int64_t widest = width;
  for (int64_t i = 0; i < task.num_factors; ++i) widest = task.widths[i] > widest ? task.widths[i] : widest;
  RoundingTile tiles[kMostTiles];
  int num_tiles = 0;
  for (int64_t row = begin; row < task.rows && num_tiles < kMostTiles; row += 16) {
    float* own = scratch + num_tiles * 16 * (widest + kRoundingPanel);
    tiles[num_tiles++] = {own, own + 16 * widest, row, task.rows - row < 16 ? task.rows - row : 16};
  }
  const auto round = task.format->table != nullptr ? round_inputs<true> : round_inputs<false>;
  if (task.num_factors == 0) {
    for (int64_t at = 0; at < task.inputs; at += width) round(task, nullptr, width, at, tiles, num_tiles);
    return;
  }
  int64_t origin = 0;
  for (int64_t i = 0; i < task.num_factors; ++i) {
    round(task, task.factors[i], task.widths[i], origin, tiles, num_tiles);
    origin += task.widths[i];
  }
}

constexpr QuantiseKernels kQuantiseKernels{rounding_scratch, round_rows};
