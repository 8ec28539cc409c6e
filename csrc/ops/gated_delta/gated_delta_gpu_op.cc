#include "ops/gated_delta/gated_delta_gpu_op.h"

#include <vector>

#include "ops/gated_delta/gated_delta_gpu.h"
#include "ops/pass_rows/pass_rows_gpu_op.h"

namespace edge_rt::gpu {

abi::Status* GpuGatedDelta::enqueue(ort::OpContext& context, PassStream& stream) const {
  StateRun run;
  std::vector<DeltaPass> passes;
  if (abi::Status* bad = op_.check(context, &run, &passes)) return bad;
  if (abi::Status* bad = check_one_sequence(context, passes.size())) return bad;
  MatrixArgs<DeltaPass> args{passes.front(), {}, nullptr, 0};
  ort::Scratch scratch;
  if (abi::Status* bad = take_matrix_scratch(context, run, stream, &scratch, &args)) return bad;
  // An error stays in the stream, where whoever runs the kernel finds it.
  if (prepare_states(context, kName, stream, &args.pass, &args.slots)) enqueue_gated_delta(&stream, args);
  return nullptr;
}

}  // namespace edge_rt::gpu
