// RowTopK on a GPU. A block of threads takes a part of a row: every warp finds the largest of its share one after the
// other, the first warp those of all, and 16 threads add up the part's exponentials in the CPU's order. A warp a row
// then joins the parts.
#include "gpu/cuda/lane_math.h"
#include "ops/row_top_k/row_top_k.h"

namespace edge_rt::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kWarpShare = static_cast<int>(kTopKPart) / kWarps;
constexpr int kOwn = kWarpShare / 32;  // of a thread

// A logit and its place as one number: the larger logit is larger, of equal ones the first. 0: none, or no number.
EDGE_RT_DEVICE uint64_t key_of(float value, int32_t id) {
  if (value != value) return 0;
  const uint32_t bits = bits_of_float(add(value, 0.0f));  // both zeros are one
  const uint32_t order = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  return uint64_t{order} << 32 | (0xffffffffu - static_cast<uint32_t>(id));
}
EDGE_RT_DEVICE int32_t id_of(uint64_t key) { return static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(key)); }

EDGE_RT_DEVICE uint64_t largest_of_warp(uint64_t key) {
  for (int bits = 16; bits > 0; bits /= 2) {
    const uint64_t other = exchange(key, bits);
    key = other > key ? other : key;
  }
  return key;
}

struct PartShared {
  uint64_t top[kWarps][kMaxTopK];  // of every warp, descending; 0 behind the last
  float exps[kTopKPart];
  float peak;
  int count;
};

// The k largest keys of the warp's share, into shared memory.
EDGE_RT_DEVICE void find_top_of_warp(const float* logits, int begin, int end, int k, uint64_t* top) {
  uint64_t own[kOwn];
  EDGE_RT_UNROLL(kOwn)
  for (int i = 0; i < kOwn; ++i) {
    const int id = begin + warp() * kWarpShare + 32 * i + lane();
    own[i] = id < end ? key_of(logits[id], id) : 0;
  }
  for (int place = 0; place < k; ++place) {
    uint64_t best = 0;
    EDGE_RT_UNROLL(kOwn)
    for (int i = 0; i < kOwn; ++i) best = own[i] > best ? own[i] : best;
    best = largest_of_warp(best);
    EDGE_RT_UNROLL(kOwn)
    for (int i = 0; i < kOwn; ++i) own[i] = own[i] == best ? 0 : own[i];
    if (lane() == 0) top[place] = best;
  }
}

// Of up to 32 descending lists, one a lane, the k largest keys, in order, given to `take` by all lanes. `next` returns
// number i of the lane's list, 0 behind its end.
template <class Next, class Take>
EDGE_RT_DEVICE void merge_lists(int k, Next next, Take take) {
  int at = 0;
  uint64_t head = next(at);
  for (int place = 0; place < k; ++place) {
    const uint64_t best = largest_of_warp(head);
    take(place, best);
    if (best != 0 && head == best) head = next(++at);
  }
}

EDGE_RT_DEVICE void top_of_part(const TopKRows& job, PartShared* shared) {
  const int part = block_x(), row = block_y(), k = job.k;
  const float* logits = job.logits + row * job.width;
  const int begin = part * static_cast<int>(kTopKPart);
  const int end = static_cast<int>(job.width - begin < kTopKPart ? job.width : begin + kTopKPart);
  TopKPart* out = job.parts + row * job.part_count() + part;
  find_top_of_warp(logits, begin, end, k, shared->top[warp()]);
  barrier();
  if (warp() == 0) {
    int count = 0;
    const auto next = [&](int i) { return lane() < kWarps && i < k ? shared->top[lane()][i] : uint64_t{0}; };
    merge_lists(k, next, [&](int place, uint64_t key) {
      if (key == 0) return;
      if (lane() == 0) {
        out->ids[place] = id_of(key);
        out->values[place] = logits[id_of(key)];
        if (place == 0) shared->peak = logits[id_of(key)];
      }
      count = place + 1;
    });
    if (lane() == 0) {
      shared->count = count;
      out->count = count;
    }
  }
  barrier();
  const float peak = shared->count > 0 ? shared->peak : float_of_bits(0xff800000u);
  for (int i = thread(); i < end - begin; i += kThreads) shared->exps[i] = vf_exp(vf_sub(logits[begin + i], peak));
  barrier();
  if (warp() != 0) return;
  // A half warp is the CPU's vector; the other one computes the same.
  float sum = 0.0f;
  EDGE_RT_UNROLL(8)
  for (int i = vector_lane(); i < end - begin; i += 16) sum = add(sum, shared->exps[i]);
  sum = vf_sum(sum);
  if (lane() != 0) return;
  out->peak = peak;
  out->sum = shared->count > 0 ? sum : 0.0f;
}

// The largest of all parts: 32 of them at once, beside those found so far.
EDGE_RT_DEVICE void join_tops(const TopKPart* parts, int count, int k, uint64_t (*top)[kMaxTopK]) {
  for (int i = lane(); i < k; i += 32) top[0][i] = 0;
  warp_barrier();
  int side = 0;
  for (int first = 0; first < count; first += 31, side ^= 1) {
    const int part = first + lane();
    const auto next = [&](int i) {
      if (i >= k) return uint64_t{0};
      if (lane() == 31) return top[side][i];
      return part < count && i < parts[part].count ? key_of(parts[part].values[i], parts[part].ids[i]) : uint64_t{0};
    };
    merge_lists(k, next, [&](int place, uint64_t key) {
      if (lane() == 0) top[side ^ 1][place] = key;
    });
    warp_barrier();
  }
  if (side == 1) {
    for (int i = lane(); i < k; i += 32) top[0][i] = top[1][i];
    warp_barrier();
  }
}

// The value that a key's logit has: of zeros, too, the sign is the logit's own.
EDGE_RT_DEVICE float value_of(const TopKRows& job, int row, uint64_t key) {
  return job.logits[row * job.width + id_of(key)];
}

EDGE_RT_DEVICE void join_row(const TopKRows& job, uint64_t (*top)[kMaxTopK]) {
  const int row = block_x(), count = static_cast<int>(job.part_count());
  const TopKPart* parts = job.parts + row * job.part_count();
  join_tops(parts, count, job.k, top);
  for (int i = lane(); i < job.k; i += 32) {
    const uint64_t key = top[0][i];
    job.ids[int64_t{row} * job.k + i] = key != 0 ? id_of(key) : -1;
    job.values[int64_t{row} * job.k + i] = key != 0 ? value_of(job, row, key) : float_of_bits(0xff800000u);
  }
  const bool has_any = top[0][0] != 0;
  const float peak = has_any ? value_of(job, row, top[0][0]) : float_of_bits(0xff800000u);
  float sum = 0.0f;
  for (int first = 0; first < count; first += 32) {
    const int part = first + lane();
    const bool adds = part < count && parts[part].count > 0;
    const float own = adds ? parts[part].sum : 0.0f, factor = adds ? vf_exp(vf_sub(parts[part].peak, peak)) : 0.0f;
    // A part that adds nothing leaves a sum that is not below 0 as it is.
    for (int i = 0; i < 32; ++i) sum = fma(broadcast(own, i), broadcast(factor, i), sum);
  }
  // The logarithm of what is no number would be one.
  const float log_sum = sum == sum ? add(peak, s_log(sum)) : sum;
  if (lane() == 0) job.log_sum_exp[row] = has_any ? log_sum : float_of_bits(0xff800000u);
}

}  // namespace

// Grid: parts, and rows.
EDGE_RT_KERNEL(row_top_k_parts, kThreads, TopKRows) {
  EDGE_RT_SHARED PartShared shared;
  top_of_part(args, &shared);
}

// Grid: rows.
EDGE_RT_KERNEL(row_top_k_join, 32, TopKRows) {
  EDGE_RT_SHARED uint64_t top[2][kMaxTopK];
  join_row(args, top);
}

}  // namespace edge_rt::gpu
