#include "ops/copy_rows/copy_rows_gpu.h"

namespace edge_rt::gpu {

bool enqueue_copy_rows(Launcher* launcher, const CopyRows& job) {
  constexpr int64_t kThreads = 128;  // of the kernel
  const int rows = static_cast<int>(job.rows), stretches = static_cast<int>((job.width + kThreads - 1) / kThreads);
  return rows == 0 || stretches == 0 || launcher->launch("copy_rows", rows, stretches, job);
}

}  // namespace edge_rt::gpu
