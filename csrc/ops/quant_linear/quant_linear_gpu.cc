#include "ops/quant_linear/quant_linear_gpu.h"

namespace edge_rt::gpu {
namespace {

// As in quant_linear_cuda.cu and quant_linear_tiles_cuda.inl, and in the kernels of Vulkan.
constexpr int64_t kRoundBlocks = 64, kRoundBlocksOfFew = 16;
constexpr int64_t kManyTiles = 4;
constexpr int64_t kManyRows = 4 * kGroupRows;

// Of steps that take much code: bits of Kernel::choices, behind those of weight formats.
constexpr uint32_t kGates = 1u << 22, kSoftcap = 1u << 23;
static_assert(kGates >> kWeightFormatCount != 0);

int pieces(int64_t all, int64_t of) { return static_cast<int>((all + of - 1) / of); }

}  // namespace

uint32_t format_choices(const PackedParts& weight) {
  uint32_t choices = 0;
  for (int i = 0; i < weight.count; ++i) choices |= format_choice(weight.parts[i].format);
  return choices;
}

uint32_t step_choices(const LinearSteps& steps) {
  return (is_gated(steps.activation) ? kGates : 0) | (steps.softcap != 0.0f ? kSoftcap : 0);
}

bool enqueue_round_rows(Launcher* launcher, const RoundRows& job) {
  // Where there are no matrices, kernels of Vulkan run: a thread takes a block, whatever the rows.
  const bool is_few = launcher->traits().has_matrices && job.out.rows <= 2 * kGroupRows;
  const int rows = static_cast<int>(job.out.rows);
  const int stretches = pieces(job.blocks(), is_few ? kRoundBlocksOfFew : kRoundBlocks);
  const char* kernel = is_few ? "quant_linear_round_few" : "quant_linear_round";
  return rows == 0 || stretches == 0 || launcher->launch(kernel, rows, stretches, job);
}

bool enqueue_product(Launcher* launcher, const LinearRows& job) {
  const int64_t rows = job.in.rows;
  if (rows == 0) return true;
  const int columns = static_cast<int>(job.weight.tiles() / (job.paired ? 2 : 1));
  const uint32_t choices = format_choices(job.weight) | step_choices(job.steps);
  bool is_started;
  if (!job.weight.rounds()) {
    is_started = launcher->launch({"quant_linear_floats", choices}, columns, pieces(rows, kGroupRows), job);
  } else if (rows > 2 * kGroupRows) {
    const Kernel kernel("quant_linear_rows_many", choices);
    is_started = launcher->launch(kernel, pieces(columns, kManyTiles), pieces(rows, kManyRows), job);
  } else {
    const char* kernel = rows > kGroupRows ? "quant_linear_rows_16"
                         : rows > 2        ? "quant_linear_rows_8"
                                           : "quant_linear_rows_2";
    is_started = launcher->launch({kernel, choices}, columns, 1, job);
  }
  if (!is_started || job.post_norm == nullptr) return is_started;
  return launcher->launch("quant_linear_post_norm", static_cast<int>(rows),
                          static_cast<int>(job.width / job.post_width), job);
}

}  // namespace edge_rt::gpu
