#include "ops/short_conv/short_conv_gpu_op.h"

#include <vector>

#include "ops/pass_rows/pass_rows_gpu_op.h"
#include "ops/short_conv/short_conv_gpu.h"

namespace edge_rt::gpu {

abi::Status* GpuShortConv::enqueue(ort::OpContext& context, PassStream& stream) const {
  Depths depths;
  std::vector<ConvPass> passes;
  if (abi::Status* bad = op_.check(context, &passes, &depths)) return bad;
  const int64_t positions = context.input(ShortConv::kRows.row_map).dims[1];
  // An error stays in the stream, where whoever runs the kernel finds it.
  const std::vector<DeviceRows> rows = prepare_rows(context, kName, ShortConv::kRows, positions, stream, passes);
  for (size_t i = 0; i < rows.size(); ++i) {
    ConvArgs args{passes[i], rows[i].past};
    args.pass.row_map = rows[i].row_map;
    args.pass.parents = rows[i].parents;
    if (!enqueue_short_conv(&stream, args)) break;
  }
  return nullptr;
}

}  // namespace edge_rt::gpu
