#include "ops/experts/experts_gpu_op.h"

#include "gpu/alignment.h"
#include "ops/experts/experts_gpu.h"
#include "ops/quant_linear/quant_linear_gpu.h"

namespace edge_rt::gpu {

abi::Status* GpuExperts::enqueue(ort::OpContext& context, PassStream& stream) const {
  Experts::Call call{};
  if (abi::Status* bad = op_.check(context, &call)) return bad;
  if (call.routing.rows == 0) return nullptr;
  for (const int input : {Experts::kGateUp, Experts::kDown}) {
    if (abi::Status* bad = check_alignment(context, input, kLinearAlignment)) return bad;
  }
  ExpertsJob job{};
  job.routing = call.routing;
  job.norm = call.norm;
  job.expert_norm = call.expert_norm;
  job.gate_up = call.gate_up;
  job.down = call.down;
  job.gate_up_bias = context.input(Experts::kGateUpBias).as<const float>();
  job.down_bias = context.input(Experts::kDownBias).as<const float>();
  job.steps = op_.steps();
  job.width = op_.width();
  job.intermediate = op_.intermediate();
  job.shared = call.sum.shared;
  job.has_shares = call.routing.shared_gate != nullptr;
  job.residual = call.sum.residual;
  job.residual_scale = call.sum.residual_scale;
  job.finish = call.finish;
  job.finish_sum = call.finish_sum;
  job.y = call.sum.y;
  ort::Scratch scratch;
  if (abi::Status* bad = context.scratch(place_experts(nullptr, &job), &scratch)) return bad;
  place_experts(scratch.as<char>(), &job);
  if (job.normed != nullptr) job.routing.x = job.normed;
  job.x = op_.has_rows() ? call.x : job.expert_normed != nullptr ? job.expert_normed : job.routing.x;
  // An error stays in the stream, where whoever runs the kernel finds it.
  enqueue_experts(&stream, job);
  return nullptr;
}

}  // namespace edge_rt::gpu
