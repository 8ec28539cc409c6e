// The functions of kernels/simd_math.inl in Vulkan kernels, under their names and with their bits: a vector of 16 lanes
// is 16 neighbouring threads, and a thread one lane. Include it after kernel.glsl.

// Constants that have no short decimal.
#define BITS(word) uintBitsToFloat(word)

// The thread's number in its vector.
int vector_lane() { return thread() & 15; }

// The second operand where neither is greater, as on the CPU.
float vf_max(float a, float b) { return a > b ? a : b; }
float vf_min(float a, float b) { return a < b ? a : b; }
float vf_abs(float a) { return uintBitsToFloat(floatBitsToUint(a) & ~SIGN_BIT); }
float vf_neg(float a) { return uintBitsToFloat(floatBitsToUint(a) ^ SIGN_BIT); }
// To the nearest integer, ties to even.
int vi_round(float a) { return int(roundEven(a)); }

// What joins lanes takes all threads of a block, gives the result to all lanes, and meets twice: what the block wrote to
// shared memory before is there for all behind it. The trees are l + (l + 8), then 4, 2 and 1.
shared uint joined_lanes[THREADS];

float vf_sum(float a) {
  joined_lanes[thread()] = floatBitsToUint(a);
  meet();
  const int first = thread() & ~15;
  float sums[8];
  [[unroll]] for (int i = 0; i < 8; ++i) {
    sums[i] = uintBitsToFloat(joined_lanes[first + i]) + uintBitsToFloat(joined_lanes[first + i + 8]);
  }
  meet();
  [[unroll]] for (int half_of = 4; half_of > 0; half_of /= 2) {
    [[unroll]] for (int i = 0; i < half_of; ++i) sums[i] = sums[i] + sums[i + half_of];
  }
  return sums[0];
}

float vf_hmax(float a) {
  joined_lanes[thread()] = floatBitsToUint(a);
  meet();
  const int first = thread() & ~15;
  float most[8];
  [[unroll]] for (int i = 0; i < 8; ++i) {
    most[i] = vf_max(uintBitsToFloat(joined_lanes[first + i]), uintBitsToFloat(joined_lanes[first + i + 8]));
  }
  meet();
  [[unroll]] for (int half_of = 4; half_of > 0; half_of /= 2) {
    [[unroll]] for (int i = 0; i < half_of; ++i) most[i] = vf_max(most[i], most[i + half_of]);
  }
  return most[0];
}

int vi_sum(int a) {
  joined_lanes[thread()] = uint(a);
  meet();
  const int first = thread() & ~15;
  int sum = 0;
  [[unroll]] for (int i = 0; i < 16; ++i) sum += int(joined_lanes[first + i]);
  meet();
  return sum;
}

// exp(x) as (1 + what is returned) * power, x clamped to [-87.3, 88.3].
float exp_steps(float x, out float power) {
  x = vf_min(88.3, vf_max(-87.3, x));
  const int n = vi_round(x * BITS(0x3fb8aa3bu));
  const float whole = float(n);
  float r = fused(-whole, BITS(0x3f317218u), x);  // ln 2 as a float
  r = fused(-whole, BITS(0xb102e308u), r);        // and what that lacks
  float p = BITS(0x3ab511a9u);
  for (int i = 0; i < 4; ++i) {  // a loop, as a fma may be long
    p = fused(p, r, BITS(i == 0 ? 0x3c091d36u : i == 1 ? 0x3d2aac7au : i == 2 ? 0x3e2aaa48u : 0x3efffffeu));
  }
  power = uintBitsToFloat(uint(n + 127) << 23);
  return fused(r * r, p, r);
}

float vf_exp(float x) {
  float power;
  const float rest = exp_steps(x, power);
  return (1.0 + rest) * power;
}

float vf_sigmoid(float x) { return div_exact(1.0, 1.0 + vf_exp(vf_neg(x))); }

float vf_silu(float x) { return div_exact(x, 1.0 + vf_exp(vf_neg(x))); }

// gelu(x) = x / (1 + exp(-this)).
float gelu_exponent(float x) { return x * fused(x * x, 0.0713548162726, 1.59576912161); }
float vf_gelu(float x) { return div_exact(x, 1.0 + vf_exp(vf_neg(gelu_exponent(x)))); }

float vf_tanh(float x) {
  float power;
  const float rest = exp_steps(x + x, power), e = fused(power, rest, power - 1.0);
  return div_exact(e, e + 2.0);
}

float vf_softplus(float x) {
  const float u = vf_exp(vf_neg(vf_abs(x))), s = div_exact(u, u + 2.0), square = s * s;
  float series = BITS(0x3d888889u);            // 1 / 15
  series = fused(series, square, BITS(0x3d9d89d9u));
  series = fused(series, square, BITS(0x3dba2e8cu));
  series = fused(series, square, BITS(0x3de38e39u));
  series = fused(series, square, BITS(0x3e124925u));
  series = fused(series, square, BITS(0x3e4ccccdu));
  series = fused(series, square, BITS(0x3eaaaaabu));
  series = fused(series, square, 1.0);
  return fused(s + s, series, vf_max(0.0, x));
}
