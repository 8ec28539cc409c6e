#include "ops/quant_embed/quant_embed_gpu.h"

#include "ops/quant_linear/quant_linear_gpu.h"

namespace edge_rt::gpu {

bool enqueue_embed(Launcher* launcher, const EmbedRows& job) {
  constexpr int64_t kThreads = 128;  // of the kernel
  const int rows = static_cast<int>(job.rows), stretches = static_cast<int>((job.features + kThreads - 1) / kThreads);
  const Kernel kernel("quant_embed_rows", format_choice(job.weight.format));
  return rows == 0 || launcher->launch(kernel, rows, stretches, job);
}

}  // namespace edge_rt::gpu
