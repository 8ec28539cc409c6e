#include "ops/copy_rows/copy_rows_gpu.h"

namespace edge_rt::gpu {
namespace {

// A thread has one of `width` numbers of a row.
template <class Job>
bool launch_rows(Launcher* launcher, const char* kernel, int64_t width, const Job& job) {
  constexpr int64_t kThreads = 128;  // of the kernels
  const int rows = static_cast<int>(job.rows), stretches = static_cast<int>((width + kThreads - 1) / kThreads);
  return rows == 0 || stretches == 0 || launcher->launch(kernel, rows, stretches, job);
}

}  // namespace

bool enqueue_copy_rows(Launcher* launcher, const CopyRows& job) {
  return launch_rows(launcher, "copy_rows", job.width, job);
}

bool enqueue_split_rows(Launcher* launcher, const SplitRows& job) {
  return launch_rows(launcher, "split_rows", job.parts * job.width, job);
}

bool enqueue_scale_rows(Launcher* launcher, const ScaleRows& job) {
  return launch_rows(launcher, "scale_rows", job.width, job);
}

}  // namespace edge_rt::gpu
