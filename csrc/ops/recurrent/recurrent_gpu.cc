#include "ops/recurrent/recurrent_gpu.h"

namespace edge_rt::gpu {

bool enqueue_state_head(Launcher* launcher, const StateHeadArgs& args) {
  return launcher->launch("state_head", 1, 1, args);
}

}  // namespace edge_rt::gpu
