// Parts of what a query sees, joined in ascending order.

struct Joined {
  float peak, sum;
};
Joined nothing_joined() { return Joined(kNoScore, 0.0); }

// Adds a part to the sums; the outputs before it are to be multiplied by x, and its own by y.
vec2 add_part(inout Joined joined, float peak, float sum) {
  const float before = joined.peak;
  joined.peak = vf_max(before, peak);
  vec2 factors = vec2(before, peak) - joined.peak;
  for (int i = 0; i < 2; ++i) factors[i] = vf_exp(factors[i]);
  joined.sum = fused(sum, factors.y, joined.sum * factors.x);
  return factors;
}
