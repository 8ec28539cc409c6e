// The Hadamard transform of a head; spec_attention.h says of what blocks, and in what order.

// Butterflies within a vector at distances below `block`.
EDGE_RT_INLINE VF hadamard_lanes(VF x, int block) {
  if (block > 1) x = vf_butterfly<1>(x);
  if (block > 2) x = vf_butterfly<2>(x);
  if (block > 4) x = vf_butterfly<4>(x);
  if (block > 8) x = vf_butterfly<8>(x);
  return x;
}

// In place; x has room for whole vectors of 16, of which those behind `dim` change nothing.
inline void hadamard(float* x, int dim) {
  const int block = dim & -dim;
  const VF factor = vf_set1(s_sqrt(1.0f / static_cast<float>(block)));
  for (int d = 0; d < dim; d += 16) vf_store(x + d, hadamard_lanes(vf_mul(vf_load(x + d), factor), block));
  for (int distance = 16; distance < block; distance *= 2) {
    for (int begin = 0; begin < dim; begin += 2 * distance) {
      for (int d = begin; d < begin + distance; d += 16) {
        const VF a = vf_load(x + d), b = vf_load(x + d + distance);
        vf_store(x + d, vf_add(a, b));
        vf_store(x + d + distance, vf_sub(a, b));
      }
    }
  }
}
