// Products of weights that are floats on a GPU: every output is one chain of fused multiply-adds, inputs ascending.
//
// A block of threads takes a tile and a group of rows, a thread an output. Weights and x come through shared memory,
// the next inputs on their way while these are added.

constexpr int kFloatThreads = kTileRows * kGroupRows;
constexpr int kDepth = 64;  // inputs at once
constexpr int kOwnWeights = kDepth * kTileRows / kFloatThreads;
constexpr int kOwnInputs = kDepth * kGroupRows / kFloatThreads;

struct FloatStage {
  float weights[2][kDepth * kTileRows];
  float x[2][kGroupRows][kDepth];
};

// What a thread loads of a stage: neighbouring weights, and numbers of one row of x.
struct FloatLoads {
  float weights[kOwnWeights];
  float x[kOwnInputs];
};

EDGE_RT_DEVICE float float_weight(WeightFormat format, const uint8_t* tile, int64_t index) {
  if (format == WeightFormat::kF32) return reinterpret_cast<const float*>(tile)[index];
  const uint16_t half = reinterpret_cast<const uint16_t*>(tile)[index];
  return format == WeightFormat::kF16 ? float_of_half(half) : float_of_bits(uint32_t{half} << 16);
}

EDGE_RT_DEVICE void load_stage(const LinearRows& job, const FoundTile& tile, int64_t group, int64_t first,
                               FloatLoads* out) {
  const int64_t features = job.in.blocks * kBlock;
  const int rows = job.in.group_rows(group), row = thread() / kTileRows;
  const float* x = reinterpret_cast<const float*>(job.in.codes) +
                   (group * kGroupRows + (row < rows ? row : rows - 1)) * features + first;
  EDGE_RT_UNROLL(kOwnWeights)
  for (int i = 0; i < kOwnWeights; ++i) {
    const int at = thread() * kOwnWeights + i;
    out->weights[i] =
        first + at / kTileRows < features ? float_weight(tile.format, tile.weight, first * kTileRows + at) : 0.0f;
  }
  EDGE_RT_UNROLL(kOwnInputs)
  for (int i = 0; i < kOwnInputs; ++i) {
    const int at = thread() % kTileRows + kTileRows * i;
    out->x[i] = first + at < features ? x[at] : 0.0f;
  }
}

EDGE_RT_DEVICE void store_stage(const FloatLoads& loads, int half, FloatStage* stage) {
  for (int i = 0; i < kOwnWeights; ++i) stage->weights[half][thread() * kOwnWeights + i] = loads.weights[i];
  for (int i = 0; i < kOwnInputs; ++i) {
    stage->x[half][thread() / kTileRows][thread() % kTileRows + kTileRows * i] = loads.x[i];
  }
}

EDGE_RT_DEVICE float add_up_floats(const LinearRows& job, const FoundTile& tile, int64_t group, FloatStage* stage) {
  const int64_t features = job.in.blocks * kBlock;
  const int column = thread() / kTileRows, row = thread() % kTileRows;
  FloatLoads loads;
  load_stage(job, tile, group, 0, &loads);
  store_stage(loads, 0, stage);
  barrier();
  float f = 0.0f;
  int half = 0;
  for (int64_t first = 0; first < features; first += kDepth, half ^= 1) {
    const bool is_last = first + kDepth >= features;
    if (!is_last) load_stage(job, tile, group, first + kDepth, &loads);
    EDGE_RT_UNROLL(16)
    for (int k = 0; k < kDepth; ++k) {
      f = fma(stage->x[half][column][k], stage->weights[half][k * kTileRows + row], f);
    }
    if (!is_last) store_stage(loads, half ^ 1, stage);
    barrier();
  }
  return f;
}

EDGE_RT_DEVICE void multiply_floats(const LinearRows& job, int64_t group, FloatStage* stage) {
  const int64_t tile = int64_t{block_x()} * (job.paired ? 2 : 1);
  const float value = add_up_floats(job, find_tile(job, tile), group, stage);
  const float up = job.paired ? add_up_floats(job, find_tile(job, tile + 1), group, stage) : 0.0f;
  const int column = thread() / kTileRows;
  if (column < job.in.group_rows(group)) put_output(job, tile, group * kGroupRows + column, value, up);
}
