#include "ops/experts/experts_gpu_op.h"

namespace edge_rt::gpu {

abi::Status* GpuExperts::enqueue(ort::OpContext& context, PassStream& stream) const {
  ExpertsJob job{};
  if (abi::Status* bad = describe_experts(op_, context, &job)) return bad;
  if (job.routing.rows == 0) return nullptr;
  ort::Scratch scratch;
  if (abi::Status* bad = context.scratch(place_experts(nullptr, &job), &scratch)) return bad;
  place_experts(scratch.as<char>(), &job);
  // An error stays in the stream, where whoever runs the kernel finds it.
  enqueue_experts(&stream, job);
  return nullptr;
}

}  // namespace edge_rt::gpu
