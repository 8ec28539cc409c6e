// QuantLinear, QuantEmbed and RowTopK of GPUs, on fibers, against the CPU's scalar kernels: the same bits.
//
//   gpu_linear_test                  some cases of every format, 2 seeds
//   gpu_linear_test <seeds>          all cases with so many seeds (minutes)
//   gpu_linear_test out_of_bounds    whether a read behind a matrix is found
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "ops/row_top_k/row_top_k_gpu.h"
#include "tests/check.h"
#include "tests/child.h"
#include "tests/golden_ops.h"
#include "tests/gpu_linear_cases.h"
#include "tests/gpu_tables.h"
#include "tests/pages.h"

namespace edge_rt::golden {
namespace {

// Whether one can multiply by a matrix of which so many bytes lie behind what may be read.
bool can_multiply(size_t bytes_behind) {
  Random random("out of bounds");
  const Matrix matrix(random, WeightFormat::kW4, 32, 96);
  const std::vector<float> x = random.uniform(matrix.inputs, 3.0f);
  PackedWeight weight = matrix.packed();
  const size_t bytes = static_cast<size_t>(weight.bytes()) - bytes_behind;
  char* begin = pages::before_closed_page(bytes);
  std::memcpy(begin, weight.data, bytes);
  weight.data = reinterpret_cast<uint8_t*>(begin);
  return comes_through(
      [&] { linear(gpu_kernels(fiber_launcher(1)), {one_part(weight), matrix.inputs, matrix.outputs}, x, 1, {}); }, 60);
}

int run_out_of_bounds() {
  CHECK(can_multiply(0));
  CHECK(!can_multiply(16));  // of the last scales
  return 0;
}

int run(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "out_of_bounds") == 0) return run_out_of_bounds();
  const bool all = argc == 2;
  const int seeds = all ? std::atoi(argv[1]) : 2;
  CHECK(seeds > 0);
  for (int i = 0; i < kWeightFormatCount; ++i) {
    const auto format = static_cast<WeightFormat>(i);
    run_linear_cases(fiber_launcher, format, seeds, all);
    for (int seed = 1; seed <= seeds; ++seed) run_embed_case(fiber_launcher(static_cast<uint64_t>(seed)), format);
    if (all) std::printf("%s: the bits of the CPU\n", format_name(format));
    std::fflush(stdout);
  }
  for (int seed = 1; seed <= seeds; ++seed) {
    for (const int k : {1, 5, kMaxTopK}) {
      for (const int64_t width : {int64_t{70}, 2 * kTopKPart + 777})
        run_top_k_case(fiber_launcher(static_cast<uint64_t>(seed)), k, width);
    }
    if (all) run_top_k_case(fiber_launcher(static_cast<uint64_t>(seed)), kMaxTopK, 33 * kTopKPart + 1);
  }
  return 0;
}

}  // namespace
}  // namespace edge_rt::golden

int main(int argc, char** argv) { return edge_rt::golden::run(argc, argv); }
