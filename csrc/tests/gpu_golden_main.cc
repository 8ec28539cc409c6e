// GPU kernels on fibers against the golden bits (gpu_golden.h).
//
//   gpu_golden_test <golden_bits>             fibers in turns
//   gpu_golden_test <golden_bits> <seed>      fibers in the order of a seed (tests/emulator/simt.h)
//
//   --shard 2/16     of 16 parts of the cases the one with number 2, counted from 0, for runs beside each other
//   --verbose        says how long each case took
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/fiber_launcher.h"
#include "tests/gpu_golden.h"

namespace edge_rt::golden {
namespace {

bool read_seed(const char* text, uint64_t* out) {
  char* end = nullptr;
  *out = std::strtoull(text, &end, 10);
  return '0' <= *text && *text <= '9' && *end == '\0';
}

int run(int argc, char** argv) {
  Shard shard;
  uint64_t seed = 0;
  bool is_verbose = false, is_right = argc >= 2;
  for (int i = 2; is_right && i < argc; ++i) {
    if (std::strcmp(argv[i], "--verbose") == 0) {
      is_verbose = true;
    } else if (std::strcmp(argv[i], "--shard") == 0) {
      is_right = ++i < argc && read_shard(argv[i], &shard);
    } else {
      is_right = read_seed(argv[i], &seed);
    }
  }
  if (!is_right) {
    std::fprintf(stderr, "use: gpu_golden_test <file of expected bits> [<seed>] [--shard NUMBER/COUNT] [--verbose]\n");
    return 2;
  }
  gpu::FiberLauncher launcher(seed);
  return compare_gpu_cases(argv[1], &launcher, {shard, {}, {}}, is_verbose);
}

}  // namespace
}  // namespace edge_rt::golden

int main(int argc, char** argv) { return edge_rt::golden::run(argc, argv); }
