// Calls of Experts; the rows of a call are computed in two calls as well.
#include <algorithm>
#include <cmath>

#include "ops/experts/experts.h"
#include "tests/fuzz_parts.h"

namespace edge_rt::fuzz {
namespace {

enum ExpertsInput : int {
  kX,
  kRouter,
  kGateUp,
  kDown,
  kNorm,
  kNormBias,
  kRouterBias,
  kChoiceBias,
  kGateUpBias,
  kDownBias,
  kResidual,
  kExpertX,
  kShared,
  kSharedGate,
  kExpertScale,
  kPostNorm,
  kExpertNorm,
  kSumNorm
};
constexpr const char *kGated = "good, with a gate", *kPlain = "good, without a gate", *kMixed = "good, two formats";

WeightFormat any_format(Random& random, bool is_wide) {
  for (;;) {
    const auto format = static_cast<WeightFormat>(random.below(kWeightFormatCount));
    if (finer_bytes(format) == 0 && (is_wide || unit_inputs(format) == kBlock)) return format;
  }
}

WeightFormat any_codes(Random& random, bool is_wide) {
  for (;;) {
    const WeightFormat format = any_format(random, is_wide);
    if (rounds_activations(format)) return format;
  }
}

Case make(Random& random) {
  Case call;
  call.op = "Experts";
  const bool is_wide = random.one_in(10), is_gated = !random.one_in(4), is_mixed = is_gated && random.one_in(5);
  const WeightFormat first = is_mixed ? any_codes(random, is_wide) : any_format(random, is_wide);
  const WeightFormat second = is_mixed ? any_codes(random, is_wide) : first, last = any_format(random, is_wide);
  const auto width_of = [&](WeightFormat format) {
    return is_wide                      ? 256
           : rounds_activations(format) ? kBlock * random.between(1, 2)
                                        : kTileRows * random.between(1, 4);
  };
  const bool has_rows = random.one_in(4);
  const int64_t width = width_of(first), inner = width_of(last), experts = random.size(is_wide ? 3 : 20);
  const int64_t hidden = has_rows ? kTileRows * random.between(1, 5) : width;
  const int64_t rows = random.one_in(20) ? 0 : random.size(is_wide ? 4 : 24), between = experts * inner;
  call.set("hidden", hidden);
  call.set("intermediate", inner);
  call.set("experts", experts);
  const int64_t chosen = random.between(1, std::min<int64_t>(experts, 4));
  call.set("chosen", chosen);
  if (has_rows) call.set("width", width);
  if (const int64_t groups = random.between(1, 4); experts % groups == 0 && random.one_in(2)) {
    const int64_t least = (chosen + experts / groups - 1) / (experts / groups);
    call.set("groups", groups);
    call.set("chosen_groups", random.between(least, groups));
  }
  if (random.one_in(2)) call.set("gating", random.pick<std::string>({"softmax", "chosen", "sigmoid"}));
  if (random.one_in(2)) call.set("normalise", random.below(2));
  // Chosen weights that add up to nothing are divided by it.
  call.set("weight_epsilon", random.pick({1e-6f, 0.5f}));
  if (random.one_in(3)) call.set("weight_scale", random.uniform(-2.0f, 2.0f));
  if (random.one_in(3)) call.set("norm", random.pick<std::string>({"rms", "layer"}));
  call.set("epsilon", random.pick({1e-5f, 0.25f}));
  call.set("gate_up_format", is_mixed ? format_name(first) + "," + format_name(second) : format_name(first));
  call.set("down_format", format_name(last));
  const bool has_limits = is_gated && random.one_in(3);
  call.set("activation", !is_gated ? "relu2" : has_limits ? "swiglu" : random.pick<std::string>({"swiglu", "geglu"}));
  if (has_limits) {
    call.set("limit", random.pick({0.0f, 0.5f, 7.0f}));
    call.set("slope", random.pick({1.0f, 1.702f}));
    call.set("up_offset", random.pick({0.0f, 1.0f}));
  }
  call.inputs.resize(kSumNorm + 1);
  call.inputs[kX] = floats(random, {rows, hidden}, -3.0f, 3.0f);
  call.inputs[kRouter] = floats(random, {experts, hidden}, -1.0f, 1.0f);
  call.inputs[kGateUp] = packed_matrix(random, {first, is_gated && !is_mixed ? 2 * between : between, width});
  if (is_mixed) {
    Input& gate_up = call.inputs[kGateUp];
    const Input up = packed_matrix(random, {second, between, width});
    gate_up.bytes.insert(gate_up.bytes.end(), up.bytes.begin(), up.bytes.end());
    gate_up.dims = {static_cast<int64_t>(gate_up.bytes.size())};
  }
  call.inputs[kDown] = packed_matrix(random, {last, experts * width, inner});
  call.inputs[kNorm] = floats(random, {hidden}, -2.0f, 2.0f);
  call.inputs[kNormBias] = floats(random, {hidden}, -1.0f, 1.0f);
  call.inputs[kRouterBias] = floats(random, {experts}, -1.0f, 1.0f);
  call.inputs[kChoiceBias] = floats(random, {experts}, -1.0f, 1.0f);
  call.inputs[kGateUpBias] = floats(random, {is_gated ? 2 * between : between}, -1.0f, 1.0f);
  call.inputs[kDownBias] = floats(random, {experts * width}, -1.0f, 1.0f);
  call.inputs[kResidual] = floats(random, {rows, width}, -5.0f, 5.0f);
  call.inputs[kExpertX] = floats(random, {rows, width}, -3.0f, 3.0f);
  call.inputs[kShared] = floats(random, {rows, width}, -3.0f, 3.0f);
  call.inputs[kSharedGate] = floats(random, {hidden}, -1.0f, 1.0f);
  call.inputs[kExpertScale] = floats(random, {experts}, -2.0f, 2.0f);
  call.inputs[kPostNorm] = floats(random, {width}, -2.0f, 2.0f);
  call.inputs[kExpertNorm] = floats(random, {hidden}, -2.0f, 2.0f);
  call.inputs[kSumNorm] = floats(random, {width}, -2.0f, 2.0f);
  for (size_t i = kNorm; i <= kSumNorm; ++i) call.inputs[i].present = random.one_in(2);
  call.inputs[kExpertX].present = has_rows;
  if (has_rows) call.inputs[kExpertNorm].present = false;
  if (!call.inputs[kShared].present) call.inputs[kSharedGate].present = call.inputs[kSumNorm].present = false;
  if (!call.inputs[kPostNorm].present) call.inputs[kSumNorm].present = false;
  if (call.inputs[kSumNorm].present) call.inputs[kSharedGate].present = false;
  if (!call.inputs[kNorm].present) call.inputs[kNormBias].present = false;
  if (call.inputs[kResidual].present && random.one_in(3)) call.set("residual_scale", random.uniform(-2.0f, 2.0f));
  call.outputs = {{rows, width}};
  call.output_types = {abi::kFloat};
  call.features = {is_mixed ? kMixed : is_gated ? kGated : kPlain};
  return call;
}

std::vector<Case> halves_of(const Case& call) {
  const int64_t rows = call.outputs[0][0];
  if (rows < 2) return {};
  std::vector<Case> parts;
  const int64_t middle = (rows + 1) / 2;
  for (const auto& [begin, end] : {std::pair{int64_t{0}, middle}, std::pair{middle, rows}}) {
    Case& part = parts.emplace_back(call);
    for (const int which : {kX, kResidual, kExpertX, kShared}) {
      Input& input = part.inputs[static_cast<size_t>(which)];
      const int64_t row = input.dims[1] * static_cast<int64_t>(sizeof(float));
      input.dims[0] = end - begin;
      input.bytes = {input.bytes.begin() + begin * row, input.bytes.begin() + end * row};
    }
    part.outputs[0][0] = end - begin;
  }
  return parts;
}

bool wrong_number(Case& call, Random& random) {
  const int64_t bad = random.pick<int64_t>({0, -1, INT64_MIN, INT64_MAX, int64_t{1} << 40, 1 << 30});
  switch (random.below(6)) {
    case 4: call.set("groups", bad); break;
    case 5: call.set("chosen_groups", bad); break;
    case 0: call.set("experts", bad); break;
    case 1: call.set("chosen", random.pick<int64_t>({0, -1, INT64_MAX, call.attribute("experts")->integer + 1})); break;
    case 2:
      call.set("hidden", random.one_in(2) ? bad : call.attribute("hidden")->integer + random.between(1, 15));
      break;
    default: call.set("intermediate", random.one_in(2) ? bad : call.attribute("intermediate")->integer + 8);
  }
  call.words = {"experts is", "hidden is", "groups is", "out_features"};
  return true;
}

bool wrong_value(Case& call, Random& random) {
  const float bad_real = random.pick({std::nanf(""), HUGE_VALF, -HUGE_VALF});
  switch (random.below(9)) {
    case 7: call.set("limit", random.pick({bad_real, -1.0f})); break;
    case 8: call.set(random.one_in(2) ? "slope" : "up_offset", bad_real); break;
    case 0: call.set("gating", random.pick<std::string>({"", "Softmax", "top", std::string(700, 'x')})); break;
    case 1: call.set("normalise", random.pick<int64_t>({2, -1, INT64_MAX})); break;
    case 2: call.set("weight_epsilon", random.pick({bad_real, -1.0f})); break;
    case 3: call.set("weight_scale", bad_real); break;
    case 4: call.set("activation", random.pick<std::string>({"", "none", "silu"})); break;
    case 5: call.set("epsilon", random.pick({bad_real, -1.0f})); break;
    default: call.set("norm", random.pick<std::string>({"", "batch"}));
  }
  call.words = {"gating is", "normalise is", "weight_epsilon is", "activation is", "epsilon is", "norm is", "limit is"};
  return true;
}

bool wrong_format(Case& call, Random& random) {
  const auto name = random.pick<std::string>({"gate_up_format", "down_format"});
  call.set(name, random.pick<std::string>({"", "w9", "w8,", "w4,w4,w4", std::string(700, 'x')}));
  call.words = {"format is", "format has", "in_features is"};
  return true;
}

bool nested_codes(Case& call, Random& random) {
  const int64_t inner = call.attribute("intermediate")->integer, width = call.outputs[0][1];
  if (inner % kBlock != 0) return false;
  const auto format = random.pick({WeightFormat::kW8N, WeightFormat::kW8NUpper});
  call.set("down_format", format_name(format));
  call.inputs[kDown] = packed_matrix(random, {format, call.inputs[kRouter].dims[0] * width, inner});
  call.words = {"nested codes"};
  return true;
}

bool lone_parts(Case& call, Random& random) {
  if (random.one_in(3)) {
    call.inputs[kExpertX].present = !call.inputs[kExpertX].present;
  } else if (random.one_in(3)) {
    call.inputs[kShared].present = false;
    call.inputs[kSharedGate].present = true;
  } else if (random.one_in(3)) {
    call.inputs[kSumNorm].present = true;
    call.inputs[random.pick({kShared, kPostNorm})].present = false;
  } else if (random.one_in(3)) {
    call.inputs[kSumNorm].present = call.inputs[kShared].present = call.inputs[kPostNorm].present = true;
    call.inputs[kSharedGate].present = true;
  } else if (random.one_in(3) && call.inputs[kExpertX].present) {
    call.inputs[kExpertNorm].present = true;
  } else if (random.one_in(2)) {
    call.inputs[kNorm].present = false;
    call.inputs[kNormBias].present = true;
  } else {
    call.inputs[kResidual].present = false;
    call.set("residual_scale", 0.5f);
  }
  call.words = {"norm_bias is given",   "residual_scale is",    "expert_x and attribute",
                "shared_gate is given", "expert_norm is given", "sum_norm needs"};
  return true;
}

}  // namespace

Subject experts() {
  Subject subject{"Experts",
                  make,
                  {kX, kRouter, kGateUp, kDown},
                  {{kX, {1}},
                   {kRouter, {0, 1}},
                   {kDown, {0, 1, 2}},
                   {kNorm, {0}},
                   {kRouterBias, {0}},
                   {kChoiceBias, {0}},
                   {kGateUpBias, {0}},
                   {kDownBias, {0}},
                   {kResidual, {0, 1}},
                   {kExpertX, {0, 1}},
                   {kShared, {0, 1}},
                   {kSharedGate, {0}},
                   {kExpertScale, {0}},
                   {kPostNorm, {0}},
                   {kExpertNorm, {0}},
                   {kSumNorm, {0}}},
                  {"hidden", "intermediate", "experts", "chosen", "gate_up_format", "down_format"},
                  {kGateUp, kDown},
                  {},
                  {kGated, kPlain, kMixed}};
  subject.own_mistakes = {{"sizes", wrong_number},
                          {"values", wrong_value},
                          {"format", wrong_format},
                          {"nested codes", nested_codes},
                          {"parts without others", lone_parts}};
  subject.take_apart = halves_of;
  return subject;
}

}  // namespace edge_rt::fuzz
