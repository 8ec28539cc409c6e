#include "ops/short_conv/short_conv_gpu.h"

namespace edge_rt::gpu {

bool enqueue_short_conv(Launcher* launcher, const ConvArgs& args) {
  const int stretches = static_cast<int>((args.pass.channels + kConvThreads - 1) / kConvThreads);
  return launcher->launch("short_conv_rows", static_cast<int>(args.pass.rows), stretches, args);
}

}  // namespace edge_rt::gpu
