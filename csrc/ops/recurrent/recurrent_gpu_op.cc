#include "ops/recurrent/recurrent_gpu_op.h"

#include <string>
#include <vector>

#include "ops/pass_rows/pass_rows_check.h"

namespace edge_rt::gpu {
namespace {

int64_t number_of(const void* address) { return static_cast<int64_t>(reinterpret_cast<uintptr_t>(address)); }

void check_replays(const char* op, const StateNumbers& numbers, const std::vector<int64_t>& rows, PassStream& stream) {
  std::vector<int64_t> key{number_of(numbers.past),
                           number_of(numbers.index),
                           number_of(numbers.slot),
                           number_of(numbers.advance),
                           number_of(numbers.certain),
                           number_of(numbers.parents),
                           number_of(numbers.sequence_rows),
                           numbers.most,
                           numbers.states,
                           numbers.room};
  key.insert(key.end(), rows.begin(), rows.end());
  if (!stream.inputs().is_first(key)) return;
  stream.check_replays(op, [numbers, rows]() -> std::string {
    int64_t first = 0, levels = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto sequence = static_cast<int64_t>(i);
      if (numbers.sequence_rows[i] != rows[i]) {
        return printed("sequence_rows[%zu] is %d, the pass has %lld rows of it", i, numbers.sequence_rows[i],
                       static_cast<long long>(rows[i]));
      }
      for (size_t other = 0; other < i; ++other) {
        if (numbers.index[other] == numbers.index[i]) {
          return printed("state_index[%zu] is %d, as of an earlier sequence", i, numbers.index[i]);
        }
      }
      StatePass now{};
      now.rows = rows[i];
      std::vector<StateStep> steps(static_cast<size_t>(now.rows));
      std::string problem = find_bad_state(numbers, sequence, first, &now, steps.data(), &levels);
      if (!problem.empty()) return problem;
      first += now.rows;
    }
    return "";
  });
}

}  // namespace

std::vector<DeviceState> prepare_states(const ort::OpContext& context, const char* op, PassStream& stream,
                                        const StateRun& run) {
  std::vector<int64_t> rows;
  for (const StatePass& pass : run.passes) rows.push_back(pass.rows);
  check_replays(op, state_numbers(context, run.passes.front()), rows, stream);
  const int32_t* on_device[kOwnInputs] = {};
  for (const int input : {kPast, kStateIndex, kSlot, kAdvance, kCertain, kParents}) {
    const ort::TensorView& numbers = context.input(input);
    if (numbers.count == 0) continue;  // advance of passes without room for drafts
    on_device[input] =
        static_cast<const int32_t*>(stream.inputs().upload(numbers.data, sizeof(int32_t) * numbers.count));
    if (on_device[input] == nullptr) return {};
  }
  const ort::TensorView& state = context.input(kState);
  float* const slots = state.as<float>();
  const int64_t most = context.input(kAdvance).dims[1];
  std::vector<DeviceState> out;
  int64_t first = 0;
  for (const int64_t count : rows) {
    const auto i = static_cast<int64_t>(out.size());
    const auto of = [&](int input, int64_t at) {
      return on_device[input] == nullptr ? nullptr : on_device[input] + at;
    };
    StateHeadArgs args{of(kPast, i),    of(kStateIndex, i),  of(kSlot, i), of(kAdvance, i * most),
                       of(kCertain, i), of(kParents, first), most,         count,
                       nullptr};
    const void* const head =
        stream.inputs().derive({args.past, args.index, args.slot, args.advance, args.certain, args.parents},
                               state_head_bytes(count), [&](void* to) {
                                 args.head = static_cast<StateHead*>(to);
                                 return enqueue_state_head(&stream, args);
                               });
    if (head == nullptr) return {};
    out.push_back({args.advance,
                   args.parents,
                   {static_cast<const StateHead*>(head), slots, slots + state.dims[2], 2 * state.dims[2]}});
    first += count;
  }
  return out;
}

}  // namespace edge_rt::gpu
