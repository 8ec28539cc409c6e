// Arguments of the toy kernels.
#pragma once

#include <cstdint>

namespace edge_rt::gpu {

struct AffineArgs {
  const float* x;
  const float* bias;  // or nullptr
  float* y;
  float factor;
  int64_t count;
};

struct AppendArgs {
  float* cache;
  const float* row;
  const int64_t* at;
  float* sum;
  int64_t width;
};

}  // namespace edge_rt::gpu
