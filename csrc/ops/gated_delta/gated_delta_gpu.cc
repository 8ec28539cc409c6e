#include "ops/gated_delta/gated_delta_gpu.h"

namespace edge_rt::gpu {

bool enqueue_gated_delta(Launcher* launcher, const DeltaArgs& args) {
  const MatrixShape& shape = args.pass.shape;
  const int rows = static_cast<int>(args.pass.rows), heads = static_cast<int>(shape.value_heads);
  return launcher->launch("gated_delta_prepare", rows, static_cast<int>(shape.key_heads) + 1, args) &&
         launcher->launch(Kernel("gated_delta_columns", matrix_choices(shape)), static_cast<int>(2 * shape.stripes()),
                          heads, args) &&
         launcher->launch("gated_delta_finish", rows, heads, args);
}

}  // namespace edge_rt::gpu
