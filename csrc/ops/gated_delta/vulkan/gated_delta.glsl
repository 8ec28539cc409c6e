// What the kernels of GatedDelta share: their arguments; gated_delta.h says what is computed.
#include "ops/recurrent/vulkan/recurrent.glsl"

struct DeltaPass {
  MATRIX_PASS
  float epsilon, key_epsilon;
  Floats qkv, z, b, a, a_scale, dt_bias, norm;
};
struct DeltaArgs {
  DeltaPass pass;
  StateSlots slots;
  Floats scratch;
  Long levels;
};
KERNEL(DeltaArgs)

#include "ops/recurrent/vulkan/recurrent_pass.glsl"
