#include "ops/short_conv/short_conv_gpu_op.h"

#include <vector>

#include "ops/pass_rows/pass_rows_gpu_op.h"
#include "ops/short_conv/short_conv_gpu.h"

namespace edge_rt::gpu {

abi::Status* GpuShortConv::enqueue(ort::OpContext& context, PassStream& stream) const {
  Depths depths;
  std::vector<ConvPass> passes;
  if (abi::Status* bad = op_.check(context, &passes, &depths)) return bad;
  if (abi::Status* bad = check_one_sequence(context, passes.size())) return bad;
  ConvArgs args{passes.front(), nullptr};
  const int64_t positions = context.input(ShortConv::kRows.row_map).dims[1];
  // An error stays in the stream, where whoever runs the kernel finds it.
  args.past = prepare_rows(context, kName, ShortConv::kRows, positions, stream, &args.pass);
  if (args.past != nullptr) enqueue_short_conv(&stream, args);
  return nullptr;
}

}  // namespace edge_rt::gpu
