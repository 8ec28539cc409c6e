// Calls of StateConv.
#include <algorithm>

#include "ops/state_conv/state_conv.h"
#include "tests/fuzz_states.h"

namespace edge_rt::fuzz {
namespace {

enum ConvInput : int { kWeight = kOwnInputs, kBias };

SlotSizes sizes_of(const Case& call) {
  // Mistakes may have been made before.
  const int64_t taps = std::max<int64_t>(1, call.inputs[kWeight].dims[0]),
                channels = std::max<int64_t>(1, call.inputs[kWeight].dims[1]);
  return {(taps - 1) * channels, channels, channels};
}

Case make(Random& random) {
  Case call;
  call.op = "StateConv";
  const int64_t taps = random.one_in(8) ? kMaxStateTaps : random.size(6), channels = random.size(100);
  const int64_t first = random.one_in(2) ? 0 : random.size(40), behind = random.one_in(2) ? 0 : random.size(40);
  if (first > 0 || random.one_in(2)) call.set("first", first);
  const int64_t rows = add_states(call, random, {(taps - 1) * channels, channels, channels}, kBias + 1);
  call.inputs[kRowsIn] = floats(random, {rows, first + channels + behind}, -2.0f, 2.0f);
  call.inputs[kWeight] = floats(random, {taps, channels}, -1.0f, 1.0f);
  call.inputs[kBias] = floats(random, {channels}, -1.0f, 1.0f);
  call.inputs[kBias].present = random.one_in(2);
  return call;
}

bool wrong_taps(Case& call, Random& random) {
  const bool of_taps = random.one_in(2);
  resize_input(call, kWeight, of_taps ? 0 : 1, of_taps ? random.pick<int64_t>({0, kMaxStateTaps + 1}) : 0, "weight is");
  return true;
}

bool wrong_columns(Case& call, Random& random) {
  const fake::Attribute* const attribute = call.attribute("first");
  const int64_t first = attribute == nullptr ? 0 : attribute->integer;
  if (first < 0 || first > call.inputs[kRowsIn].dims[1]) return false;  // as of another mistake
  const int64_t needed = first + sizes_of(call).outputs;
  resize_input(call, kRowsIn, 1, random.pick<int64_t>({0, needed - 1}), "x has");
  return true;
}

bool wrong_first(Case& call, Random& random) {
  const int64_t width = call.inputs[kRowsIn].dims[1];
  call.set("first", random.pick<int64_t>({-1, INT64_MIN, INT64_MAX, width, width + 1}));
  call.words = {"first is", "x has"};
  return true;
}

bool wrong_slots(Case& call, Random& random) {
  if (call.inputs[kWeight].dims[1] == 1) return false;  // of one channel any size is one
  const int64_t floats = call.inputs[kState].dims[2];
  resize_input(call, kState, 2, floats > 0 && random.one_in(2) ? floats - 1 : floats + 1, "state has slots");
  return true;
}

}  // namespace

Subject state_conv() {
  Subject subject = state_subject({"StateConv", make, {}, sizes_of});
  subject.checked.push_back({kBias, {0}});
  subject.required.push_back(kWeight);
  subject.own_mistakes.push_back({"taps", wrong_taps});
  subject.own_mistakes.push_back({"columns", wrong_columns});
  subject.own_mistakes.push_back({"the first column", wrong_first});
  subject.own_mistakes.push_back({"slots", wrong_slots});
  return subject;
}

}  // namespace edge_rt::fuzz
