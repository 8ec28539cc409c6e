// Attention's GPU kernels on fibers against the CPU's scalar kernels: y and the cache must have the same bits.
//
//   gpu_attention_test                  some cases of every format and number of rows, 2 seeds
//   gpu_attention_test <seeds>          all cases with so many seeds (a minute each)
//   gpu_attention_test out_of_bounds    whether a read behind an input is found
#include <cstdlib>
#include <cstring>

#include "tests/check.h"
#include "tests/child.h"
#include "tests/gpu_attention_cases.h"
#include "tests/pages.h"

namespace edge_rt::golden {
namespace {

// Whether a pass runs of whose qkv so many numbers lie behind what may be read.
bool can_attend(size_t numbers_behind) {
  Attention attention(4, 2, 64, 64, kKvF16, 16);
  Random random("out of bounds");
  const std::vector<float> qkv = random.uniform((4 + 2 * 2) * 64, 2.0f);
  const size_t bytes = (qkv.size() - numbers_behind) * sizeof(float);
  char* begin = pages::before_closed_page(bytes);
  std::memcpy(begin, qkv.data(), bytes);
  return comes_through(
      [&] { run_on_gpu(fiber_launcher(1), attention, reinterpret_cast<float*>(begin), chain(1), 0, 0); }, 60);
}

int run_out_of_bounds() {
  CHECK(can_attend(0));
  CHECK(!can_attend(4));
  return 0;
}

int run(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "out_of_bounds") == 0) return run_out_of_bounds();
  const int seeds = argc == 2 ? std::atoi(argv[1]) : 2;
  CHECK(seeds > 0);
  for (int format = 0; format < kKvFormatCount; ++format)
    run_attention_passes(format, seeds, argc == 2, fiber_launcher);
  return 0;
}

}  // namespace
}  // namespace edge_rt::golden

int main(int argc, char** argv) { return edge_rt::golden::run(argc, argv); }
