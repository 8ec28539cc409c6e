// Calls of GatedDelta.
#include <cmath>

#include "tests/fuzz_states.h"

namespace edge_rt::fuzz {
namespace {

enum DeltaInput : int { kZ = kOwnInputs, kB, kA, kAScale, kDtBias, kNorm };

MatrixShape any_shape(Random& random) {
  MatrixShape shape{};
  shape.key_heads = random.between(1, 3);
  shape.value_heads = shape.key_heads * random.between(1, 3);
  shape.key_dim = 16 * random.between(1, 3);
  shape.value_dim = 16 * random.between(1, 3);
  shape.is_tiled = random.one_in(2);
  return shape;
}

Case make(Random& random) {
  Case call;
  call.op = "GatedDelta";
  const MatrixShape shape = any_shape(random);
  call.set("key_heads", shape.key_heads);
  if (shape.is_tiled || random.one_in(2)) call.set("is_tiled", int64_t{shape.is_tiled ? 1 : 0});
  if (random.one_in(2)) call.set("epsilon", random.pick({1e-6f, 1e-5f, 0.25f}));
  if (random.one_in(2)) call.set("key_epsilon", random.pick({1e-6f, 1e-5f}));
  const int64_t rows = add_states(call, random, shape, kNorm + 1);
  call.inputs[kRowsIn] = floats(random, {rows, 2 * shape.keys() + shape.values()}, -2.0f, 2.0f);
  call.inputs[kZ] = floats(random, {rows, shape.values()}, -4.0f, 4.0f);
  call.inputs[kB] = floats(random, {rows, shape.value_heads}, -4.0f, 4.0f);
  call.inputs[kA] = floats(random, {rows, shape.value_heads}, -4.0f, 4.0f);
  call.inputs[kAScale] = floats(random, {shape.value_heads}, -2.0f, 0.0f);
  call.inputs[kDtBias] = floats(random, {shape.value_heads}, -2.0f, 2.0f);
  call.inputs[kNorm] = floats(random, {shape.value_dim}, -2.0f, 2.0f);
  return call;
}

MatrixShape shape_of(const Case& call) {
  MatrixShape shape{};
  for (const fake::Attribute& attribute : call.attributes)
    shape.key_heads += attribute.name == "key_heads" ? attribute.integer : 0;
  shape.value_heads = call.inputs[kAScale].dims[0];
  shape.value_dim = call.inputs[kNorm].dims[0];
  shape.key_dim = (call.inputs[kRowsIn].dims[1] - shape.values()) / (2 * shape.key_heads);
  return shape;
}

// Sizes that do not go together, or are out of range.
bool wrong_sizes(Case& call, Random& random) {
  const int64_t values = call.inputs[kZ].dims[1], width = call.inputs[kRowsIn].dims[1], kind = random.below(4);
  if (kind == 0) resize_slots(call, random);
  if (kind == 1) resize_input(call, kRowsIn, 1, random.pick<int64_t>({0, values, width + 1}), "qkv has");
  if (kind == 2) resize_input(call, kNorm, 0, random.pick<int64_t>({0, 8, 17, kMaxValueDim + 16}), "norm is");
  if (kind == 3) resize_input(call, kAScale, 0, random.pick<int64_t>({0, 12 * kMaxStateHeads}), "a_scale is");
  return true;
}

bool wrong_attribute(Case& call, Random& random) {
  const int64_t kind = random.below(3);
  if (kind == 0) call.set("key_heads", random.pick<int64_t>({0, -1, kMaxStateHeads + 1, INT64_MIN, INT64_MAX}));
  if (kind == 1) call.set("is_tiled", random.pick<int64_t>({-1, 2, INT64_MAX}));
  if (kind == 2) call.set(random.pick({"epsilon", "key_epsilon"}), random.pick({-1e-6f, HUGE_VALF, std::nanf("")}));
  call.words = {kind == 0 ? "key_heads is" : kind == 1 ? "is_tiled is" : "epsilon and key_epsilon must"};
  return true;
}

}  // namespace

Subject gated_delta() {
  Subject subject = state_subject({"GatedDelta", make, {kZ, kB, kA}, shape_of});
  for (const int input : {kZ, kB, kA}) subject.checked.push_back({input, {0, 1}});
  for (const int input : {kAScale, kDtBias, kNorm}) subject.checked.push_back({input, {0}});
  for (int input = kZ; input <= kNorm; ++input) subject.required.push_back(input);
  subject.required_attributes = {"key_heads"};
  subject.own_mistakes.push_back({"sizes", wrong_sizes});
  subject.own_mistakes.push_back({"attributes", wrong_attribute});
  return subject;
}

}  // namespace edge_rt::fuzz
