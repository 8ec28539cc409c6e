// That kernels of tests/gpu/held.py find what reaches for memory that nobody holds: copies of rows of which one is not
// there. And that kernels of which there are no golden cases reach for nothing else.
//
//   gpu_held_vulkan <folder of tests.gpu.held>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <vector>

#include "ops/copy_rows/copy_rows_gpu.h"
#include "tests/check.h"
#include "tests/gpu_device_launcher.h"

namespace edge_rt::gpu {
namespace {

constexpr int64_t kWidth = 131;

// Whether so many rows can be copied.
bool copies(Launcher* launcher, const float* from, float* to, int64_t rows) {
  const CopyRows job{from, nullptr, 0, 0, rows, kWidth, to, kWidth};
  return enqueue_copy_rows(launcher, job);
}

int run(int argc, char** argv) {
  CHECK(argc == 2);
  DeviceLauncher* const launcher = DeviceLauncher::open(1, argv + 1, kHeapBytes);
  CHECK(launcher != nullptr);
  const std::vector<float> three(3 * kWidth, 1.0f), two(2 * kWidth, 2.0f);
  std::vector<float> result(3 * kWidth), less(3 * kWidth - 1);
  CHECK(copies(launcher, three.data(), result.data(), 3) && result == three);
  CHECK(!copies(launcher, two.data(), result.data(), 3));
  CHECK(!copies(launcher, three.data(), less.data(), 3));  // a number too far
  CHECK(copies(launcher, two.data(), less.data(), 2));
  volatile uintptr_t given_back = 0;  // compilers know, too, whose pointer this was
  {
    const std::vector<float> short_lived(kWidth, 3.0f);
    given_back = reinterpret_cast<uintptr_t>(short_lived.data());
    CHECK(copies(launcher, short_lived.data(), result.data(), 1));
  }
  CHECK(!copies(launcher, reinterpret_cast<const float*>(given_back), result.data(), 1));
  std::vector<std::vector<float>> parts(3, std::vector<float>(2 * kWidth));
  SplitRows split{result.data(), 3 * kWidth, 1, kWidth, 3, {}};
  for (size_t i = 0; i < parts.size(); ++i) split.to[i] = parts[i].data();
  CHECK(enqueue_split_rows(launcher, split));
  const std::vector<float> factor(1, 0.5f);
  CHECK(enqueue_scale_rows(launcher, {two.data(), factor.data(), 2, kWidth, parts[0].data()}));
  CHECK(parts[0] == std::vector<float>(2 * kWidth, 1.0f));
  CHECK(!enqueue_scale_rows(launcher, {two.data(), factor.data(), 3, kWidth, result.data()}));
  std::printf("%s\n", "a read, a write and a block that was given back: found");
  return 0;
}

}  // namespace
}  // namespace edge_rt::gpu

int main(int argc, char** argv) { edge_rt::gpu::end_program(edge_rt::gpu::run(argc, argv)); }
