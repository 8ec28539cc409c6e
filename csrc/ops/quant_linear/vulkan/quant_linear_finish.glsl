// One output behind its product: quant_linear_finish.inl for one lane. Of the steps that take much code, `choices` says
// which there may be (quant_linear_gpu.cc).

#include "gpu/vulkan/lane_math.glsl"

const uint MAY_BE_GATED = 1u << 22, MAY_HAVE_SOFTCAP = 1u << 23;
bool may(uint choice) { return (choices & choice) != 0u; }

float with_bias(LinearJob job, int tile, int row_of_tile, float value) {
  if (is_null(uvec2(job.its.bias))) return value;
  const int at = tile * TILE_ROWS + row_of_tile;
  return at < low(job.its.out_features) ? value + job.its.bias.at[at] : value;
}

// All gates are x / (1 + exp(-u)) times another number.
float gated(LinearJob job, float gate, float value) {
  const int activation = job.its.steps.activation;
  float x = activation == ACTIVATION_GELU_GATE ? value : gate, other = activation == ACTIVATION_GELU_GATE ? gate : value;
  float u = x;
  if (activation == ACTIVATION_GELU_GATE || activation == ACTIVATION_GEGLU) {
    u = gelu_exponent(x);
  } else if (job.its.steps.limit != 0.0 || job.its.steps.slope != 1.0 || job.its.steps.up_offset != 0.0) {
    const float limit = job.its.steps.limit;
    if (limit != 0.0) {
      x = vf_min(limit, x);
      other = vf_max(vf_neg(limit), vf_min(limit, other));
    }
    u = job.its.steps.slope * x;
    other = other + job.its.steps.up_offset;
  }
  return div_exact(x, 1.0 + vf_exp(vf_neg(u))) * other;
}

float with_residual(LinearJob job, int at, float value) {
  if (is_null(uvec2(job.its.residual))) return value;
  return fused(job.its.steps.residual_scale, value, job.its.residual.at[at]);
}

// Row `row_of_tile` of a tile, for row `row` of x; `up` is the product of a pair's second tile.
void put_output(LinearJob job, int tile, int row, int row_of_tile, float value, float up) {
  const bool is_paired = job.its.paired != 0;
  const int column = (is_paired ? tile >> 1 : tile) * TILE_ROWS + row_of_tile, width = low(job.its.width);
  if (column >= width) return;
  const int at = row * width + column;
  float v = with_bias(job, tile, row_of_tile, value);
  if (may(MAY_BE_GATED)) {
    if (is_paired) {
      v = gated(job, v, with_bias(job, tile + 1, row_of_tile, up));
    } else if (!is_null(uvec2(job.its.gate))) {
      v = gated(job, job.its.gate.at[at], v);
    }
  }
  if (job.its.steps.activation == ACTIVATION_RELU2) {
    const float above = vf_max(0.0, v);
    v = above * above;
  }
  if (job.its.steps.output_scale != 1.0) v = job.its.steps.output_scale * v;
  if (may(MAY_HAVE_SOFTCAP) && job.its.steps.softcap != 0.0) {
    v = job.its.steps.softcap * vf_tanh(div_exact(v, job.its.steps.softcap));
  }
  if (is_null(uvec2(job.its.post_norm))) v = with_residual(job, at, v);
  job.its.y.at[at] = v;
}
