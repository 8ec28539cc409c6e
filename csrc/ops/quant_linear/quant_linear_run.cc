#include "ops/quant_linear/quant_linear_run.h"

#include <algorithm>
#include <memory>
#include <new>

namespace edge_rt {
namespace {

// Least work of an item, so that claiming it costs little.
constexpr int64_t kItemBytes = 24 << 10;

// Up to so many rows every thread rounds all of them for itself.
constexpr int64_t kMaxOwnRows = 2 * kGroupRows;

int64_t code_bytes(WeightFormat format, int64_t rows, int64_t blocks) {
  const int64_t bytes = rows * blocks * kBlock * (rounds_activations(format) ? 1 : 4);
  return (bytes + 63) / 64 * 64;
}

}  // namespace

size_t activation_bytes(WeightFormat format, int64_t rows, int64_t blocks) {
  return static_cast<size_t>(code_bytes(format, rows, blocks) + 8 * rows * blocks);
}

Activations place_activations(WeightFormat format, int64_t rows, int64_t blocks, void* scratch) {
  int8_t* codes = static_cast<int8_t*>(scratch);
  float* scale = reinterpret_cast<float*>(codes + code_bytes(format, rows, blocks));
  return {rows, blocks, codes, scale, reinterpret_cast<uint32_t*>(scale + rows * blocks)};
}

namespace {

// A thread's own rounded rows. Shared ones would move between the cores' caches twice, which at 8 rows takes longer
// than to round them again; memory stays small, because only passes of few rows come here.
class OwnRows {
 public:
  // False if there is no memory: an exception must not leave a thread of the pool.
  bool place(WeightFormat format, int64_t rows, int64_t blocks, Activations* out) {
    const size_t bytes = activation_bytes(format, rows, blocks) + 64;
    if (bytes > size_) {
      memory_.reset(new (std::nothrow) unsigned char[bytes]);
      size_ = memory_ == nullptr ? 0 : bytes;
    }
    if (memory_ == nullptr) return false;
    const auto address = reinterpret_cast<uintptr_t>(memory_.get());
    *out = place_activations(format, rows, blocks, memory_.get() + (64 - address % 64) % 64);
    return true;
  }

 private:
  std::unique_ptr<unsigned char[]> memory_;
  size_t size_ = 0;
};

}  // namespace

size_t step_scratch_bytes(WeightFormat format, int64_t rows, int64_t blocks) {
  return rows > kMaxOwnRows ? activation_bytes(format, rows, blocks) : 0;
}

LinearStep::LinearStep(const QuantLinearKernels& kernels, const RoundRows& rounding, const LinearRows& job, int lanes)
    : kernels_(kernels), rounding_(rounding), job_(job), lane_count_(lanes), tile_step_(job.paired ? 2 : 1),
      unit_bytes_(0), lanes_(0, 0, 1) {
  split();
}

void LinearStep::split() {
  unit_bytes_ = tile_step_ * job_.weight.tile_bytes();
  const int64_t units = (job_.weight.tiles + tile_step_ - 1) / tile_step_;
  lanes_ = Lanes(units, (kItemBytes + unit_bytes_ - 1) / unit_bytes_, lane_count_);
}

void LinearStep::feed(LinearStep* next) {
  next_ = &next->rounding_;
  next->is_fed_ = true;
  tile_step_ = kBlock / kTileRows * (job_.paired ? 2 : 1);
  split();
}

void LinearStep::add_phases(PhaseList* phases) {
  if (is_fed_) {
    phases->add(make_phase_of<&LinearStep::multiply>(lanes_.items(), this));
  } else if (job_.in.rows > kMaxOwnRows) {
    phases->add(make_phase_of<&LinearStep::round>(job_.in.groups(), this));
    phases->add(make_phase_of<&LinearStep::multiply>(lanes_.items(), this));
  } else {
    phases->add(make_phase_of<&LinearStep::multiply_own>(lanes_.items(), this));
  }
}

void LinearStep::round(int64_t group, int) { kernels_.round_group(rounding_, group, 0, job_.in.blocks); }

void LinearStep::multiply(int64_t, int worker) { run_tiles(job_, worker); }

void LinearStep::multiply_own(int64_t, int worker) {
  if (!is_rounded_[worker]) {
    static thread_local OwnRows memory;
    if (!memory.place(job_.weight.format, job_.in.rows, job_.in.blocks, &own_[worker])) {
      failed_.store(true, std::memory_order_relaxed);
      return;
    }
    RoundRows mine = rounding_;
    mine.out = own_[worker];
    for (int64_t group = 0; group < job_.in.groups(); ++group) kernels_.round_group(mine, group, 0, job_.in.blocks);
    is_rounded_[worker] = true;
  }
  LinearRows mine = job_;
  mine.in = own_[worker];
  run_tiles(mine, worker);
}

void LinearStep::run_tiles(const LinearRows& job, int worker) {
  int seen = workers_.load(std::memory_order_relaxed);
  while (worker >= seen && !workers_.compare_exchange_weak(seen, worker + 1, std::memory_order_relaxed)) {
  }
  const Lanes::Range range = lanes_.claim(counters_, worker);
  const int64_t end = std::min(range.end * tile_step_, job.weight.tiles);
  kernels_.tiles(job, range.begin * tile_step_, end, job.weight.data + range.lane_end * unit_bytes_);
  if (next_ == nullptr) return;
  for (int64_t group = 0; group < next_->out.groups(); ++group) {
    kernels_.round_group(*next_, group, range.begin, range.end);
  }
}

}  // namespace edge_rt
