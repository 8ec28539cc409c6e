#include "ops/quant_linear/quant_linear_gpu_op.h"

#include "gpu/alignment.h"
#include "ops/quant_linear/quant_linear_gpu.h"
#include "ops/quant_linear/quant_linear_run.h"

namespace edge_rt::gpu {

abi::Status* GpuQuantLinear::enqueue(ort::OpContext& context, PassStream& stream) const {
  LinearRows job;
  if (abi::Status* bad = op_.check(context, &job)) return bad;
  const int64_t rows = job.in.rows;
  if (rows == 0) return nullptr;
  if (abi::Status* bad = check_alignment(context, 1, kLinearAlignment)) return bad;
  ort::Scratch scratch;
  if (abi::Status* bad = context.scratch(activation_bytes(job.weight, rows), &scratch)) return bad;
  job.in = place_activations(job.weight, rows, scratch.data());
  // An error stays in the stream, where whoever runs the kernel finds it.
  if (enqueue_round_rows(&stream, op_.rounding(context, job))) enqueue_product(&stream, job);
  return nullptr;
}

}  // namespace edge_rt::gpu
