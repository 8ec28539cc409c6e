// A head in shared memory, and its Hadamard transform by the whole block.

shared float x[kMaxHeadDim];

// The block meets before and behind it.
void hadamard() {
  const int dim = args.pass.head_dim, block = dim & -dim;
  const float factor = sqrt_exact(div_exact(1.0, float(block)));
  for (int d = thread(); d < dim; d += THREADS) x[d] *= factor;
  for (int distance = 1; distance < block; distance *= 2) {
    meet();
    for (int i = thread(); i < dim / 2; i += THREADS) {
      const int d = i / distance * (2 * distance) + i % distance;
      const float a = x[d], b = x[d + distance];
      x[d] = a + b;
      x[d + distance] = a - b;
    }
  }
  meet();
}
