// Rows of x on a GPU: normed, rounded to codes, and laid out as Activations. A block of threads takes one row.

#include "ops/quant_linear/quant_linear_norm.inl"

// Numbers of 16 threads at once, of as many blocks as a thread block has half warps.
constexpr int kRoundThreads = 256;

// What a format needs of the sum of a group's codes; put_sums of the CPU.
EDGE_RT_DEVICE uint32_t sum_word(const SumKind& kind, float scale, int32_t sum) {
  if (kind.scaled) return bits_of_float(mul(scale, from_int(sum)));
  return static_cast<uint32_t>((kind.times > 1 ? kMagicBits : 0) - sum * kind.times);
}

template <class Source>
EDGE_RT_DEVICE void copy_row(const RoundRows& job, const Source& source, int64_t row, int64_t begin, int64_t end) {
  float* to = reinterpret_cast<float*>(job.out.codes) + row * job.out.blocks * kBlock;
  for (int64_t i = begin * kBlock + thread() / 16 * 16; i < end * kBlock; i += kRoundThreads) {
    const int64_t left = job.features - i;
    vf_store(to + i, source.load_n(i, left >= 16 ? 16 : left > 0 ? static_cast<int>(left) : 0));
  }
}

// Codes of a block of one row, two of the thread's own, their scale, and sums of the block's halves.
struct RoundedBlock {
  VI low, high;
  VF scale;
  VI low_sum, high_sum;

  EDGE_RT_DEVICE RoundedBlock(VF low_value, VF high_value, VF factor, VF scale_of_codes)
      : low(vi_round(vf_mul(low_value, factor))), high(vi_round(vf_mul(high_value, factor))), scale(scale_of_codes),
        low_sum(vi_sum(low)), high_sum(vi_sum(high)) {}

  // As block number `block` of the row at `place` of a group.
  EDGE_RT_DEVICE void put(const RoundRows& job, int64_t group, int64_t place, int64_t block) const {
    const int rows = job.out.group_rows(group);
    const int64_t index = block * rows + place;
    int8_t* codes = job.out.group_codes(group) + index * kBlock + vector_lane();
    codes[0] = static_cast<int8_t>(low);
    codes[16] = static_cast<int8_t>(high);
    if (vector_lane() != 0) return;
    job.out.group_scale(group)[index] = scale;
    for (int number = 0; number < job.kinds.count; ++number) {
      const SumKind& kind = job.kinds.kinds[number];
      uint32_t* to = job.out.group_sums(number, kind.groups, group);
      if (kind.groups == 1) {
        to[index] = sum_word(kind, scale, low_sum + high_sum);
      } else {
        to[2 * block * rows + place] = sum_word(kind, scale, low_sum);
        to[(2 * block + 1) * rows + place] = sum_word(kind, scale, high_sum);
      }
    }
  }
};

// Where the fine codes of a block lie; -1: it has none.
EDGE_RT_DEVICE int64_t fine_place(const RoundRows& job, int64_t block) {
  int64_t to = job.blocks();
  for (int run = 0; run < job.fine.count; ++run) {
    if (block >= job.fine.begin[run] && block < job.fine.end[run]) return to + block - job.fine.begin[run];
    to += job.fine.end[run] - job.fine.begin[run];
  }
  return -1;
}

template <class Source>
EDGE_RT_DEVICE void round_row(const RoundRows& job, const Source& source, int64_t row, int64_t begin, int64_t end) {
  const int64_t group = row / kGroupRows, place = row % kGroupRows;
  for (int64_t first = begin; first < end; first += kRoundThreads / 16) {
    const int64_t block = first + thread() / 16;
    const bool exists = block < end;  // exchanges are by whole warps
    const VF low = exists ? source.load(block * kBlock) : 0.0f;
    const VF high = exists ? source.load(block * kBlock + 16) : 0.0f;
    const VF peak = vf_hmax(vf_max(vf_abs(low), vf_abs(high))), scale = vf_div(peak, 127.0f);
    // The bound keeps blocks that are zero, or nearly so, from infinity.
    const VF factor = vf_min(vf_div(127.0f, peak), 3.4028234663852886e38f);
    const RoundedBlock codes(low, high, factor, scale);
    if (exists) codes.put(job, group, place, block);
    if (job.fine.count == 0) continue;
    const RoundedBlock fine(vf_fma(-scale, from_int(codes.low), low), vf_fma(-scale, from_int(codes.high), high),
                            vf_min(vf_mul(factor, 254.0f), 3.4028234663852886e38f), vf_div(scale, 254.0f));
    const int64_t to = exists ? fine_place(job, block) : -1;
    if (to >= 0) fine.put(job, group, place, to);
  }
}

// A block of threads takes `count` blocks of its row.
template <class Source>
EDGE_RT_DEVICE void round_blocks_of(const RoundRows& job, int64_t count) {
  const int64_t row = block_x(), begin = count * block_y();
  const int64_t end = begin + count < job.blocks() ? begin + count : job.blocks();
  const Source source(job, row);
  if (job.rounds) {
    round_row(job, source, row, begin, end);
  } else {
    copy_row(job, source, row, begin, end);
  }
}
