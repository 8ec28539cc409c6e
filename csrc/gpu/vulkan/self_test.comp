#version 460
// y[i] = an operation, which self_test.cc numbers, on the bits a[i], b[i] and c[i].
#define THREADS 64
#include "gpu/vulkan/kernel.glsl"

struct SelfTestArgs {
  Words a;
  Words b;
  Words c;
  Words y;
  int count;
  int operation;
};
KERNEL(SelfTestArgs)

uint result(int operation, uint a_bits, uint b_bits, uint c_bits) {
  const float a = uintBitsToFloat(a_bits), b = uintBitsToFloat(b_bits), c = uintBitsToFloat(c_bits);
  switch (operation) {
    case 0: return floatBitsToUint(a + b);
    case 1: return floatBitsToUint(a * b);
    case 2: return floatBitsToUint(a * b + c);
    case 3: return floatBitsToUint(fused(a, b, c));
    case 4: return floatBitsToUint(div_exact(a, b));
    case 5: return floatBitsToUint(sqrt_exact(a));
    case 6: return floatBitsToUint(float_of_half(a_bits & 0xffffu));
    case 7: return half_of_float(a);
    case 8: return floatBitsToUint(float(int(a_bits)));
    case 9: return uint(dot4(a_bits, b_bits, int(c_bits)));
    case 10: return uint(int(roundEven(a)));
    case 11: return floatBitsToUint(a > b ? a : b);
  }
  return 0u;
}

shared uint exchanged[THREADS];

// A word that goes to another thread and comes back, with its halves, one of which is read by itself, in turned order.
uint turned_word(int i) {
  uint word = args.a.at[i];
  [[unroll]] for (int way = 0; way < 2; ++way) {
    exchanged[thread()] = word;
    meet();
    word = exchanged[THREADS - 1 - thread()];
    meet();
  }
  return uint(Halves(uvec2(args.a)).at[2 * i]) << 16 | word >> 16;
}

// There are as many blocks as the values need, none of them in part.
void main() {
  const int i = block_x() * THREADS + thread();
  if (args.operation == 12) {
    args.y.at[i] = turned_word(i);
  } else if (i < args.count) {
    args.y.at[i] = result(args.operation, args.a.at[i], args.b.at[i], args.c.at[i]);
  }
}
