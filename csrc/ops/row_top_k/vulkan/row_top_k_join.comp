#version 460
// Joins the parts of a row. Grid: rows.
#define THREADS 32
#include "gpu/vulkan/kernel.glsl"
#include "gpu/vulkan/lane_math.glsl"
#include "ops/row_top_k/vulkan/top_k.glsl"
#include "ops/row_top_k/vulkan/log_of_doubles.glsl"

shared uvec2 found[2][MOST];  // the largest of the parts so far, descending

// Number i of the thread's list: of a part, of the last thread what is found so far. 0 behind its end.
uvec2 key_in_list(Parts parts, int first, int count, int side, int i) {
  if (i >= args.k) return uvec2(0u);
  if (thread() == THREADS - 1) return found[side][i];
  const int part = first + thread(), place = block_x() * count + part;
  if (part >= count || i >= parts.at[place].count) return uvec2(0u);
  return key_of(parts.at[place].values[i], parts.at[place].ids[i]);
}

void main() {
  const int row = block_x(), count = parts_of_row(), k = args.k;
  Floats logits = logits_of(row);
  Parts parts = args.parts;
  for (int i = thread(); i < k; i += THREADS) found[0][i] = uvec2(0u);
  meet();
  int side = 0;
  for (int first = 0; first < count; first += THREADS - 1) {
    int at = 0;
    uvec2 head = key_in_list(parts, first, count, side, 0);
    for (int place = 0; place < k; ++place) {
      const uvec2 best = largest_of_block(head);
      if (thread() == 0) found[side ^ 1][place] = best;
      if (!is_none(best) && head == best) head = key_in_list(parts, first, count, side, ++at);
    }
    meet();
    side ^= 1;
  }
  Ints ids = args.ids;
  Floats values = args.values;
  for (int i = thread(); i < k; i += THREADS) {
    const uvec2 key = found[side][i];
    ids.at[row * k + i] = is_none(key) ? -1 : id_of(key);
    values.at[row * k + i] = is_none(key) ? uintBitsToFloat(NEGATIVE_INFINITY) : logits.at[id_of(key)];
  }
  if (thread() != 0) return;
  const bool has_any = !is_none(found[side][0]);
  float log_sum = uintBitsToFloat(NEGATIVE_INFINITY);
  if (has_any) {
    const float peak = logits.at[id_of(found[side][0])];
    float sum = 0.0;
    for (int part = 0; part < count; ++part) {
      const int place = row * count + part;
      // A part that adds nothing leaves a sum that is not below 0 as it is.
      if (parts.at[place].count == 0) continue;
      sum = fused(parts.at[place].sum, vf_exp(parts.at[place].peak - peak), sum);
    }
    log_sum = is_number(sum) ? peak + log_of(sum) : sum;
  }
  Floats log_sum_exp = args.log_sum_exp;
  log_sum_exp.at[row] = log_sum;
}
