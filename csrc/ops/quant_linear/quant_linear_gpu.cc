#include "ops/quant_linear/quant_linear_gpu.h"

namespace edge_rt::gpu {
namespace {

// As in quant_linear_cuda.cu and quant_linear_tiles_cuda.inl.
constexpr int64_t kRoundBlocks = 64, kRoundBlocksOfFew = 16;
constexpr int64_t kManyTiles = 4;
constexpr int64_t kManyRows = 4 * kGroupRows;

int pieces(int64_t all, int64_t of) { return static_cast<int>((all + of - 1) / of); }

}  // namespace

bool enqueue_round_rows(Launcher* launcher, const RoundRows& job) {
  const bool is_few = job.out.rows <= 2 * kGroupRows;
  const int rows = static_cast<int>(job.out.rows);
  const int stretches = pieces(job.blocks(), is_few ? kRoundBlocksOfFew : kRoundBlocks);
  const char* kernel = is_few ? "quant_linear_round_few" : "quant_linear_round";
  return rows == 0 || stretches == 0 || launcher->launch(kernel, rows, stretches, job);
}

bool enqueue_product(Launcher* launcher, const LinearRows& job) {
  const int64_t rows = job.in.rows;
  if (rows == 0) return true;
  const int columns = static_cast<int>(job.weight.tiles() / (job.paired ? 2 : 1));
  bool is_started;
  if (!job.weight.rounds()) {
    is_started = launcher->launch("quant_linear_floats", columns, pieces(rows, kGroupRows), job);
  } else if (rows > 2 * kGroupRows) {
    is_started = launcher->launch("quant_linear_rows_many", pieces(columns, kManyTiles), pieces(rows, kManyRows), job);
  } else {
    const char* kernel = rows > kGroupRows ? "quant_linear_rows_16"
                         : rows > 2        ? "quant_linear_rows_8"
                                           : "quant_linear_rows_2";
    is_started = launcher->launch(kernel, columns, 1, job);
  }
  if (!is_started || job.post_norm == nullptr) return is_started;
  return launcher->launch("quant_linear_post_norm", static_cast<int>(rows),
                          static_cast<int>(job.width / job.post_width), job);
}

}  // namespace edge_rt::gpu
