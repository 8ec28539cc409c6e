// Whether the tests of QuantLinear's GPU kernels find a barrier that is missing.
//
//   gpu_linear_faults          each barrier
//   gpu_linear_faults short    some of them
#include "tests/gpu_linear_cases.h"
#include "tests/gpu_faults.h"
#include "ops/quant_linear/quant_linear_cuda.cu"

int main(int argc, char**) {
  const bool is_short = argc > 1;
  return edge_rt::faults::try_without_barriers(
      [&] { edge_rt::golden::run_few_linear_cases(edge_rt::golden::fiber_launcher, is_short ? 2 : 4); }, 0,
      is_short ? 3 : 1);
}
