// QuantLinear, QuantEmbed and RowTopK on a GPU by way of its driver, against the CPU's scalar kernels: the same bits.
//
//   gpu_linear_vulkan <folder of SPIR-V>           some cases of every format
//   gpu_linear_vulkan <folder of SPIR-V> all       all cases
//   gpu_linear_vulkan <folder of SPIR-V> few       every kernel of QuantLinear in three formats
#include <cstdio>
#include <cstring>

#include "ops/row_top_k/row_top_k_gpu.h"
#include "tests/golden_ops.h"
#include "tests/gpu_device_launcher.h"
#include "tests/gpu_linear_cases.h"

namespace edge_rt::golden {
namespace {

int run(int argc, char** argv) {
  const bool few = argc == 3 && std::strcmp(argv[2], "few") == 0;
  bool all = false;
  gpu::DeviceLauncher* const launcher = gpu::DeviceLauncher::open_for_cases(few ? 2 : argc, argv, &all);
  if (launcher == nullptr) return 2;
  if (few) {
    run_few_linear_cases([=](uint64_t) { return launcher; }, 1);
    std::printf("%s\n", "QuantLinear: the bits of the CPU");
    return 0;
  }
  for (int i = 0; i < kWeightFormatCount; ++i) {
    const auto format = static_cast<WeightFormat>(i);
    run_linear_cases([=](uint64_t) { return launcher; }, format, 1, all);
    run_embed_case(launcher, format);
    std::printf("%s: the bits of the CPU\n", format_name(format));
    std::fflush(stdout);
  }
  for (const int k : {1, 5, kMaxTopK}) {
    for (const int64_t width : {int64_t{70}, 2 * kTopKPart + 777}) run_top_k_case(launcher, k, width);
  }
  std::printf("%s\n", "RowTopK: the bits of the CPU");
  return 0;
}

}  // namespace
}  // namespace edge_rt::golden

int main(int argc, char** argv) { edge_rt::gpu::end_program(edge_rt::golden::run(argc, argv)); }
