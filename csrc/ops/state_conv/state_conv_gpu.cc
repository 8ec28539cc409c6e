#include "ops/state_conv/state_conv_gpu.h"

namespace edge_rt::gpu {

bool enqueue_state_conv(Launcher* launcher, const StateConvArgs& args) {
  const int stretches = static_cast<int>((args.pass.channels + kStateConvThreads - 1) / kStateConvThreads);
  return launcher->launch("state_conv_rows", static_cast<int>(args.pass.rows + 1), stretches, args);
}

}  // namespace edge_rt::gpu
