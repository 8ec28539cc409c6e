// Products of weights with codes on a GPU.
//
// Few rows: a block of threads takes a tile. Its warps read different blocks of weights, whose terms meet in shared
// memory, where a thread an output adds them up in the order of the CPU; the next blocks are on their way meanwhile.
// Many rows: a warp takes a tile and 32 rows, and keeps their sums in registers.

// One output behind its product; the thread's vector lane is its row in the tile.
EDGE_RT_DEVICE void put_output(const LinearRows& job, int64_t tile, int64_t row, VF value, VF up) {
  const int64_t column = (job.paired ? tile / 2 : tile) * kTileRows, left = job.width - column;
  VF v = add_bias(job, tile, value);
  if (job.paired) v = gated(job.steps, v, add_bias(job, tile + 1, up));
  finish(job, row, column, static_cast<int>(left < kTileRows ? left : kTileRows), has_plain_steps(job), v);
}

// --- few rows ---

// Rows of a column's terms, and a gap that spreads columns over the banks of shared memory.
constexpr int kColumn = kTileRows + 4;

// How a kernel for up to `rows` rows works: `groups` of them are multiplied with the same codes, `columns` of each
// kept; all warps together take the terms of `entries` groups of weights at once.
template <int row_count, int warp_count, int entry_count>
struct FewRows {
  static constexpr int kRows = row_count;
  static constexpr int kGroups = (kRows + kGroupRows - 1) / kGroupRows;
  static constexpr int kColumns = kRows < kGroupRows ? kRows : kGroupRows;
  static constexpr int kWarps = warp_count;
  static constexpr int kEntries = entry_count;
  static constexpr int kThreads = 32 * kWarps;
  static_assert(kThreads >= kTileRows * kColumns, "a thread for every output of a group");
  static_assert(kColumns % 2 == 0 && kEntries % (2 * kWarps) == 0, "lanes hold two columns, blocks two groups");

  // Numbers of a column, four of which are read at once, and a gap that spreads columns over the banks.
  struct alignas(16) Line {
    float of[kEntries + 4];
  };

  // Two halves: one is filled while the other is added up.
  struct Shared {
    struct Half {
      float terms[kEntries][kGroups][kColumns * kColumn];
      float minima[kEntries][kTileRows];
      Line scale[kGroups][kColumns];   // of rows of x
      Line totals[kGroups][kColumns];  // what minima are multiplied with
    };
    Half halves[2];
  };
};

// Terms of one block of weights, which are entry number `entry` and, of half blocks, the one behind it.
template <class Few, WeightFormat format>
EDGE_RT_DEVICE void put_terms(const LinearRows& job, int kind, const BlockPlace<format>& from, int block, int entry,
                              const Place& at, typename Few::Shared::Half* out) {
  constexpr WeightFacts kFacts = facts(format);
  WeightBlock<format> weights;
  weights.load(from, at);
  EDGE_RT_UNROLL(Few::kGroups)
  for (int group = 0; group < Few::kGroups; ++group) {
    const Columns columns(job, group, kind, kFacts.groups, at);
    const uint64_t x = columns.load(block);
    EDGE_RT_UNROLL(2)
    for (int part = 0; part < kFacts.groups; ++part) {
      uint32_t sums[2];
      columns.load_sums(block * kFacts.groups + part, sums);
      int c[4];
      weights.dot(part, x, sums, c, at);
      for (int k = 0; k < 2; ++k) {
        const int column = 2 * at.q + k;
        if (column >= Few::kColumns) continue;
        const Pair found = weights.terms(part, c, k);
        float* terms = &out->terms[entry + part][group][column * kColumn + 2 * at.g];
        terms[0] = found.first;
        terms[1] = found.second;
      }
    }
  }
  EDGE_RT_UNROLL(2)
  for (int part = 0; part < kFacts.groups; ++part) {
    if (!kFacts.has_minimum || at.q != 0) break;
    out->minima[entry + part][2 * at.g] = weights.scale[part].minimum.first;
    out->minima[entry + part][2 * at.g + 1] = weights.scale[part].minimum.second;
  }
}

// Copies what belongs to rows of x to where it is added up: of all entries that are taken at once a thread has one.
template <class Few, WeightFormat format>
class ScaleCopy {
 public:
  EDGE_RT_DEVICE ScaleCopy(const LinearRows& job, int kind)
      : group_(Few::kGroups == 1 ? 0 : thread() / kPlaces), column_(thread() % Few::kColumns),
        entry_(thread() % kPlaces / Few::kColumns), rows_(job.in.group_rows(group_)) {
    if (thread() >= kPlaces * Few::kGroups || column_ >= rows_) return;
    left_ = static_cast<int>(job.in.blocks) * kFacts.groups - entry_;
    scale_ = job.in.group_scale(group_) + entry_ / kFacts.groups * rows_ + column_;
    totals_ = job.in.group_sums(kind, kFacts.groups, group_) + entry_ * rows_ + column_;
  }

  // Of the entries from block `first` on. Loads and stores are apart: nobody waits here while weights are not under
  // way.
  EDGE_RT_DEVICE void load(int first) {
    if (first * kFacts.groups >= left_) return;
    own_scale_ = scale_[first * rows_];
    if (kFacts.has_minimum) own_total_ = totals_[first * kFacts.groups * rows_];
  }
  EDGE_RT_DEVICE void store(int first, typename Few::Shared::Half* out) const {
    if (first * kFacts.groups >= left_) return;
    out->scale[group_][column_].of[entry_] = own_scale_;
    if (kFacts.has_minimum) out->totals[group_][column_].of[entry_] = float_of_bits(own_total_);
  }

 private:
  static constexpr WeightFacts kFacts = facts(format);
  static constexpr int kPlaces = Few::kEntries * Few::kColumns;  // of a group of rows
  static_assert(kPlaces * Few::kGroups <= Few::kThreads, "a thread for every place");

  int group_, column_, entry_, rows_;
  int left_ = 0;  // entries from the thread's own first one on
  const float* scale_ = nullptr;
  const uint32_t* totals_ = nullptr;
  float own_scale_ = 0.0f;
  uint32_t own_total_ = 0;
};

// Adds `count` entries to the thread's outputs: row thread() % 16, column thread() / 16.
template <class Few, WeightFormat format>
EDGE_RT_DEVICE void add_entries(const typename Few::Shared::Half& stage, int count, float (&f)[Few::kGroups]) {
  const int column = thread() / kTileRows, row = thread() % kTileRows;
  EDGE_RT_UNROLL(8)
  for (int entry = 0; entry < count; ++entry) {
    for (int group = 0; group < Few::kGroups; ++group) {
      f[group] = fma(stage.terms[entry][group][column * kColumn + row], stage.scale[group][column].of[entry], f[group]);
      if (!facts(format).has_minimum) continue;
      f[group] = fma(stage.minima[entry][row], stage.totals[group][column].of[entry], f[group]);
    }
  }
}

// How many rounds of the loop below weights are fetched into the second-level cache before they are read: warps that
// wait for the sums of a round have no loads of their own under way. More than one gained nothing on an H200.
constexpr int kRoundsAhead = 1;

// Fetches the weights of blocks [first, end) of a tile.
template <class Few, WeightFormat format>
EDGE_RT_DEVICE void fetch_blocks(const FoundTile& tile, int first, int end) {
  constexpr int64_t kBytes = unit_bytes(format), kBlocks = facts(format).unit_blocks;
  const int64_t to = end * kBytes / kBlocks;
  EDGE_RT_UNROLL(1)
  for (int64_t at = first * kBytes / kBlocks + 128 * thread(); at < to; at += 128 * Few::kThreads) {
    fetch_line(tile.weight + at);
  }
}

// Sums f of the thread's output of every group of rows.
template <class Few, WeightFormat format>
EDGE_RT_DEVICE void add_up_tile(const LinearRows& job, const FoundTile& tile, typename Few::Shared* shared,
                                float (&f)[Few::kGroups]) {
  constexpr WeightFacts kFacts = facts(format);
  constexpr int kBlocks = Few::kEntries / kFacts.groups / Few::kWarps;  // of a warp, at once
  const Place at = place_in_warp();
  ScaleCopy<Few, format> scales(job, tile.kind);
  // Fine codes of x meet weights of blocks that are far apart.
  const int blocks = static_cast<int>(job.in.blocks), plain = static_cast<int>(job.weight.blocks());
  constexpr int kRound = Few::kWarps * kBlocks;
  int half = 0, fetched = kRound;
  for (int first = 0; first < blocks; first += kRound, half ^= 1) {
    typename Few::Shared::Half* stage = &shared->halves[half];
    const int ahead = first + (1 + kRoundsAhead) * kRound, last = ahead < plain ? ahead : plain;
    if (fetched < last) fetch_blocks<Few, format>(tile, fetched, last);
    fetched = ahead;
    const int own = warp() * kBlocks, block = first + own;
    scales.load(first);
    if (block + kBlocks <= plain) {
      const BlockPlace<format> from(tile, block);
      EDGE_RT_UNROLL(kBlocks)
      for (int i = 0; i < kBlocks; ++i) {
        put_terms<Few, format>(job, tile.kind, from.template behind<kBlocks>(i), block + i, (own + i) * kFacts.groups,
                               at, stage);
      }
    } else {
      EDGE_RT_UNROLL(1)
      for (int i = 0; i < kBlocks && block + i < blocks; ++i) {
        const int weights = static_cast<int>(job.weight.fine.weights_of(block + i, plain));
        put_terms<Few, format>(job, tile.kind, {tile, weights}, block + i, (own + i) * kFacts.groups, at, stage);
      }
    }
    scales.store(first, stage);
    barrier();
    if (thread() >= kTileRows * Few::kColumns) continue;
    const int left = (blocks - first) * kFacts.groups;
    if (left >= Few::kEntries) {
      add_entries<Few, format>(*stage, Few::kEntries, f);
    } else {
      add_entries<Few, format>(*stage, left, f);
    }
  }
  if constexpr (has_row_scale(format)) {
    const float row_scale = load_as<float>(tile.weight + unit_layout(format).d + 4 * (thread() % kTileRows));
    for (float& sum : f) sum = mul(row_scale, sum);
  }
  barrier();  // the next tile begins with the first half again
}

template <class Few>
EDGE_RT_DEVICE void multiply_few(const LinearRows& job, typename Few::Shared* shared) {
  const int step = job.paired ? 2 : 1;
  const int64_t tile = int64_t{block_x()} * step;
  float first[Few::kGroups] = {}, f[Few::kGroups] = {};  // of a pair's first tile, and of the last
  EDGE_RT_UNROLL(1)
  for (int i = 0; i < step; ++i) {
    const FoundTile found = find_tile(job, tile + i);
    for (int group = 0; group < Few::kGroups; ++group) {
      if (i > 0) first[group] = f[group];
      f[group] = 0.0f;
    }
    with_format(found.format, [&](auto tag) { add_up_tile<Few, decltype(tag)::kFormat>(job, found, shared, f); });
  }
  const int64_t column = thread() / kTileRows;
  for (int group = 0; group < Few::kGroups; ++group) {
    if (group >= job.in.groups() || column >= job.in.group_rows(group)) continue;
    const float value = job.paired ? first[group] : f[group];
    put_output(job, tile, group * kGroupRows + column, value, f[group]);
  }
}

// --- many rows ---

constexpr int kManyWarps = 4;
constexpr int kManyGroups = 4;

// Sums of 4 groups of rows from `first_group` on: of a lane's two rows of weights and two columns, as mma gives them.
template <WeightFormat format>
EDGE_RT_DEVICE void add_up_groups(const LinearRows& job, const FoundTile& tile, int64_t first_group,
                                  float (&f)[kManyGroups][4]) {
  constexpr WeightFacts kFacts = facts(format);
  const Place at = place_in_warp();
  const int64_t last_group = job.in.groups() - 1;
  EDGE_RT_UNROLL(1)
  for (int block = 0; block < static_cast<int>(job.in.blocks); ++block) {
    WeightBlock<format> weights;
    weights.load({tile, static_cast<int>(job.weight.fine.weights_of(block, job.weight.blocks()))}, at);
    EDGE_RT_UNROLL(kManyGroups)
    for (int i = 0; i < kManyGroups; ++i) {
      // Behind the last group it is that one again, whose outputs nobody stores twice.
      const int64_t group = first_group + i < last_group ? first_group + i : last_group;
      const Columns columns(job, group, tile.kind, kFacts.groups, at);
      const uint64_t x = columns.load(block);
      const float scale[2] = {columns.load_scale(block, 0), columns.load_scale(block, 1)};
      EDGE_RT_UNROLL(2)
      for (int part = 0; part < kFacts.groups; ++part) {
        uint32_t sums[2];
        columns.load_sums(block * kFacts.groups + part, sums);
        int c[4];
        weights.dot(part, x, sums, c, at);
        const Pair minimum = weights.scale[part].minimum;
        for (int k = 0; k < 2; ++k) {
          const Pair found = weights.terms(part, c, k);
          f[i][k] = fma(found.first, scale[k], f[i][k]);
          f[i][2 + k] = fma(found.second, scale[k], f[i][2 + k]);
          if constexpr (kFacts.has_minimum) {
            f[i][k] = fma(minimum.first, float_of_bits(sums[k]), f[i][k]);
            f[i][2 + k] = fma(minimum.second, float_of_bits(sums[k]), f[i][2 + k]);
          }
        }
      }
    }
  }
  if constexpr (has_row_scale(format)) {
    for (int k = 0; k < 4; ++k) {
      const float row_scale = load_as<float>(tile.weight + unit_layout(format).d + 4 * (2 * at.g + k / 2));
      for (int i = 0; i < kManyGroups; ++i) f[i][k] = mul(row_scale, f[i][k]);
    }
  }
}

// A group's outputs of both tiles of a pair, on their way from lanes that hold columns to lanes that hold rows.
struct Turned {
  float of[2][kGroupRows][kColumn];
};

EDGE_RT_DEVICE void turn(const float (&f)[4], float (*to)[kColumn]) {
  const Place at = place_in_warp();
  for (int k = 0; k < 4; ++k) to[2 * at.q + k % 2][2 * at.g + k / 2] = f[k];
}

EDGE_RT_DEVICE void multiply_many(const LinearRows& job, Turned* turned) {
  const int step = job.paired ? 2 : 1;
  const int64_t tile = (int64_t{block_x()} * kManyWarps + warp()) * step;
  if (tile >= job.weight.tiles()) return;  // warps do not meet each other
  const int64_t first_group = int64_t{block_y()} * kManyGroups;
  float first[kManyGroups][4] = {}, f[kManyGroups][4] = {};  // of a pair's first tile, and of the last
  EDGE_RT_UNROLL(1)
  for (int i = 0; i < step; ++i) {
    const FoundTile found = find_tile(job, tile + i);
    for (int k = 0; k < kManyGroups * 4; ++k) {
      if (i > 0) first[k / 4][k % 4] = f[k / 4][k % 4];
      f[k / 4][k % 4] = 0.0f;
    }
    with_format(found.format, [&](auto tag) { add_up_groups<decltype(tag)::kFormat>(job, found, first_group, f); });
  }
  EDGE_RT_UNROLL(kManyGroups)
  for (int i = 0; i < kManyGroups; ++i) {
    const int64_t group = first_group + i;
    if (group >= job.in.groups()) break;
    warp_barrier();
    turn(f[i], turned->of[1]);
    if (job.paired) turn(first[i], turned->of[0]);
    warp_barrier();
    EDGE_RT_UNROLL(1)
    for (int column = lane() / 16; column < job.in.group_rows(group); column += 2) {
      const int row = vector_lane();
      put_output(job, tile, group * kGroupRows + column, turned->of[job.paired ? 0 : 1][column][row],
                 turned->of[1][column][row]);
    }
  }
}
