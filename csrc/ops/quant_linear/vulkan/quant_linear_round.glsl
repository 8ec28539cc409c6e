// Rows of x as the product reads them: normed, rounded to codes, and laid out as Activations. A block of threads takes
// THREADS blocks of a row, which come through shared memory, a thread each.

#include "gpu/vulkan/lane_math.glsl"
#include "gpu/vulkan/block_rows.glsl"

// How a row is normed: v = (x - mean) * scale, times a weight.
struct RowNorm {
  float mean, scale;
};

Floats row_of_x(RoundJob job, int row) {
  return Floats(advanced(uvec2(job.its.x), uint(row), 4u * uint(low(job.its.features))));
}

// All threads of a block call it together.
RowNorm norm_of_row(RoundJob job, Floats x) {
  RowNorm norm = RowNorm(0.0, 1.0);
  if (is_null(uvec2(job.its.norm_weight))) return norm;
  const int n = low(job.its.features);
  float sum = 0.0;
  if (job.its.is_layer_norm != 0) {
    if (thread() < 64) {
      for (int i = thread(); i < n; i += 64) sum = sum + x.at[i];
    }
    norm.mean = div_exact(joined_row_sum(sum), float(n));
    sum = 0.0;
    if (thread() < 64) {
      for (int i = thread(); i < n; i += 64) {
        const float a = x.at[i] - norm.mean;
        sum = fused(a, a, sum);
      }
    }
  } else if (thread() < 64) {
    for (int i = thread(); i < n; i += 64) sum = fused(x.at[i], x.at[i], sum);
  }
  norm.scale = rms_scale_of(joined_row_sum(sum), n, job.its.epsilon);
  return norm;
}

// Number i of a row; behind its end as if all numbers were 0 there.
float normed(RoundJob job, Floats x, RowNorm norm, int i) {
  const bool is_in_row = i < low(job.its.features);
  const float v = is_in_row ? x.at[i] : 0.0;
  if (is_null(uvec2(job.its.norm_weight))) return v;
  const float weight = is_in_row ? job.its.norm_weight.at[i] : 0.0;
  if (job.its.is_layer_norm == 0) return v * norm.scale * weight;
  const float scaled = (v - norm.mean) * norm.scale;
  if (is_null(uvec2(job.its.norm_bias))) return scaled * weight;
  return fused(scaled, weight, is_in_row ? job.its.norm_bias.at[i] : 0.0);
}

const float LARGEST_FLOAT = 3.4028234663852886e38;
const uint MAGIC_BITS = 0x4b400000u;  // kMagicBits

// What a format needs of the sum of a group's codes; put_sums of the CPU.
uint sum_word(SumKind kind, float scale, int sum) {
  if (kind.scaled != 0) return floatBitsToUint(scale * float(sum));
  return (kind.times > 1 ? MAGIC_BITS : 0u) - uint(sum * kind.times);
}

// What is no number becomes 0.
int code_of(float value) { return value == value ? vi_round(value) : 0; }

const int OWN_STRIDE = BLOCK + 1;  // spreads threads over the banks of shared memory
shared float values_of_blocks[THREADS * OWN_STRIDE];

// The thread's block: its codes as block number `block` of the row at `place` of a group. `down` and `factor` make codes
// of values, `rest_factor` fine ones of what that leaves.
void put_block(RoundJob job, int row, int block, float scale, float down, float factor, float rest_factor,
               bool is_fine) {
  const int group = row / GROUP_ROWS, place = row % GROUP_ROWS, blocks = low(job.its.out_.blocks);
  const int rows = rows_of_group(low(job.its.out_.rows), group);
  const uint first_row = uint(group * GROUP_ROWS);
  const int at = block * rows + place;
  Words codes = Words(advanced(advanced(uvec2(job.its.out_.codes), first_row, uint(blocks * BLOCK)), uint(at),
                               uint(BLOCK)));
  int sums[2] = {0, 0};
  [[dont_unroll]] for (int word = 0; word < BLOCK / 4; ++word) {
    uint packed = 0u;
    int sum = 0;
    [[unroll]] for (int k = 0; k < 4; ++k) {
      const float value = values_of_blocks[thread() * OWN_STRIDE + 4 * word + k];
      int code = code_of(value * factor);
      if (is_fine) code = code_of(fused(down, float(code), value) * rest_factor);
      sum += code;
      packed |= (uint(code) & 0xffu) << 8 * k;
    }
    codes.at[word] = packed;
    if (word < BLOCK / 8) {
      sums[0] += sum;
    } else {
      sums[1] += sum;
    }
  }
  Floats(advanced(uvec2(job.its.out_.scale), first_row, uint(blocks) * 4u)).at[at] = scale;
  for (int number = 0; number < job.its.kinds.count; ++number) {
    const SumKind kind = job.its.kinds.kinds[number];
    Words to = Words(advanced(uvec2(job.its.out_.sums[number]), first_row, uint(blocks * kind.groups) * 4u));
    if (kind.groups == 1) {
      to.at[at] = sum_word(kind, scale, sums[0] + sums[1]);
    } else {
      to.at[2 * block * rows + place] = sum_word(kind, scale, sums[0]);
      to.at[(2 * block + 1) * rows + place] = sum_word(kind, scale, sums[1]);
    }
  }
}

// Where the fine codes of a block lie; -1: it has none.
int fine_place(RoundJob job, int block) {
  int to = low(job.its.out_.blocks) - job.its.fine.blocks;
  for (int run = 0; run < job.its.fine.count; ++run) {
    const int begin = job.its.fine.begin[run], end = job.its.fine.end[run];
    if (block >= begin && block < end) return to + block - begin;
    to += end - begin;
  }
  return -1;
}

// The largest of the thread's numbers without signs, in the CPU's order.
float peak_of_block() {
  const int first = thread() * OWN_STRIDE;
  float most[16];
  [[unroll]] for (int i = 0; i < 16; ++i) {
    most[i] = vf_max(vf_abs(values_of_blocks[first + i]), vf_abs(values_of_blocks[first + i + 16]));
  }
  [[unroll]] for (int half_of = 8; half_of > 0; half_of /= 2) {
    [[unroll]] for (int i = 0; i < half_of; ++i) most[i] = vf_max(most[i], most[i + half_of]);
  }
  return most[0];
}

// Row `row` of those of `out_`, which is x; stretch number `stretch` of it.
void round_stretch(RoundJob job, Floats x, RowNorm norm, int row, int stretch) {
  const int plain = low(job.its.out_.blocks) - job.its.fine.blocks, first = stretch * THREADS;
  const int count = min(plain - first, THREADS);
  if (job.its.rounds == 0) {
    Floats to = Floats(advanced(uvec2(job.its.out_.codes), uint(row), uint(low(job.its.out_.blocks) * BLOCK) * 4u));
    for (int i = thread(); i < count * BLOCK; i += THREADS) {
      to.at[first * BLOCK + i] = normed(job, x, norm, first * BLOCK + i);
    }
    return;
  }
  for (int i = thread(); i < count * BLOCK; i += THREADS) {
    values_of_blocks[i / BLOCK * OWN_STRIDE + i % BLOCK] = normed(job, x, norm, first * BLOCK + i);
  }
  meet();
  if (thread() >= count) return;
  const float peak = peak_of_block(), scale = div_exact(peak, 127.0);
  // The bound keeps blocks that are zero, or nearly so, from infinity.
  const float factor = vf_min(div_exact(127.0, peak), LARGEST_FLOAT);
  put_block(job, row, first + thread(), scale, 0.0, factor, 0.0, false);
  const int fine = job.its.fine.count == 0 ? -1 : fine_place(job, first + thread());
  if (fine < 0) return;
  put_block(job, row, fine, div_exact(scale, 254.0), -scale, factor, vf_min(factor * 254.0, LARGEST_FLOAT), true);
}
