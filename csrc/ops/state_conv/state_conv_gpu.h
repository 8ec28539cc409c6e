// StateConv on a GPU.
#pragma once

#include "ops/recurrent/recurrent_gpu.h"
#include "ops/state_conv/state_conv.h"

namespace edge_rt::gpu {

constexpr int kStateConvThreads = 128;

struct StateConvArgs {
  StateConvPass pass;  // lacks what the head has; its other pointers are of device memory
  StateSlots slots;
};

// Computes all rows of a pass, and what is left of them in the slot that is written. False: the launcher could not.
bool enqueue_state_conv(Launcher* launcher, const StateConvArgs& args);

}  // namespace edge_rt::gpu
