#include "ops/recurrent/recurrent_check.h"

#include <algorithm>

#include "ops/pass_rows/pass_rows_check.h"

namespace edge_rt {
namespace {

long long printable(int64_t value) { return static_cast<long long>(value); }

// Finds where the states of rows lie, for rows whose parents are checked: drafts as far up in scratch memory as those
// allow that have more rows to come. The last one that follows a draft takes its place. Returns how many there are.
int64_t find_steps(const int32_t* parents, int64_t rows, int64_t certain, StateStep* steps) {
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

abi::Status* check_shapes(const ort::OpContext& context, const StatePass& all) {
  abi::Status* bad = nullptr;
  int64_t sequences = 0;
  if ((bad = check_sequence_count(context, kPast, all.rows, &sequences)) != nullptr ||
      (bad = context.check_shape(kState, {-1, 2, -1})) != nullptr ||
      (bad = context.check_shape(kStateIndex, {sequences})) != nullptr ||
      (bad = context.check_shape(kSlot, {sequences})) != nullptr ||
      (bad = context.check_shape(kAdvance, {sequences, -1})) != nullptr ||
      (bad = context.check_shape(kCertain, {sequences})) != nullptr ||
      (bad = context.check_shape(kParents, {all.rows})) != nullptr ||
      (bad = context.check_shape(kSequenceRows, {sequences})) != nullptr) {
    return bad;
  }
  const int64_t floats = context.input(kState).dims[2], behind = floats - all.state_floats;
  if (behind < 0 || behind % all.transition_floats != 0) {
    return context.error("state has slots of %lld floats, must be %lld and as many times %lld as there are drafts",
                         printable(floats), printable(all.state_floats), printable(all.transition_floats));
  }
  return check_sequence_rows(context, kSequenceRows, sequences, all.rows);
}

}  // namespace

StateNumbers state_numbers(const ort::OpContext& context, const StatePass& all) {
  const auto numbers = [&](int input) { return context.input(input).as<const int32_t>(); };
  const ort::TensorView& state = context.input(kState);
  return {numbers(kPast),         numbers(kStateIndex),
          numbers(kSlot),         numbers(kAdvance),
          numbers(kCertain),      numbers(kParents),
          numbers(kSequenceRows), context.input(kAdvance).dims[1],
          state.dims[0],          (state.dims[2] - all.state_floats) / all.transition_floats};
}

std::string find_bad_state(const StateNumbers& numbers, int64_t sequence, int64_t first, StatePass* pass,
                           StateStep* steps, int64_t* levels) {
  const int32_t past = numbers.past[sequence], index = numbers.index[sequence], slot = numbers.slot[sequence],
                certain = numbers.certain[sequence];
  const int64_t room = numbers.room;
  if (past < 0) return printed("past_length[%lld] is %d, must be 0 or more", printable(sequence), past);
  if (index < 0 || index >= numbers.states) {
    return printed("state_index[%lld] is %d, must be 0 to %lld", printable(sequence), index,
                   printable(numbers.states - 1));
  }
  if (slot != 0 && slot != 1) return printed("slot[%lld] is %d, must be 0 or 1", printable(sequence), slot);
  if (certain < 0 || certain > pass->rows || pass->rows - certain > room) {
    return printed("certain[%lld] is %d, must be 0 to the %lld rows of the sequence, with at most %lld drafts",
                   printable(sequence), certain, printable(pass->rows), printable(room));
  }
  pass->past = past;
  pass->certain = certain;
  pass->advance = numbers.advance + sequence * numbers.most;
  pass->advance_count = 0;
  for (int64_t i = 0; i < numbers.most; ++i) {
    const int32_t number = pass->advance[i], before = i == 0 ? -1 : pass->advance[i - 1];
    const bool ends = number == -1, has_ended = i > 0 && before == -1;
    if (ends || (!has_ended && past > 0 && number > before && number < room)) {
      pass->advance_count += ends ? 0 : 1;
      continue;
    }
    return printed("advance[%lld, %lld] is %d, must be rising numbers below %lld, then -1; -1 where past_length is 0",
                   printable(sequence), printable(i), number, printable(room));
  }
  const int32_t* const parents = numbers.parents + first;
  for (int64_t i = 0; i < pass->rows; ++i) {
    // The row before it, or those before that in its text.
    int64_t parent = i - 1;
    while (i >= certain && parent >= certain && parent != parents[i]) parent = parents[parent];
    if (parent == parents[i]) continue;
    return printed("parents[%lld] is %d, must be %lld%s", printable(first + i), parents[i], printable(i - 1),
                   i < certain ? ": it is certain" : ", or a row before that in its text: drafts are depth first");
  }
  pass->parents = parents;
  pass->steps = steps;
  *levels = std::max(*levels, find_steps(parents, pass->rows, certain, steps));
  return {};
}

abi::Status* check_states(const ort::OpContext& context, const StatePass& all, StateRun* run) {
  if (abi::Status* bad = check_shapes(context, all)) return bad;
  const StateNumbers numbers = state_numbers(context, all);
  const int64_t sequences = context.input(kPast).dims[0], slot_floats = context.input(kState).dims[2];
  run->steps.resize(static_cast<size_t>(all.rows));
  run->passes.reserve(static_cast<size_t>(sequences));
  std::vector<uint8_t> is_taken(static_cast<size_t>(numbers.states));
  int64_t first = 0;
  for (int64_t i = 0; i < sequences; ++i) {
    StatePass& pass = run->passes.emplace_back(all);
    pass.rows = numbers.sequence_rows[i];
    const std::string problem = find_bad_state(numbers, i, first, &pass, run->steps.data() + first, &run->levels);
    if (!problem.empty()) return context.error("%s", problem.c_str());
    const int32_t index = numbers.index[i], slot = numbers.slot[i];
    uint8_t& mark = is_taken[static_cast<size_t>(index)];
    if (mark != 0) return context.error("state_index[%lld] is %d, as of an earlier sequence", printable(i), index);
    mark = 1;
    float* const slots = context.input(kState).as<float>() + index * 2 * slot_floats;
    pass.read = pass.past > 0 ? slots + slot * slot_floats : nullptr;
    pass.written = slots + (1 - slot) * slot_floats;
    first += pass.rows;
  }
  return nullptr;
}

}  // namespace edge_rt
