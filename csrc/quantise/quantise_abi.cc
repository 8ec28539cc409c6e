#include <algorithm>
#include <new>
#include <vector>

#include "common/float_mode.h"
#include "common/isa.h"
#include "kernels/kernel_table.h"
#include "quantise/quantise.h"

namespace edge_rt {
namespace {

constexpr int64_t kMostInputs = int64_t{1} << 24;

bool is_valid(const RoundingFormat& format) {
  return (format.group == 16 || format.group == 32) && format.unit >= 32 && format.unit % 32 == 0 &&
         format.unit <= 256 && format.rounds > 0 && format.num_starts > 0 && format.num_starts <= kMostStarts &&
         format.scales >= kHalfScales && format.scales <= kByteScales &&
         (format.scales != kHalfScales || format.unit == format.group) &&
         (format.scales != kByteScales || format.has_minimum != 0) &&
         (format.table == nullptr) == (format.table_codes == nullptr);
}

bool is_valid(const RoundingTask& task) {
  if (task.format == nullptr || !is_valid(*task.format)) return false;
  const RoundingFormat& format = *task.format;
  if (task.rows < 0 || task.inputs < 0 || task.inputs > kMostInputs || task.inputs % format.unit != 0) return false;
  if (task.rows == 0 || task.inputs == 0) return true;
  if (task.num_factors < 0 || (task.num_factors > 0 && (task.widths == nullptr || task.factors == nullptr)))
    return false;
  int64_t covered = 0;
  for (int64_t i = 0; i < task.num_factors; ++i) {
    if (task.widths[i] <= 0 || task.widths[i] % format.unit != 0 || task.factors[i] == nullptr) return false;
    covered += task.widths[i];
  }
  return (task.num_factors == 0 || covered == task.inputs) && task.weights != nullptr && task.importance != nullptr &&
         task.codes != nullptr && task.d != nullptr && (format.has_minimum == 0 || task.m != nullptr) &&
         (format.scales == kHalfScales || task.scales != nullptr) &&
         (format.scales != kByteScales || task.minima != nullptr);
}

}  // namespace
}  // namespace edge_rt

EDGE_RT_EXPORT int edge_rt_quantise(const edge_rt::RoundingTask* task, const char* isa_name) {
  using namespace edge_rt;  // NOLINT: this function is C
  Isa isa = best_isa();
  if (isa_name != nullptr && (!isa_from_name(isa_name, &isa) || !isa_is_usable(isa))) return -1;
  if (task == nullptr || !is_valid(*task)) return -1;
  RoundingFormat format = *task->format;
  StepTable table;
  if (format.table != nullptr) {
    table = *format.table;
    if (!fill_steps(&table)) return -1;
    format.table = &table;
  }
  RoundingTask own = *task;
  own.format = &format;
  int64_t width = format.unit;
  for (int64_t i = 0; i < task->num_factors; ++i) width = std::max(width, task->widths[i]);
  const QuantiseKernels& kernels = kernel_table(isa).quantise;
  try {
    std::vector<float> scratch(static_cast<size_t>(kernels.scratch(width)));
    const DefaultFloatMode mode;
    for (int64_t row = 0; row < task->rows && task->inputs > 0; row += kMostTiles * kLaneRows) {
      kernels.rows(own, row, scratch.data());
    }
  } catch (const std::bad_alloc&) {
    return -2;
  }
  return 0;
}
