#include "ops/experts/experts_gpu.h"

#include <cstddef>

#include "ops/quant_linear/quant_linear_gpu.h"

namespace edge_rt::gpu {
namespace {

// As in experts_cuda.cu, and in the kernels of Vulkan.
constexpr int64_t kRoundBlocks = 16, kRoundBlocksOfVulkan = 64;

int pieces(int64_t all, int64_t of) { return static_cast<int>((all + of - 1) / of); }

// Rounded rows of all places; a format has one kind of sums or two.
Activations place_rows(Pieces* pieces, const PackedParts& weight, int64_t rows) {
  const int64_t blocks = weight.blocks(), bytes = weight.rounds() ? 1 : 4;
  Activations in{
      rows, blocks, pieces->take<int8_t>(rows * blocks * kBlock * bytes), pieces->take<float>(rows * blocks), {}};
  for (int i = 0; i < weight.kinds.count; ++i) {
    in.sums[i] = pieces->take<uint32_t>(rows * blocks * weight.kinds.kinds[i].groups);
  }
  return in;
}

// What experts.glsl says of these structs.
static_assert(offsetof(ExpertsJob, norm) == 128 && offsetof(ExpertsJob, expert_norm) == 408);
static_assert(sizeof(ActiveExpert) == 576 && offsetof(ActiveExpert, up) == 16 && offsetof(ActiveExpert, down) == 296);
static_assert(sizeof(ExpertGroup) == 976 && offsetof(ExpertGroup, down) == 488);

}  // namespace

size_t place_experts(char* memory, ExpertsJob* job) {
  Pieces pieces(memory);
  Routing& routing = job->routing;
  const int64_t rows = routing.rows, places = job->place_count();
  if (job->norm.norm_weight != nullptr) job->normed = pieces.take<float>(rows * routing.features);
  if (job->expert_norm.norm_weight != nullptr) job->expert_normed = pieces.take<float>(rows * routing.features);
  routing.scores = pieces.take<float>(rows * routing.stride());
  routing.ids = pieces.take<int32_t>(places);
  routing.weights = pieces.take<float>(places);
  routing.shares = pieces.take<float>(rows);
  job->counts = pieces.take<int32_t>(2);
  job->active = pieces.take<ActiveExpert>(job->most_active());
  job->groups = pieces.take<ExpertGroup>(job->most_groups());
  job->slots = pieces.take<int32_t>(places);
  job->numbers = pieces.take<int32_t>(places);
  job->places = pieces.take<int32_t>(places);
  job->up_in = place_rows(&pieces, job->gate_up, places);
  job->down_in = place_rows(&pieces, job->down, places);
  job->made = pieces.take<float>(places * job->intermediate);
  job->outs = pieces.take<float>(places * job->width);
  if (memory != nullptr) {
    if (job->normed != nullptr) routing.x = job->normed;
    if (job->x == nullptr) job->x = job->expert_normed != nullptr ? job->expert_normed : routing.x;
  }
  return pieces.used();
}

bool enqueue_experts(Launcher* launcher, const ExpertsJob& job) {
  const Routing& routing = job.routing;
  const int rows = static_cast<int>(routing.rows), places = static_cast<int>(job.place_count()),
            active = static_cast<int>(job.most_active()), groups = static_cast<int>(job.most_groups());
  const int columns = static_cast<int>(job.intermediate / kTileRows), outs = static_cast<int>(job.width / kTileRows);
  const int64_t round_blocks = launcher->traits().has_matrices ? kRoundBlocks : kRoundBlocksOfVulkan;
  const auto round = [&](const char* kernel, const Activations& in) {
    return launcher->launch(kernel, places, pieces(in.blocks, round_blocks), job);
  };
  const auto multiply = [&](const char* codes, const char* floats, const PackedParts& weight, const LinearSteps& steps,
                            int tiles) {
    const Kernel kernel(weight.rounds() ? codes : floats, format_choices(weight) | step_choices(steps));
    return launcher->launch(kernel, tiles, groups, job);
  };
  const auto norm = [&](const LinearRows& finish) {
    return finish.post_norm == nullptr || launcher->launch("quant_linear_post_norm", rows, 1, finish);
  };
  const bool has_norm = job.norm.norm_weight != nullptr || job.expert_norm.norm_weight != nullptr;
  return (!has_norm || launcher->launch("experts_norm", rows, 2, job)) &&
         launcher->launch("experts_scores", routing.experts + 1, rows, job) &&
         launcher->launch("experts_choose", rows, 1, job) && launcher->launch("experts_gather", 1, 1, job) &&
         launcher->launch("experts_describe", active, 1, job) && round("experts_round", job.up_in) &&
         multiply("experts_up", "experts_up_floats", job.gate_up, job.steps, columns) &&
         round("experts_between", job.down_in) &&
         multiply("experts_down", "experts_down_floats", job.down, LinearSteps{}, outs) &&
         launcher->launch("experts_sum", rows, pieces(job.width, kRouteThreads), job) && norm(job.finish) &&
         norm(job.finish_sum);
}

}  // namespace edge_rt::gpu
