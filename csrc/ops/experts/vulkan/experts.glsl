// What the kernels of Experts share: their arguments, as in experts_gpu.h; experts.h says what is computed. Behind
// kernel.glsl.
#include "ops/quant_linear/vulkan/quant_linear_structs.glsl"

const int GATING_SOFTMAX = 0, GATING_CHOSEN = 1, GATING_SIGMOID = 2;

struct Routing {
  Long rows, features;
  int experts, chosen;
  int gating;
  int is_normalised;
  float epsilon, scale;
  Floats x, router, bias, choice_bias;
  int groups, chosen_groups;
  Floats expert_scale, shared_gate, shares, scores;
  Ints ids;
  Floats weights;
};

struct ActiveExpert {
  int expert, begin, rows;
  int first_group;
  RoundRows up, down;
};
layout(buffer_reference, scalar, buffer_reference_align = 8) buffer ActiveExperts { ActiveExpert at[]; };

struct ExpertGroup {
  LinearRows up, down;
};
layout(buffer_reference, scalar, buffer_reference_align = 8) buffer ExpertGroups { ExpertGroup at[]; };

struct ExpertsJob {
  Routing routing;
  RoundRows norm, expert_norm;
  Floats normed, expert_normed;
  PackedParts gate_up, down;
  Floats gate_up_bias, down_bias;
  LinearSteps steps;
  Floats x;
  Long width, intermediate;
  int has_shares;
  Floats shared_, residual;
  float residual_scale;
  LinearRows finish, finish_sum;
  Floats y;
  Ints counts;
  ActiveExperts active_;
  ExpertGroups groups;
  Ints slots, numbers, places;
  Activations up_in, down_in;
  Floats made, outs;
};
KERNEL(ExpertsJob)

// Where jobs lie in a struct, and the bytes of one: what follows from the structs above (experts_gpu.cc looks).
const uint NORM_AT = 128u, EXPERT_NORM_AT = 408u;
const uint ACTIVE_BYTES = 576u, ACTIVE_UP_AT = 16u, ACTIVE_DOWN_AT = 296u;
const uint GROUP_BYTES = 976u, GROUP_UP_AT = 0u, GROUP_DOWN_AT = 488u;

RoundJob rounding_at(uint slot, uint place) {
  return RoundJob(advanced(advanced(uvec2(args.active_), slot, ACTIVE_BYTES), 1u, place));
}
LinearJob product_at(uint group, uint place) {
  return LinearJob(advanced(advanced(uvec2(args.groups), group, GROUP_BYTES), 1u, place));
}

Floats row_of(Floats rows, int row, int width) { return Floats(advanced(uvec2(rows), uint(row), 4u * uint(width))); }
