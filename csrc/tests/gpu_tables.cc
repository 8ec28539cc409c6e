#include "tests/gpu_tables.h"

#include <cstring>
#include <vector>

#include "ops/gated_delta/gated_delta_gpu.h"
#include "ops/quant_embed/quant_embed_gpu.h"
#include "ops/quant_linear/quant_linear_gpu.h"
#include "ops/row_top_k/row_top_k_gpu.h"
#include "ops/short_conv/short_conv_gpu.h"
#include "ops/ssm_scan/ssm_scan_gpu.h"
#include "ops/state_conv/state_conv_gpu.h"
#include "tests/check.h"
#include "tests/fiber_launcher.h"
#include "tests/golden_inputs.h"

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
  EmbedRows job;
  std::memset(&job, 0, sizeof job);  // the gap behind a float, too: launchers look for addresses everywhere
  job.weight = weight;
  job.ids = ids.data();
  job.rows = 1;
  job.out_features = row + 1;
  job.features = features;
  job.scale = scale;
  job.y = y;
  CHECK(gpu::enqueue_embed(launcher, job));
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

// What the provider makes of the numbers of a pass, in memory of the device.
class Slots {
 public:
  explicit Slots(const StatePass& pass)
      :  // A pass of a text that has begun says so by the slot that it reads.
        past_(1, static_cast<int32_t>(pass.past > 0 ? pass.past : pass.read != nullptr)), zero_(1, 0),
        certain_(1, static_cast<int32_t>(pass.certain)), advance_(pass.advance, pass.advance + pass.advance_count),
        memory_(gpu::state_head_bytes(pass.rows)) {
    advance_.push_back(-1);
    // Not every case has parents: the steps say what follows what.
    if (pass.parents != nullptr) {
      parents_.assign(pass.parents, pass.parents + pass.rows);
    } else {
      find_parents(pass);
    }
    auto* const head = reinterpret_cast<gpu::StateHead*>(memory_.as<uint8_t>());
    CHECK(gpu::enqueue_state_head(launcher, {past_.data(), zero_.data(), zero_.data(), advance_.data(), certain_.data(),
                                             parents_.data(), static_cast<int64_t>(advance_.size()), pass.rows, head}));
    of_pass = {head, const_cast<float*>(pass.read), pass.written, 0};
  }

  gpu::StateSlots of_pass;

 private:
  void find_parents(const StatePass& pass) {
    std::vector<int32_t> row_at(static_cast<size_t>(pass.rows));  // of a level, the last row that has left its state
    for (int64_t i = 0; i < pass.rows; ++i) {
      const StateStep& step = pass.steps[i];
      const bool is_draft = i >= pass.certain && step.from >= 0;
      const int32_t before = static_cast<int32_t>(i < pass.certain ? i - 1 : pass.certain - 1);
      parents_.push_back(is_draft ? row_at[static_cast<size_t>(step.from)] : before);
      if (step.to >= 0) row_at[static_cast<size_t>(step.to)] = static_cast<int32_t>(i);
    }
  }

  std::vector<int32_t> past_, zero_, certain_, advance_, parents_;
  Memory memory_;
};

void convolve_states(const StateConvPass& pass, int64_t, int64_t end) {
  if (end != pass.rows) return;
  const Slots slots(pass);
  CHECK(gpu::enqueue_state_conv(launcher, {pass, slots.of_pass}));
}

// Parts of a whole pass are asked for one after the other: all run with the last one.
template <class Pass, bool (*enqueue)(gpu::Launcher*, const gpu::MatrixArgs<Pass>&)>
void run_matrices(const Pass& pass, int64_t row) {
  if (row != pass.rows - 1) return;
  const Slots slots(pass);
  const int64_t levels = gpu::most_levels(pass.rows - pass.certain);
  std::vector<float> scratch(static_cast<size_t>(levels * pass.state_floats));
  gpu::MatrixArgs<Pass> args{pass, slots.of_pass, scratch.data(), levels};
  // What lies between members may look like an address of the process.
  Flag& last = args.pass.shape.is_tiled;
  std::memset(&last + 1, 0, sizeof(int64_t) - sizeof last);
  CHECK(enqueue(launcher, args));
}

template <class Pass, bool (*enqueue)(gpu::Launcher*, const gpu::MatrixArgs<Pass>&)>
constexpr MatrixKernels<Pass> kMatrixKernels{[](const Pass&, int64_t) {}, [](const Pass&, int64_t, int64_t, float*) {},
                                             run_matrices<Pass, enqueue>};

}  // namespace

KernelTable gpu_kernels(gpu::Launcher* of_kernels) {
  launcher = of_kernels;
  // The product has a post norm of its own.
  static const QuantLinearKernels linear{round_group, multiply, [](const LinearRows&, int64_t, int64_t) {}};
  static const QuantEmbedKernels embed{embed_row};
  static const RowTopKKernels top_k{part_of_row, join_row};
  static const ShortConvKernels short_conv{convolve};
  static const StateConvKernels state_conv{convolve_states};
  const KernelTable& others = kernel_table(Isa::kScalar);
  return {linear,
          embed,
          others.spec_attention,
          short_conv,
          state_conv,
          kMatrixKernels<DeltaPass, gpu::enqueue_gated_delta>,
          kMatrixKernels<SsmPass, gpu::enqueue_ssm_scan>,
          others.experts,
          top_k,
          others.draft_head,
          others.quantise,
          others.sampling};
}

gpu::Launcher* fiber_launcher(uint64_t seed) {
  static gpu::FiberLauncher fibers(0);
  fibers = gpu::FiberLauncher(seed);
  return &fibers;
}

}  // namespace edge_rt::golden
