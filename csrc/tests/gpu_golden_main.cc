// GPU kernels on fibers against the golden bits (gpu_golden.h).
//
//   gpu_golden_test <golden_bits>             fibers in turns
//   gpu_golden_test <golden_bits> <seed>      fibers in the order of a seed (gpu/simt.h)
#include <cstdio>
#include <cstdlib>

#include "tests/fiber_launcher.h"
#include "tests/gpu_golden.h"

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::fprintf(stderr, "use: gpu_golden_test <file of expected bits> [<seed>]\n");
    return 2;
  }
  edge_rt::gpu::FiberLauncher launcher(argc == 3 ? std::strtoull(argv[2], nullptr, 10) : 0);
  return edge_rt::golden::compare_gpu_cases(argv[1], &launcher);
}
