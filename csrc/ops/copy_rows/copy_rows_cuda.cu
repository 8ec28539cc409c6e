// Copies and products of rows on a GPU: a thread a number. Grid: rows, and stretches of as many numbers as there are
// threads.
#include "gpu/cuda/device.h"
#include "ops/copy_rows/copy_rows.h"

namespace edge_rt::gpu {

EDGE_RT_KERNEL(copy_rows, 128, CopyRows) {
  const int64_t row = block_x(), i = int64_t{block_y()} * 128 + thread();
  if (i >= args.width) return;
  int64_t from = row;
  if (args.ids != nullptr) {
    const int64_t id = args.ids[row % args.count];
    from = row / args.count * args.length + (id < 0 ? id + args.length : id);
  }
  args.to[row * args.stride + i] = args.from[from * args.width + i];
}

EDGE_RT_KERNEL(split_rows, 128, SplitRows) {
  const int64_t row = block_x(), i = int64_t{block_y()} * 128 + thread(), part = i / args.width;
  if (part < args.parts) args.to[part][row * args.width + i % args.width] = args.from[row * args.stride + i];
}

EDGE_RT_KERNEL(scale_rows, 128, ScaleRows) {
  const int64_t row = block_x(), i = int64_t{block_y()} * 128 + thread();
  if (i < args.width) args.y[row * args.width + i] = args.x[row * args.width + i] * *args.factor;
}

}  // namespace edge_rt::gpu
