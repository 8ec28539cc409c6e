// GPU kernels against the golden bits: every case of QuantLinear, QuantEmbed, RowTopK, SpecAttention, ShortConv and ops
// with states. What else is on record are nodes, which are run as such.
#pragma once

#include <cstdint>

#include "gpu/launcher.h"

namespace edge_rt::golden {

// Of all cases every `count`-th one, beginning with that of a number: a part of a long run.
struct Shard {
  int64_t number = 0, count = 1;

  bool has(int64_t index) const { return index % count == number; }
};

// Says which cases differ from those of a file, and with `is_verbose` how long each took. `launcher`: has finished each
// kernel when it returns. 0: none differs; 1: some do; 2: the file cannot be read, or the shard has no case.
int compare_gpu_cases(const char* golden_bits, gpu::Launcher* launcher, const Shard& shard = {},
                      bool is_verbose = false);

}  // namespace edge_rt::golden
