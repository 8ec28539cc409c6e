#include "ops/quant_linear/quant_linear_run.h"

#include <atomic>
#include <vector>

#include "ops/quant_linear/lanes.h"

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

// A thread's own rounded rows. Shared ones would move between the cores' caches twice, which at 8 rows takes longer than
// to round them again; memory stays small, because only passes of few rows come here.
class OwnRows {
 public:
  Activations place(WeightFormat format, int64_t rows, int64_t blocks) {
    const size_t bytes = activation_bytes(format, rows, blocks) + 64;
    if (bytes > memory_.size()) memory_ = std::vector<unsigned char>(bytes);
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    return place_activations(format, rows, blocks, memory_.data() + (64 - address % 64) % 64);
  }

 private:
  std::vector<unsigned char> memory_;
};

// Tiles in lanes, one a thread, so that a thread fetches ahead what it will use itself; whose lane is done helps the
// others.
class TileLanes {
 public:
  TileLanes(const LinearRows& job, int lanes)
      : step_(job.paired ? 2 : 1), unit_bytes_(step_ * job.weight.tile_bytes()), weights_(job.weight.data),
        lanes_(job.weight.tiles / step_, (kItemBytes + unit_bytes_ - 1) / unit_bytes_, lanes) {}

  int64_t items() const { return lanes_.items(); }

  void run_item(const QuantLinearKernels& kernels, const LinearRows& job, int worker) {
    int seen = workers_.load(std::memory_order_relaxed);
    while (worker >= seen && !workers_.compare_exchange_weak(seen, worker + 1, std::memory_order_relaxed)) {
    }
    const Lanes::Range range = lanes_.claim(counters_, worker);
    kernels.tiles(job, range.begin * step_, range.end * step_, weights_ + range.lane_end * unit_bytes_);
  }

  int workers() const { return workers_.load(std::memory_order_relaxed); }

 private:
  int64_t step_, unit_bytes_;
  const uint8_t* weights_;
  Lanes lanes_;
  LaneCounters counters_;
  std::atomic<int> workers_{1};
};

}  // namespace

size_t run_scratch_bytes(WeightFormat format, int64_t rows, int64_t blocks) {
  return rows > kMaxOwnRows ? activation_bytes(format, rows, blocks) : 0;
}

int run_linear(const QuantLinearKernels& kernels, const RoundRows& rounding, const LinearRows& job,
               const Executor& executor, int lanes) {
  const int64_t rows = job.in.rows, blocks = job.in.blocks, groups = job.in.groups();
  TileLanes tiles(job, lanes);
  if (rows > kMaxOwnRows) {
    auto round = [&](int64_t group) { kernels.round_group(rounding, group, 0, blocks); };
    auto multiply = [&](int64_t, int worker) { tiles.run_item(kernels, job, worker); };
    run_phases(executor, {make_phase(groups, round), make_phase(tiles.items(), multiply)});
    return tiles.workers();
  }
  Activations own[kMaxWorkers];
  bool is_rounded[kMaxWorkers] = {};
  auto multiply = [&](int64_t, int worker) {
    if (!is_rounded[worker]) {
      static thread_local OwnRows memory;
      RoundRows mine = rounding;
      mine.out = own[worker] = memory.place(job.weight.format, rows, blocks);
      for (int64_t group = 0; group < groups; ++group) kernels.round_group(mine, group, 0, blocks);
      is_rounded[worker] = true;
    }
    LinearRows mine = job;
    mine.in = own[worker];
    tiles.run_item(kernels, mine, worker);
  };
  run_phases(executor, {make_phase(tiles.items(), multiply)});
  return tiles.workers();
}

}  // namespace edge_rt
