#include "gpu/cuda/device.h"
#include "tests/gpu_toy.h"

namespace edge_rt::gpu {

EDGE_RT_KERNEL(toy_affine, 64, AffineArgs) {
  const int64_t i = int64_t{block_x()} * 64 + thread();
  if (i >= args.count) return;
  const float product = mul(args.factor, args.x[i]);
  args.y[i] = args.bias == nullptr ? product : add(product, args.bias[i]);
}

EDGE_RT_KERNEL(toy_append, 32, AppendArgs) {
  for (int64_t i = thread(); i < args.width; i += 32) {
    args.cache[*args.at * args.width + i] = args.row[i];
    float sum = 0.0f;
    for (int64_t r = 0; r <= *args.at; ++r) sum = add(sum, args.cache[r * args.width + i]);
    args.sum[i] = sum;
  }
}

}  // namespace edge_rt::gpu
