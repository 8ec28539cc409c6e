#include "ops/row_top_k/row_top_k_gpu.h"

namespace edge_rt::gpu {

bool enqueue_top_k(Launcher* launcher, const TopKRows& job) {
  const int rows = static_cast<int>(job.rows), parts = static_cast<int>(job.part_count());
  if (rows == 0) return true;
  return launcher->launch("row_top_k_parts", parts, rows, job) && launcher->launch("row_top_k_join", rows, 1, job);
}

}  // namespace edge_rt::gpu
