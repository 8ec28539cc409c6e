// Calls of SsmScan.
#include <cmath>

#include "tests/fuzz_states.h"

namespace edge_rt::fuzz {
namespace {

enum SsmInput : int { kZ = kOwnInputs, kT, kAScale, kSkip, kDtBias, kNorm };

constexpr const char *kGateNorm = "good, gate and norm", *kNormGate = "good, norm and gate",
                     *kGate = "good, gate alone";

Case make(Random& random) {
  Case call;
  call.op = "SsmScan";
  MatrixShape shape{};
  shape.key_heads = random.between(1, 3);
  shape.value_heads = shape.key_heads * random.between(1, 3);
  shape.key_dim = 4 * random.between(1, 12);
  shape.value_dim = 16 * random.between(1, 3);
  call.set("head_dim", shape.value_dim);
  call.set("groups", shape.key_heads);
  const char* const order = random.pick({kGateNorm, kNormGate, kGate});
  if (order == kNormGate || random.one_in(2)) call.set("norm_first", int64_t{order == kNormGate ? 1 : 0});
  if (random.one_in(2)) call.set("epsilon", random.pick({1e-6f, 1e-5f, 0.25f}));
  const int64_t rows = add_states(call, random, shape, kNorm + 1);
  const int64_t behind = random.one_in(2) ? 0 : random.size(40), before = random.one_in(2) ? 0 : random.size(40);
  call.inputs[kRowsIn] = floats(random, {rows, shape.values() + 2 * shape.keys()}, -2.0f, 2.0f);
  call.inputs[kZ] = floats(random, {rows, shape.values() + behind}, -4.0f, 4.0f);
  call.inputs[kT] = floats(random, {rows, before + shape.value_heads}, -4.0f, 4.0f);
  call.inputs[kAScale] = floats(random, {shape.value_heads}, -2.0f, 0.0f);
  call.inputs[kSkip] = floats(random, {shape.value_heads}, -2.0f, 2.0f);
  call.inputs[kDtBias] = floats(random, {shape.value_heads}, -2.0f, 2.0f);
  if (order == kGate) {
    call.inputs[kNorm].present = false;
  } else {
    call.inputs[kNorm] = floats(random, {shape.values()}, -2.0f, 2.0f);
  }
  call.features.emplace_back(order);
  return call;
}

MatrixShape shape_of(const Case& call) {
  MatrixShape shape{};
  for (const fake::Attribute& attribute : call.attributes) {
    if (attribute.name == "groups") shape.key_heads = attribute.integer;
    if (attribute.name == "head_dim") shape.value_dim = attribute.integer;
  }
  shape.value_heads = call.inputs[kAScale].dims[0];
  shape.key_dim = (call.inputs[kRowsIn].dims[1] - shape.values()) / (2 * shape.key_heads);
  return shape;
}

// Sizes that do not go together, or are out of range.
bool wrong_sizes(Case& call, Random& random) {
  const MatrixShape shape = shape_of(call);
  const int64_t values = shape.values(), width = call.inputs[kRowsIn].dims[1], kind = random.below(5);
  if (kind == 0) resize_slots(call, random);
  if (kind == 1) resize_input(call, kRowsIn, 1, random.pick<int64_t>({0, values, width + 1, width + 2}), "xbc has");
  if (kind == 2) resize_input(call, kAScale, 0, random.pick<int64_t>({0, 12 * kMaxStateHeads}), "a_scale is");
  if (kind == 3) resize_input(call, kZ, 1, random.pick<int64_t>({0, values - 1}), "z has");
  if (kind == 4) resize_input(call, kT, 1, random.pick<int64_t>({0, shape.value_heads - 1}), "z has");
  return true;
}

bool wrong_attribute(Case& call, Random& random) {
  const int64_t kind = random.below(4);
  if (kind == 0) call.set("groups", random.pick<int64_t>({0, -1, kMaxStateHeads + 1, INT64_MIN, INT64_MAX}));
  if (kind == 1) call.set("head_dim", random.pick<int64_t>({0, -16, 8, 17, kMaxValueDim + 16, INT64_MAX}));
  if (kind == 2) call.set("norm_first", random.pick<int64_t>({-1, 2, INT64_MAX}));
  if (kind == 3) call.set("epsilon", random.pick({-1e-6f, HUGE_VALF, std::nanf("")}));
  call.words = {kind == 0 ? "groups is" : kind == 1 ? "head_dim is" : kind == 2 ? "norm_first is" : "epsilon must"};
  return true;
}

bool norm_that_is_not_there(Case& call, Random&) {
  if (call.inputs[kNorm].present) return false;
  call.set("norm_first", int64_t{1});
  call.words = {"there is no norm"};
  return true;
}

}  // namespace

Subject ssm_scan() {
  Subject subject = state_subject({"SsmScan", make, {kZ, kT}, shape_of});
  for (const int input : {kZ, kT, kAScale, kSkip, kDtBias, kNorm}) subject.checked.push_back({input, {0}});
  for (int input = kZ; input < kNorm; ++input) subject.required.push_back(input);
  subject.required_attributes = {"head_dim", "groups"};
  subject.own_mistakes.push_back({"sizes", wrong_sizes});
  subject.own_mistakes.push_back({"attributes", wrong_attribute});
  subject.own_mistakes.push_back({"a norm first that is not there", norm_that_is_not_there});
  for (const char* const order : {kGateNorm, kNormGate, kGate}) subject.features.emplace_back(order);
  return subject;
}

}  // namespace edge_rt::fuzz
