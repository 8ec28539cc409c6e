#include <algorithm>
#include <cmath>

#include "kernels/kernel_table.h"
#include "ops/gated_delta/gated_delta_op.h"
#include "ops/pass_rows/pass_rows_check.h"

namespace edge_rt {
namespace {

enum Input : int {
  kQkv,
  kState,
  kPast,
  kStateIndex,
  kSlot,
  kAdvance,
  kCertain,
  kParents,
  kSequenceRows,
  kZ,
  kB,
  kA,
  kAScale,
  kDtBias,
  kNorm
};

// Rows from which on a task is one stripe; below, a whole head, to be worth its claiming.
constexpr int64_t kManyRows = 4;

long long printable(int64_t value) { return static_cast<long long>(value); }

// Finds where the states of rows lie, for rows whose parents are checked: drafts as far up in scratch memory as those
// allow that have more rows to come. The last one that follows a draft takes its place. Returns how many there are.
int64_t find_steps(const int32_t* parents, int64_t rows, int64_t certain, DeltaStep* steps) {
  std::vector<int64_t> last_child(static_cast<size_t>(rows), -1);
  for (int64_t i = certain; i < rows; ++i) {
    if (parents[i] >= 0) last_child[static_cast<size_t>(parents[i])] = i;
  }
  int32_t most = -1;
  for (int64_t i = 0; i < rows; ++i) {
    const int32_t parent = parents[i], from = i < certain || parent < certain ? -1 : steps[parent].to;
    const bool takes_over = from >= 0 && last_child[static_cast<size_t>(parent)] == i;
    const int32_t to = i < certain ? -1 : takes_over ? from : from + 1;
    steps[i] = {from, to, i + 1 < rows && parents[i + 1] == i};
    most = std::max(most, to);
  }
  return most + 1;
}

}  // namespace

abi::Status* GatedDelta::create(ort::Attributes& attributes) {
  key_heads_ = attributes.integer("key_heads");
  const int64_t is_tiled = attributes.integer("is_tiled", 0);
  epsilon_ = attributes.real("epsilon", 1e-6f);
  key_epsilon_ = attributes.real("key_epsilon", 1e-6f);
  kernels_ = &kernel_table(attributes.isa()).gated_delta;
  if (key_heads_ < 1 || key_heads_ > kMaxDeltaHeads) {
    return attributes.error("key_heads is %lld, must be 1 to %lld", printable(key_heads_), printable(kMaxDeltaHeads));
  }
  if (is_tiled != 0 && is_tiled != 1) {
    return attributes.error("is_tiled is %lld, must be 0 or 1", printable(is_tiled));
  }
  for (const float epsilon : {epsilon_, key_epsilon_}) {
    if (!(epsilon >= 0.0f && std::isfinite(epsilon))) {
      return attributes.error("epsilon and key_epsilon must be 0 or more, and finite");
    }
  }
  is_tiled_ = is_tiled == 1;
  return nullptr;
}

abi::Status* GatedDelta::check_shapes(const ort::OpContext& context, DeltaPass* all) const {
  abi::Status* bad = nullptr;
  if ((bad = context.check_shape(kQkv, {-1, -1})) != nullptr || (bad = context.check_shape(kAScale, {-1})) != nullptr ||
      (bad = context.check_shape(kNorm, {-1})) != nullptr) {
    return bad;
  }
  const int64_t rows = context.input(kQkv).dims[0], width = context.input(kQkv).dims[1];
  const int64_t heads = context.input(kAScale).dims[0], value_dim = context.input(kNorm).dims[0];
  if (heads < 1 || heads > kMaxDeltaHeads || heads % key_heads_ != 0) {
    return context.error("a_scale is [%lld], must be a multiple of the %lld K heads up to %lld", printable(heads),
                         printable(key_heads_), printable(kMaxDeltaHeads));
  }
  if (value_dim < 1 || value_dim > kMaxValueDim || value_dim % kStripe != 0) {
    return context.error("norm is [%lld], must be a multiple of %d up to %lld", printable(value_dim), kStripe,
                         printable(kMaxValueDim));
  }
  const int64_t rest = width - heads * value_dim, key_dim = rest / (2 * key_heads_);
  if (rest < 1 || rest % (2 * key_heads_) != 0 || key_dim % kStripe != 0 || key_dim > kMaxKeyDim) {
    return context.error(
        "qkv has %lld columns, of which %lld are v; the others must be 2 x %lld heads of a multiple of "
        "%d up to %lld",
        printable(width), printable(heads * value_dim), printable(key_heads_), kStripe, printable(kMaxKeyDim));
  }
  all->shape = {key_heads_, heads, key_dim, value_dim, is_tiled_, epsilon_, key_epsilon_};
  all->rows = rows;
  int64_t sequences = 0;
  if ((bad = check_sequence_count(context, kPast, rows, &sequences)) != nullptr ||
      (bad = context.check_shape(kState, {-1, 2, -1})) != nullptr ||
      (bad = context.check_shape(kStateIndex, {sequences})) != nullptr ||
      (bad = context.check_shape(kSlot, {sequences})) != nullptr ||
      (bad = context.check_shape(kAdvance, {sequences, -1})) != nullptr ||
      (bad = context.check_shape(kCertain, {sequences})) != nullptr ||
      (bad = context.check_shape(kParents, {rows})) != nullptr ||
      (bad = context.check_shape(kSequenceRows, {sequences})) != nullptr ||
      (bad = context.check_shape(kZ, {rows, heads * value_dim})) != nullptr ||
      (bad = context.check_shape(kB, {rows, heads})) != nullptr ||
      (bad = context.check_shape(kA, {rows, heads})) != nullptr ||
      (bad = context.check_shape(kDtBias, {heads})) != nullptr) {
    return bad;
  }
  const int64_t floats = context.input(kState).dims[2], behind = floats - all->shape.state_floats();
  if (behind < 0 || behind % all->shape.transition_floats() != 0) {
    return context.error("state has slots of %lld floats, must be %lld and as many times %lld as there are drafts",
                         printable(floats), printable(all->shape.state_floats()),
                         printable(all->shape.transition_floats()));
  }
  return nullptr;
}

abi::Status* GatedDelta::check_sequence(const ort::OpContext& context, int64_t sequence, int64_t first, DeltaPass* pass,
                                        Run* run) {
  const ort::TensorView& state = context.input(kState);
  const auto of_sequence = [&](int input) { return context.input(input).as<const int32_t>()[sequence]; };
  const int32_t past = of_sequence(kPast), index = of_sequence(kStateIndex), slot = of_sequence(kSlot),
                certain = of_sequence(kCertain);
  const int64_t slot_floats = state.dims[2],
                room = (slot_floats - pass->shape.state_floats()) / pass->shape.transition_floats();
  if (past < 0) return context.error("past_length[%lld] is %d, must be 0 or more", printable(sequence), past);
  if (index < 0 || index >= state.dims[0]) {
    return context.error("state_index[%lld] is %d, must be 0 to %lld", printable(sequence), index,
                         printable(state.dims[0] - 1));
  }
  if (slot != 0 && slot != 1) return context.error("slot[%lld] is %d, must be 0 or 1", printable(sequence), slot);
  if (certain < 0 || certain > pass->rows || pass->rows - certain > room) {
    return context.error("certain[%lld] is %d, must be 0 to the %lld rows of the sequence, with at most %lld drafts",
                         printable(sequence), certain, printable(pass->rows), printable(room));
  }
  pass->certain = certain;
  const int64_t most = context.input(kAdvance).dims[1];
  pass->advance = context.input(kAdvance).as<const int32_t>() + sequence * most;
  for (int64_t i = 0; i < most; ++i) {
    const int32_t number = pass->advance[i], before = i == 0 ? -1 : pass->advance[i - 1];
    const bool ends = number == -1, has_ended = i > 0 && before == -1;
    if (ends || (!has_ended && past > 0 && number > before && number < room)) {
      pass->advance_count += ends ? 0 : 1;
      continue;
    }
    return context.error(
        "advance[%lld, %lld] is %d, must be rising numbers below %lld, then -1; -1 where past_length is 0",
        printable(sequence), printable(i), number, printable(room));
  }
  const int32_t* const parents = context.input(kParents).as<const int32_t>() + first;
  for (int64_t i = 0; i < pass->rows; ++i) {
    // The row before it, or those before that in its text.
    int64_t parent = i - 1;
    while (i >= certain && parent >= certain && parent != parents[i]) parent = parents[parent];
    if (parent == parents[i]) continue;
    return context.error(
        "parents[%lld] is %d, must be %lld%s", printable(first + i), parents[i], printable(i - 1),
        i < certain ? ": it is certain" : ", or a row before that in its text: drafts are depth first");
  }
  DeltaStep* const steps = run->steps.data() + first;
  pass->steps = steps;
  run->levels = std::max(run->levels, find_steps(parents, pass->rows, certain, steps));
  float* const slots = state.as<float>() + index * 2 * slot_floats;
  pass->read = past > 0 ? slots + slot * slot_floats : nullptr;
  pass->written = slots + (1 - slot) * slot_floats;
  return nullptr;
}

abi::Status* GatedDelta::check(ort::OpContext& context, Run* run) const {
  abi::Status* bad = nullptr;
  DeltaPass all{};
  if ((bad = check_shapes(context, &all)) != nullptr) return bad;
  const int64_t sequences = context.input(kPast).dims[0];
  if ((bad = check_sequence_rows(context, kSequenceRows, sequences, all.rows)) != nullptr) return bad;
  run->steps.resize(static_cast<size_t>(all.rows));
  run->passes.reserve(static_cast<size_t>(sequences));
  std::vector<uint8_t> is_taken(static_cast<size_t>(context.input(kState).dims[0]));
  int64_t first = 0;
  for (int64_t i = 0; i < sequences; ++i) {
    DeltaPass& pass = run->passes.emplace_back(all);
    pass.rows = context.input(kSequenceRows).as<const int32_t>()[i];
    if ((bad = check_sequence(context, i, first, &pass, run)) != nullptr) return bad;
    const int32_t index = context.input(kStateIndex).as<const int32_t>()[i];
    uint8_t& mark = is_taken[static_cast<size_t>(index)];
    if (mark != 0) return context.error("state_index[%lld] is %d, as of an earlier sequence", printable(i), index);
    mark = 1;
    first += pass.rows;
  }
  ort::TensorView y;
  if ((bad = context.output(0, {all.rows, all.shape.values()}, &y)) != nullptr) return bad;
  for (DeltaPass& pass : run->passes) {
    const int64_t begin = pass.steps - run->steps.data(), heads = pass.shape.value_heads;
    pass.qkv = context.input(kQkv).as<const float>() + begin * (2 * pass.shape.keys() + pass.shape.values());
    pass.z = context.input(kZ).as<const float>() + begin * pass.shape.values();
    pass.b = context.input(kB).as<const float>() + begin * heads;
    pass.a = context.input(kA).as<const float>() + begin * heads;
    pass.a_scale = context.input(kAScale).as<const float>();
    pass.dt_bias = context.input(kDtBias).as<const float>();
    pass.norm = context.input(kNorm).as<const float>();
    pass.y = y.as<float>() + begin * pass.shape.values();
  }
  return nullptr;
}

abi::Status* GatedDelta::compute(ort::OpContext& context) const {
  Run run;
  if (abi::Status* bad = check(context, &run)) return bad;
  const DeltaShape& shape = run.passes.front().shape;
  const auto rows = static_cast<int64_t>(run.steps.size());
  const int64_t prepared = rows * shape.row_floats(), of_worker = run.levels * shape.stripe_floats();
  ort::Scratch scratch;
  if (abi::Status* bad =
          context.scratch(static_cast<size_t>(prepared + kMaxWorkers * of_worker) * sizeof(float), &scratch)) {
    return bad;
  }
  struct Row {
    const DeltaPass* pass;
    int64_t row;
  };
  struct Task {
    const DeltaPass* pass;
    int64_t head, begin, end;
  };
  std::vector<Row> all_rows;
  std::vector<Task> tasks;
  for (DeltaPass& pass : run.passes) {
    pass.prepared = scratch.as<float>() + (pass.steps - run.steps.data()) * shape.row_floats();
    for (int64_t i = 0; i < pass.rows; ++i) all_rows.push_back({&pass, i});
    const int64_t step = pass.rows >= kManyRows ? 1 : shape.stripes();
    for (int64_t head = 0; head < shape.value_heads; ++head) {
      for (int64_t begin = 0; begin < shape.stripes(); begin += step) {
        tasks.push_back({&pass, head, begin, begin + step});
      }
    }
  }
  const auto prepare = [&](int64_t item) {
    const Row& row = all_rows[static_cast<size_t>(item)];
    kernels_->prepare(*row.pass, row.row);
  };
  const auto advance = [&](int64_t item, int worker) {
    const Task& task = tasks[static_cast<size_t>(item)];
    float* const own = scratch.as<float>() + prepared + worker * of_worker;
    for (int64_t stripe = task.begin; stripe < task.end; ++stripe) {
      kernels_->stripe(*task.pass, task.head, stripe, own);
    }
  };
  const auto finish = [&](int64_t item) {
    const Row& row = all_rows[static_cast<size_t>(item)];
    kernels_->finish(*row.pass, row.row);
  };
  run_phases(process_crew(), {make_phase(rows, prepare), make_phase(static_cast<int64_t>(tasks.size()), advance),
                              make_phase(rows, finish)});
  return nullptr;
}

}  // namespace edge_rt
