#include "ops/state_conv/state_conv_gpu_op.h"

#include <vector>

#include "ops/state_conv/state_conv_gpu.h"

namespace edge_rt::gpu {

abi::Status* GpuStateConv::enqueue(ort::OpContext& context, PassStream& stream) const {
  StateRun run;
  std::vector<StateConvPass> passes;
  if (abi::Status* bad = op_.check(context, &run, &passes)) return bad;
  // An error stays in the stream, where whoever runs the kernel finds it.
  const std::vector<DeviceState> of_sequences = prepare_states(context, kName, stream, run);
  for (size_t i = 0; i < of_sequences.size(); ++i) {
    StateConvArgs args{passes[i], of_sequences[i].slots};
    of_sequences[i].give(&args.pass);
    if (!enqueue_state_conv(&stream, args)) break;
  }
  return nullptr;
}

}  // namespace edge_rt::gpu
