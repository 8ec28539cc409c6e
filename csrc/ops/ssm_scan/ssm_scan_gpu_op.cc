#include "ops/ssm_scan/ssm_scan_gpu_op.h"

#include <vector>

#include "ops/ssm_scan/ssm_scan_gpu.h"
#include "ops/pass_rows/pass_rows_gpu_op.h"

namespace edge_rt::gpu {

abi::Status* GpuSsmScan::enqueue(ort::OpContext& context, PassStream& stream) const {
  StateRun run;
  std::vector<SsmPass> passes;
  if (abi::Status* bad = op_.check(context, &run, &passes)) return bad;
  if (abi::Status* bad = check_one_sequence(context, passes.size())) return bad;
  MatrixArgs<SsmPass> args{passes.front(), {}, nullptr, 0};
  ort::Scratch scratch;
  if (abi::Status* bad = take_matrix_scratch(context, run, stream, &scratch, &args)) return bad;
  // An error stays in the stream, where whoever runs the kernel finds it.
  if (prepare_states(context, kName, stream, &args.pass, &args.slots)) enqueue_ssm_scan(&stream, args);
  return nullptr;
}

}  // namespace edge_rt::gpu
