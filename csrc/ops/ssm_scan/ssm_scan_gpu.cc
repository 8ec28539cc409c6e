#include "ops/ssm_scan/ssm_scan_gpu.h"

namespace edge_rt::gpu {

bool enqueue_ssm_scan(Launcher* launcher, const SsmArgs& args) {
  const MatrixShape& shape = args.pass.shape;
  const int rows = static_cast<int>(args.pass.rows), heads = static_cast<int>(shape.value_heads);
  return launcher->launch("ssm_scan_prepare", rows, 1, args) &&
         launcher->launch(Kernel("ssm_scan_columns", matrix_choices(shape)), static_cast<int>(2 * shape.stripes()),
                          heads, args) &&
         launcher->launch("ssm_scan_finish", rows, static_cast<int>(shape.key_heads), args);
}

}  // namespace edge_rt::gpu
