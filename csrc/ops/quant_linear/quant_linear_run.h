// How a checked product is spread over threads; knows nothing of ONNX Runtime.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "common/parallel.h"
#include "ops/quant_linear/lanes.h"
#include "ops/quant_linear/quant_linear.h"

namespace edge_rt {

// The hardware's own prefetcher stops at every page; without ours 8 rows take two thirds longer. One level alone has
// too few lines in flight, a tenth; but on Zen 5 two take them from each other: one row takes a fifth longer, four rows
// 4 %.
FetchAhead fetch_ahead();

// Scratch memory for `rows` rows of a matrix's input.
size_t activation_bytes(const PackedParts& weight, int64_t rows);

// Memory of the calling thread (own_memory) for unpacked tiles of a job; nullptr also where it has too few rows for
// that.
uint8_t* own_tiles(const LinearRows& job);

// Points Activations into scratch memory of that size, 64-byte aligned.
Activations place_activations(const PackedParts& weight, int64_t rows, void* scratch);

// Scratch memory that a LinearStep needs: none for few rows, which every thread rounds into memory of its own.
size_t step_scratch_bytes(const PackedParts& weight, int64_t rows);

// Rows that are rounded and multiplied, as phases of an operator. A product of few rows is one phase, of many rows two;
// a post_norm, which needs whole rows, is one more.
// The activations of `job` and `rounding` lie in scratch memory of step_scratch_bytes, or nowhere if that is 0; of a
// step that a feeding step rounds for, always in activation_bytes. `lanes` is the number of threads to plan for, which
// changes the speed only.
class LinearStep {
 public:
  LinearStep(const QuantLinearKernels& kernels, const RoundRows& rounding, const LinearRows& job, int lanes);
  LinearStep(const LinearStep&) = delete;
  LinearStep& operator=(const LinearStep&) = delete;

  // What this step computes is the input of `next`, which has no norm and runs right behind it: columns are rounded by
  // the thread that has just computed them. Not with a post_norm. To be called before add_phases of either.
  void feed(LinearStep* next);

  void add_phases(PhaseList* phases);

  // Some tiles were left out, because a thread had no memory for its rows.
  bool failed() const { return failed_.load(std::memory_order_relaxed); }

  // Threads that took part.
  int workers() const { return workers_.load(std::memory_order_relaxed); }

 private:
  void round(int64_t group, int worker);
  void multiply(int64_t item, int worker);
  void multiply_own(int64_t item, int worker);
  void norm_rows(int64_t item, int worker);
  int64_t rows_of_norm() const;  // of an item
  void run_tiles(LinearRows job, int worker);
  void split();

  const QuantLinearKernels& kernels_;
  RoundRows rounding_;
  LinearRows job_;
  const RoundRows* next_ = nullptr;  // what to round behind the tiles
  bool is_fed_ = false;              // the step before this one rounds for it
  int lane_count_;
  // Tiles lie in lanes, one a thread, so that a thread fetches ahead what it will use itself; whose lane is done helps
  // the others. A unit of `tile_step_` tiles is never cut.
  int64_t tile_step_;
  TileLanes lanes_;
  LaneCounters counters_;
  std::atomic<int> workers_{1};
  std::atomic<bool> failed_{false};
  Activations own_[kMaxWorkers];
  bool is_rounded_[kMaxWorkers] = {};
};

}  // namespace edge_rt
