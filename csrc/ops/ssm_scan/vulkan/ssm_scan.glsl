// What the kernels of SsmScan share: their arguments; ssm_scan.h says what is computed.
#include "ops/recurrent/vulkan/recurrent.glsl"

const int GATE_NORM = 0, NORM_GATE = 1, GATE = 2;

struct SsmPass {
  MATRIX_PASS
  int order;
  float epsilon;
  Floats xbc, z, t;
  Long z_stride, t_stride;
  Floats a_scale, skip, dt_bias, norm;
};
struct SsmArgs {
  SsmPass pass;
  StateSlots slots;
  Floats scratch;
  Long levels;
};
KERNEL(SsmArgs)

#include "ops/recurrent/vulkan/recurrent_pass.glsl"
