// Copies of rows on a GPU: a thread a number.
#include "gpu/cuda/device.h"
#include "ops/copy_rows/copy_rows.h"

namespace edge_rt::gpu {

// Grid: rows, and stretches of as many numbers as there are threads.
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

}  // namespace edge_rt::gpu
