#include "ops/recurrent/recurrent_gpu_op.h"

#include <string>
#include <utility>
#include <vector>

#include "ops/pass_rows/pass_rows_check.h"

namespace edge_rt::gpu {
namespace {

int64_t number_of(const void* address) { return static_cast<int64_t>(reinterpret_cast<uintptr_t>(address)); }

void check_replays(const char* op, const StateNumbers& numbers, int64_t rows, PassStream& stream) {
  if (!stream.inputs().is_first({number_of(numbers.past), number_of(numbers.index), number_of(numbers.slot),
                                 number_of(numbers.advance), number_of(numbers.certain), number_of(numbers.parents),
                                 number_of(numbers.sequence_rows), numbers.most, numbers.states, numbers.room, rows})) {
    return;
  }
  stream.check_replays(op, [numbers, rows] {
    StatePass now{};
    now.rows = rows;
    int64_t levels = 0;
    std::vector<StateStep> steps(static_cast<size_t>(rows));
    return *numbers.sequence_rows == rows ? find_bad_state(numbers, 0, 0, &now, steps.data(), &levels)
                                          : printed("sequence_rows[0] is %d, the pass has %lld rows",
                                                    *numbers.sequence_rows, static_cast<long long>(rows));
  });
}

}  // namespace

bool prepare_states(const ort::OpContext& context, const char* op, PassStream& stream, StatePass* pass,
                    StateSlots* slots) {
  check_replays(op, state_numbers(context, *pass), pass->rows, stream);
  const void* on_device[kOwnInputs] = {};
  for (const int input : {kPast, kStateIndex, kSlot, kAdvance, kCertain, kParents}) {
    const ort::TensorView& numbers = context.input(input);
    if (numbers.count == 0) continue;  // advance of passes without room for drafts
    on_device[input] = stream.inputs().upload(numbers.data, sizeof(int32_t) * numbers.count);
    if (on_device[input] == nullptr) return false;
  }
  const auto uploaded = [&](int input) { return static_cast<const int32_t*>(on_device[input]); };
  const StateHeadArgs args{uploaded(kPast),
                           uploaded(kStateIndex),
                           uploaded(kSlot),
                           uploaded(kAdvance),
                           uploaded(kCertain),
                           uploaded(kParents),
                           context.input(kAdvance).dims[1],
                           pass->rows,
                           nullptr};
  const void* const head =
      stream.inputs().derive({args.past, args.index, args.slot, args.advance, args.certain, args.parents},
                             state_head_bytes(pass->rows), [&](void* to) {
                               StateHeadArgs filled = args;
                               filled.head = static_cast<StateHead*>(to);
                               return enqueue_state_head(&stream, filled);
                             });
  if (head == nullptr) return false;
  pass->advance = args.advance;
  pass->parents = args.parents;
  const ort::TensorView& state = context.input(kState);
  float* const first = state.as<float>();
  *slots = {static_cast<const StateHead*>(head), first, first + state.dims[2], 2 * state.dims[2]};
  return true;
}

}  // namespace edge_rt::gpu
