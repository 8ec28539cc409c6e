#version 460
// The largest logits of a part of a row, and its sum of exponentials in the CPU's order. Grid: parts, and rows.
#define THREADS 128
#include "gpu/vulkan/kernel.glsl"
#include "gpu/vulkan/lane_math.glsl"

#include "ops/row_top_k/vulkan/top_k.glsl"

const int OWN = PART / THREADS;  // of a thread
shared float exps[THREADS];

void main() {
  const int part = block_x(), row = block_y(), begin = part * PART, k = args.k;
  const int count_here = min(low(args.width) - begin, PART);
  Floats logits = logits_of(row);
  Parts out_parts = args.parts;
  const int place_of_part = row * parts_of_row() + part;

  // Logits of the thread that are not taken yet, and the largest of them.
  uint left = 0xffffffffu;
  uvec2 best = uvec2(0u);
  for (int i = 0; i < OWN; ++i) {
    const int n = i * THREADS + thread();
    if (n < count_here) best = larger(best, key_of(logits.at[begin + n], begin + n));
  }
  int count = 0;
  float peak = uintBitsToFloat(NEGATIVE_INFINITY);
  for (int place = 0; place < k; ++place) {
    const uvec2 found = largest_of_block(best);
    if (is_none(found)) break;
    count = place + 1;
    const float value = logits.at[id_of(found)];
    if (place == 0) peak = value;
    if (thread() == 0) {
      out_parts.at[place_of_part].ids[place] = id_of(found);
      out_parts.at[place_of_part].values[place] = value;
    }
    if (found == best) {
      left &= ~(1u << uint((id_of(found) - begin) / THREADS));
      best = uvec2(0u);
      for (int i = 0; i < OWN; ++i) {
        const int n = i * THREADS + thread();
        if (n < count_here && (left >> i & 1u) != 0u) best = larger(best, key_of(logits.at[begin + n], begin + n));
      }
    }
  }

  // 16 lanes add every 16th exponential, in order.
  float sum = 0.0;
  for (int first = 0; first < count_here; first += THREADS) {
    const int n = first + thread();
    exps[thread()] = n < count_here ? vf_exp(logits.at[begin + n] - peak) : 0.0;
    meet();
    const int here = min(THREADS, count_here - first);
    if (thread() < 16) {
      for (int i = thread(); i < here; i += 16) sum = sum + exps[i];
    }
    meet();
  }
  sum = vf_sum(sum);
  if (thread() == 0) {
    out_parts.at[place_of_part].count = count;
    out_parts.at[place_of_part].peak = peak;
    out_parts.at[place_of_part].sum = count > 0 ? sum : 0.0;
  }
}
