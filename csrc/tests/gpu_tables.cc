#include "tests/gpu_tables.h"

#include <vector>

#include "ops/quant_embed/quant_embed_gpu.h"
#include "ops/quant_linear/quant_linear_gpu.h"
#include "ops/row_top_k/row_top_k_gpu.h"
#include "ops/short_conv/short_conv_gpu.h"
#include "tests/check.h"
#include "tests/fiber_launcher.h"

namespace edge_rt::golden {
namespace {

gpu::Launcher* launcher = nullptr;
// Whose parts are being found; kernels take a row at once.
const float* logits_of_row = nullptr;
int64_t width_of_row = 0;

// Ranges of a whole job are asked for one after the other: the job runs with the last one.
void round_group(const RoundRows& job, int64_t group, int64_t, int64_t) {
  if (group == job.out.groups() - 1) CHECK(gpu::enqueue_round_rows(launcher, job));
}
void multiply(const LinearRows& job, int64_t, int64_t end, int64_t) {
  if (end == job.weight.tiles()) CHECK(gpu::enqueue_product(launcher, job));
}

void embed_row(const PackedWeight& weight, int64_t row, int64_t features, float scale, float* y) {
  const std::vector<int64_t> ids(1, row);  // not on the stack, which a GPU cannot read
  CHECK(gpu::enqueue_embed(launcher, {weight, ids.data(), 1, row + 1, features, scale, y}));
}

void part_of_row(const float* logits, int64_t, int64_t end, int, TopKPart*) {
  logits_of_row = logits;
  width_of_row = end;
}
void join_row(const TopKPart*, int64_t count, int k, int32_t* ids, float* values, float* log_sum_exp) {
  std::vector<TopKPart> parts(static_cast<size_t>(count));
  CHECK(gpu::enqueue_top_k(launcher, {logits_of_row, 1, width_of_row, k, parts.data(), ids, values, log_sum_exp}));
}

void convolve(const ConvPass& pass, int64_t, int64_t end) {
  const std::vector<int32_t> past(1, static_cast<int32_t>(pass.past));
  if (end == pass.rows) CHECK(gpu::enqueue_short_conv(launcher, {pass, past.data()}));
}

}  // namespace

KernelTable gpu_kernels(gpu::Launcher* of_kernels) {
  launcher = of_kernels;
  // The product has a post norm of its own.
  static const QuantLinearKernels linear{round_group, multiply, [](const LinearRows&, int64_t, int64_t) {}};
  static const QuantEmbedKernels embed{embed_row};
  static const RowTopKKernels top_k{part_of_row, join_row};
  static const ShortConvKernels short_conv{convolve};
  const KernelTable& others = kernel_table(Isa::kScalar);
  return {linear,
          embed,
          others.spec_attention,
          short_conv,
          others.state_conv,
          others.gated_delta,
          others.ssm_scan,
          others.experts,
          top_k,
          others.draft_head,
          others.quantise,
          others.sampling};
}

KernelTable fiber_kernels(uint64_t seed) {
  static gpu::FiberLauncher fibers(0);
  fibers = gpu::FiberLauncher(seed);
  return gpu_kernels(&fibers);
}

}  // namespace edge_rt::golden
