#include "ops/state_conv/state_conv_gpu_op.h"

#include <vector>

#include "ops/pass_rows/pass_rows_gpu_op.h"
#include "ops/state_conv/state_conv_gpu.h"

namespace edge_rt::gpu {

abi::Status* GpuStateConv::enqueue(ort::OpContext& context, PassStream& stream) const {
  StateRun run;
  std::vector<StateConvPass> passes;
  if (abi::Status* bad = op_.check(context, &run, &passes)) return bad;
  if (abi::Status* bad = check_one_sequence(context, passes.size())) return bad;
  StateConvArgs args{passes.front(), {}};
  // An error stays in the stream, where whoever runs the kernel finds it.
  if (prepare_states(context, kName, stream, &args.pass, &args.slots)) enqueue_state_conv(&stream, args);
  return nullptr;
}

}  // namespace edge_rt::gpu
