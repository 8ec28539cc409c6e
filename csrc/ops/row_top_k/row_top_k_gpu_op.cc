#include "ops/row_top_k/row_top_k_gpu_op.h"

#include "ops/row_top_k/row_top_k_gpu.h"

namespace edge_rt::gpu {

abi::Status* GpuRowTopK::enqueue(ort::OpContext& context, PassStream& stream) const {
  TopKRows job;
  if (abi::Status* bad = op_.check(context, &job)) return bad;
  ort::Scratch scratch;
  if (abi::Status* bad = context.scratch(job.part_bytes(), &scratch)) return bad;
  job.parts = scratch.as<TopKPart>();
  // An error stays in the stream, where whoever runs the kernel finds it.
  enqueue_top_k(&stream, job);
  return nullptr;
}

}  // namespace edge_rt::gpu
