// ShortConv on a GPU.
#pragma once

#include "gpu/launcher.h"
#include "ops/short_conv/short_conv.h"

namespace edge_rt::gpu {

constexpr int kConvThreads = 128;

struct ConvArgs {
  ConvPass pass;  // of device memory; its past is not read, it lies at:
  const int32_t* past;
};

// Computes all rows of a pass, and writes their u to the cache. False: the launcher could not.
bool enqueue_short_conv(Launcher* launcher, const ConvArgs& args);

}  // namespace edge_rt::gpu
