// GPU kernels started by a driver, on a GPU or an emulated one, against the golden bits (gpu_golden.h).
//
//   gpu_golden_device <golden_bits> <cubin> ...      on GPU 0, with all its kernels
//   gpu_golden_emulated <golden_bits> <any file>     the same where there is no GPU
//   gpu_golden_vulkan <golden_bits> <folder>         by Vulkan, with the SPIR-V of tools/spirv.py; cases whose kernels
//                                                    are not there are counted, and are no mistakes
//
//   --only TEXT      cases that have it in their names
//   --shard 2/16     of 16 parts of the cases the one with number 2, counted from 0
//   --verbose        says how long each case took
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "tests/gpu_device_launcher.h"
#include "tests/gpu_golden.h"

namespace edge_rt::gpu {
namespace {

int run(int argc, char** argv) {
  golden::Selection selection;
  bool is_verbose = false, is_right = argc >= 2;
  std::vector<const char*> paths;
  for (int i = 2; is_right && i < argc; ++i) {
    if (std::strcmp(argv[i], "--verbose") == 0) {
      is_verbose = true;
    } else if (std::strcmp(argv[i], "--only") == 0) {
      is_right = ++i < argc;
      if (is_right) selection.text = argv[i];
    } else if (std::strcmp(argv[i], "--shard") == 0) {
      is_right = ++i < argc && golden::read_shard(argv[i], &selection.shard);
    } else {
      paths.push_back(argv[i]);
    }
  }
  if (!is_right || paths.empty()) {
    std::fprintf(stderr,
                 "use: %s <file of expected bits> <compiled kernels, or a folder of them> ... [--only TEXT] "
                 "[--shard NUMBER/COUNT] [--verbose]\n",
                 argv[0]);
    return 2;
  }
  const bool is_vulkan = std::string(kProviderName) == "EdgeRtVulkanExecutionProvider";
  DeviceLauncher* const launcher =
      DeviceLauncher::open(static_cast<int>(paths.size()), paths.data(), is_vulkan ? kLargeHeapBytes : kHeapBytes);
  if (launcher == nullptr) return 2;
  // Elsewhere a file holds many kernels: nobody knows which are missing before they are asked for.
  if (is_vulkan) {
    launcher->skip_missing();
    selection.lacks_kernels = [launcher] { return launcher->take_missing(); };
  }
  return golden::compare_gpu_cases(argv[1], launcher, selection, is_verbose);
}

}  // namespace
}  // namespace edge_rt::gpu

int main(int argc, char** argv) { edge_rt::gpu::end_program(edge_rt::gpu::run(argc, argv)); }
