#include "gpu/alignment.h"
#include "ops/experts/experts_gpu_op.h"
#include "ops/quant_linear/quant_linear_gpu.h"

namespace edge_rt::gpu {

abi::Status* describe_experts(const Experts& op, ort::OpContext& context, ExpertsJob* job) {
  Experts::Call call{};
  if (abi::Status* bad = op.check(context, &call)) return bad;
  for (const int input : {Experts::kGateUp, Experts::kDown}) {
    if (abi::Status* bad = check_alignment(context, input, kLinearAlignment)) return bad;
  }
  job->routing = call.routing;
  job->norm = call.norm;
  job->expert_norm = call.expert_norm;
  job->gate_up = call.gate_up;
  job->down = call.down;
  job->gate_up_bias = context.input(Experts::kGateUpBias).as<const float>();
  job->down_bias = context.input(Experts::kDownBias).as<const float>();
  job->steps = op.steps();
  job->width = op.width();
  job->intermediate = op.intermediate();
  job->shared = call.sum.shared;
  job->has_shares = call.routing.shared_gate != nullptr;
  job->residual = call.sum.residual;
  job->residual_scale = call.sum.residual_scale;
  job->finish = call.finish;
  job->finish_sum = call.finish_sum;
  job->y = call.sum.y;
  job->x = op.has_rows() ? call.x : nullptr;
  return nullptr;
}

}  // namespace edge_rt::gpu
