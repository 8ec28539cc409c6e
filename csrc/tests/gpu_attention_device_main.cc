// SpecAttention on a GPU by way of its driver, against the CPU's scalar kernels: the same bits.
//
//   gpu_attention_vulkan <folder of SPIR-V>           some cases of every format
//   gpu_attention_vulkan <folder of SPIR-V> all       all cases
#include <cstdio>

#include "tests/gpu_attention_cases.h"
#include "tests/gpu_device_launcher.h"

namespace edge_rt::golden {
namespace {

int run(int argc, char** argv) {
  bool all = false;
  gpu::DeviceLauncher* const launcher = gpu::DeviceLauncher::open_for_cases(argc, argv, &all);
  if (launcher == nullptr) return 2;
  for (int format = 0; format < kKvFormatCount; ++format) {
    run_attention_passes(format, 1, all, [=](uint64_t) { return launcher; });
    std::printf("%s: the bits of the CPU\n", kKvFormats[format].name);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace edge_rt::golden

int main(int argc, char** argv) { edge_rt::gpu::end_program(edge_rt::golden::run(argc, argv)); }
