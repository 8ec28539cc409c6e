// The sums of kernels/simd_rows.inl in Vulkan kernels, for blocks of 64 threads and more. Include it after
// lane_math.glsl.

// The CPU's total of a row, of which each of the block's first 64 threads gives the running sum of every 64th element,
// from its own number on. All threads get it; the block meets four times.
float joined_row_sum(float sum) {
  joined_lanes[thread()] = floatBitsToUint(sum);
  meet();
  float vectors[4];
  [[unroll]] for (int i = 0; i < 4; ++i) vectors[i] = uintBitsToFloat(joined_lanes[vector_lane() + 16 * i]);
  meet();
  return vf_sum((vectors[0] + vectors[1]) + (vectors[2] + vectors[3]));
}

// 1 / sqrt(mean of x^2 + epsilon), of the sum of n squares.
float rms_scale_of(float total, int n, float epsilon) {
  return div_exact(1.0, sqrt_exact(div_exact(total, float(n)) + epsilon));
}
