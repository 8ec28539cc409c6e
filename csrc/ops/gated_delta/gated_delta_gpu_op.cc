#include "ops/gated_delta/gated_delta_gpu_op.h"

#include <vector>

#include "ops/gated_delta/gated_delta_gpu.h"

namespace edge_rt::gpu {

abi::Status* GpuGatedDelta::enqueue(ort::OpContext& context, PassStream& stream) const {
  StateRun run;
  std::vector<DeltaPass> passes;
  if (abi::Status* bad = op_.check(context, &run, &passes)) return bad;
  return enqueue_matrices(context, kName, stream, run, passes, enqueue_gated_delta);
}

}  // namespace edge_rt::gpu
