#include "ops/quant_embed/quant_embed_gpu.h"

namespace edge_rt::gpu {

bool enqueue_embed(Launcher* launcher, const EmbedRows& job) {
  constexpr int64_t kThreads = 128;  // of the kernel
  const int rows = static_cast<int>(job.rows), stretches = static_cast<int>((job.features + kThreads - 1) / kThreads);
  return rows == 0 || launcher->launch("quant_embed_rows", rows, stretches, job);
}

}  // namespace edge_rt::gpu
