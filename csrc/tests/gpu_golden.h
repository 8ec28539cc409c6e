// GPU kernels against the golden bits: every case of QuantLinear, QuantEmbed, RowTopK, SpecAttention, ShortConv, ops
// with states, and Experts. What else is on record has no kernels there.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "gpu/launcher.h"

namespace edge_rt::golden {

// Of all cases every `count`-th one, beginning with that of a number: a part of a long run.
struct Shard {
  int64_t number = 0, count = 1;

  bool has(int64_t index) const { return index % count == number; }
};

// "2/16".
bool read_shard(const char* text, Shard* out);

// Of the cases of a shard those with a text in their names.
struct Selection {
  Shard shard;
  std::string text;
  // Whether the last case asked for kernels that are not there: it is counted and not compared.
  std::function<bool()> lacks_kernels;
};

// Says which cases differ from those of a file, and with `is_verbose` how long each took. `launcher`: has finished each
// kernel when it returns. 0: none differs; 1: some do; 2: the file cannot be read, or the shard has no case.
int compare_gpu_cases(const char* golden_bits, gpu::Launcher* launcher, const Selection& selection = {},
                      bool is_verbose = false);

}  // namespace edge_rt::golden
