#include "ops/ssm_scan/ssm_scan_gpu_op.h"

#include <vector>

#include "ops/ssm_scan/ssm_scan_gpu.h"

namespace edge_rt::gpu {

abi::Status* GpuSsmScan::enqueue(ort::OpContext& context, PassStream& stream) const {
  StateRun run;
  std::vector<SsmPass> passes;
  if (abi::Status* bad = op_.check(context, &run, &passes)) return bad;
  return enqueue_matrices(context, kName, stream, run, passes, enqueue_ssm_scan);
}

}  // namespace edge_rt::gpu
