// Passes of attention that GPU kernels and the CPU's must give the same bits for.
#pragma once

#include <string>
#include <vector>

#include "tests/gpu_attention_run.h"
#include "tests/gpu_tables.h"

namespace edge_rt::golden {

// A cache that holds `past` rows, written by the CPU, and passes behind them.
class AttentionCase {
 public:
  AttentionCase(const std::string& name, Attention attention, int64_t past, const LauncherOf& launcher_of);

  // Both ways from the same cache, with each of some seeds; the program ends where bits of y or of the cache differ.
  // The cache then has the new rows.
  void pass(const std::vector<int32_t>& parents, int seeds, int64_t done = 0);
  // So many of the last pass's rows are committed.
  void commit(int64_t rows) { past_ += rows; }

 private:
  void compare(const void* found, const void* expected, size_t bytes, int seed, const char* what) const;

  std::string name_;
  Random random_;
  Attention attention_;
  int64_t past_, width_;
  LauncherOf launcher_of_;
};

// Every kind of head, mask and cache in a format, in passes of 1 to 18 rows and of prefill, behind contexts that end in
// the first chunk, the second, and the second span. Unless all are wanted, every number of rows has one of the shapes.
void run_attention_passes(int format, int seeds, bool all, const LauncherOf& launcher_of);

// The same for one shape that has something of everything, as quickly as it can be had.
void run_few_attention_passes(int format, int seeds);

}  // namespace edge_rt::golden
