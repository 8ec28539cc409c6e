// Whether the tests of attention's GPU kernels find a barrier that is missing.
//
//   gpu_attention_faults          each barrier (minutes)
//   gpu_attention_faults short    some of them
#include "tests/gpu_attention_cases.h"
#include "tests/gpu_faults.h"
#include "ops/spec_attention/spec_attention_cuda.cu"

int main(int argc, char**) {
  using namespace edge_rt::golden;
  if (argc > 1) {
    return edge_rt::faults::try_without_barriers([] { run_few_attention_passes(edge_rt::kKvInt4, 2); }, 0, 6);
  }
  const auto passes = [] {
    for (const int format : {edge_rt::kKvF16, edge_rt::kKvInt8, edge_rt::kKvInt4, edge_rt::kKvInt4x2}) {
      run_few_attention_passes(format, 3);
    }
  };
  // Barriers whose lack fibers cannot show: one for contexts of more than 128 spans, and one that orders memory alone,
  // as an exchange before it has already made lanes meet.
  return edge_rt::faults::try_without_barriers(passes, 2, 1);
}
