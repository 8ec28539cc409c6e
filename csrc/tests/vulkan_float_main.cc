// Float operations of Vulkan kernels (gpu/vulkan/float_exact.glsl, lane_math.glsl) against the CPU's, bit for bit:
// those of the device as it is used, and those of integers that mend others.
//
//   vulkan_float_test <folder of SPIR-V>      with csrc/tests/vulkan/float_operations.comp
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include "common/float_bits.h"
#include "tests/golden_inputs.h"
#include "tests/gpu_device_launcher.h"
#include "tests/simd_test.h"

namespace edge_rt {
namespace scalar {
SimdFunctions simd_functions();
}

namespace gpu {
namespace {

constexpr int kThreads = 64, kCount = 64 * kThreads;  // as in float_operations.comp

struct FloatOperationsArgs {
  const uint32_t *a, *b, *c;
  uint32_t* y;
};

using Words = std::vector<uint32_t>;

struct Numbers {
  Words a, b, c;
};

// Zeros, the smallest and largest numbers of either kind, ties of halves, infinities, and what is no number; each also
// with a sign.
constexpr uint32_t kHard[] = {0,          1,          2,          3,          0x007fffff, 0x00800000, 0x00800001,
                              0x00ffffff, 0x01000000, 0x3f7fffff, 0x3f800000, 0x3f800001, 0x7f7fffff, 0x7f800000,
                              0x7f800001, 0x7fc00000, 0x34000000, 0x33800000, 0x33000000, 0x33000001, 0x477fe000,
                              0x477fefff, 0x477ff000, 0x38800000, 0x387fffff, 0x387fe000, 0x00400000, 0x1f800000,
                              0x20000000, 0x5f000000, 0x4b000000, 0x4b800000};
constexpr int kHardCount = sizeof kHard / sizeof kHard[0];

class Source {
 public:
  uint32_t any() { return static_cast<uint32_t>(random_.next() >> 24); }
  uint32_t hard() { return kHard[random_.below(kHardCount)] | (any() & 0x80000000); }
  // Of a size that computations have.
  uint32_t usual() { return (any() & 0x807fffff) | (115 + static_cast<uint32_t>(random_.below(25))) << 23; }
  // Few bits of a mantissa, and any exponent in a range: sums and products lie half-way between floats.
  uint32_t sparse(uint32_t lowest, uint32_t highest) {
    return (any() & 0x80700003) | (lowest + any() % (highest - lowest + 1)) << 23;
  }

 private:
  golden::Random random_{"float operations"};
};

Numbers draw(Source* source, int kind) {
  Numbers out;
  for (int i = 0; i < kCount; ++i) {
    uint32_t a = source->any(), b = source->any(), c = source->any();
    if (kind == 1) {
      a = source->hard(), b = source->hard(), c = source->hard();
    } else if (kind == 2) {
      a = source->usual(), b = source->usual(), c = source->usual();
    } else if (kind == 3) {  // what is left of a product and a sum is its rounding, or a little more
      a = source->usual(), b = source->usual();
      c = bits_of(-(float_of(a) * float_of(b))) + static_cast<uint32_t>(i % 3) - 1;
    } else if (kind == 4) {  // results around the smallest numbers
      a = source->sparse(0, 60), b = source->sparse(60, 130), c = source->sparse(0, 30);
    } else if (kind == 5) {
      a = source->sparse(100, 150), b = source->sparse(100, 150), c = source->sparse(60, 190);
    }
    out.a.push_back(a), out.b.push_back(b), out.c.push_back(c);
  }
  return out;
}
constexpr int kKinds = 6;

// Results of all numbers, 16 at a time.
using Expected = void (*)(const SimdFunctions& f, const uint32_t* a, const uint32_t* b, const uint32_t* c, uint32_t* y);

struct Operation {
  const char* name;
  int number;
  Expected expected;
};

#define EDGE_RT_EACH(expression)                                                                                  \
  [](const SimdFunctions&, const uint32_t* a_bits, const uint32_t* b_bits, const uint32_t* c_bits, uint32_t* y) { \
    for (int i = 0; i < 16; ++i) {                                                                                \
      const float a = float_of(a_bits[i]), b = float_of(b_bits[i]), c = float_of(c_bits[i]);                      \
      (void)a, (void)b, (void)c;                                                                                  \
      y[i] = bits_of(expression);                                                                                 \
    }                                                                                                             \
  }
#define EDGE_RT_VECTOR(function)                                                                             \
  [](const SimdFunctions& f, const uint32_t* a_bits, const uint32_t* b_bits, const uint32_t*, uint32_t* y) { \
    float a[16], b[16], out[16];                                                                             \
    std::memcpy(a, a_bits, sizeof a), std::memcpy(b, b_bits, sizeof b);                                      \
    f.function(a, b, b, out);                                                                                \
    std::memcpy(y, out, sizeof out);                                                                         \
  }
#define EDGE_RT_JOINED(type, function, bits)                                                          \
  [](const SimdFunctions& f, const uint32_t* a_bits, const uint32_t*, const uint32_t*, uint32_t* y) { \
    type a[16];                                                                                       \
    std::memcpy(a, a_bits, sizeof a);                                                                 \
    const auto joined = f.function(a);                                                                \
    for (int i = 0; i < 16; ++i) y[i] = bits(joined);                                                 \
  }

void expect_float_of_half(const SimdFunctions& f, const uint32_t* a, const uint32_t*, const uint32_t*, uint32_t* y) {
  uint16_t halves[16];
  float out[16];
  for (int i = 0; i < 16; ++i) halves[i] = static_cast<uint16_t>(a[i]);
  f.from_half(halves, out);
  std::memcpy(y, out, sizeof out);
}
void expect_half_of_float(const SimdFunctions& f, const uint32_t* a_bits, const uint32_t*, const uint32_t*,
                          uint32_t* y) {
  float a[16];
  uint16_t halves[16];
  std::memcpy(a, a_bits, sizeof a);
  f.to_half(a, halves);
  for (int i = 0; i < 16; ++i) y[i] = halves[i];
}

const Operation kOperations[] = {
    {"fused", 0, EDGE_RT_EACH(std::fma(a, b, c))},
    {"fma_of_integers", 1, EDGE_RT_EACH(std::fma(a, b, c))},
    {"div_exact", 2, EDGE_RT_EACH(a / b)},
    {"division_of_integers", 3, EDGE_RT_EACH(a / b)},
    {"sqrt_exact", 4, EDGE_RT_EACH(std::sqrt(a))},
    {"sqrt_of_integers", 5, EDGE_RT_EACH(std::sqrt(a))},
    {"float_of_half", 6, expect_float_of_half},
    {"half_by_integers", 7, expect_float_of_half},
    {"half_of_float", 8, expect_half_of_float},
    {"a product and a sum", 9, EDGE_RT_EACH(a * b + c)},
    {"vf_exp", 10, EDGE_RT_VECTOR(exp)},
    {"vf_sigmoid", 11, EDGE_RT_VECTOR(sigmoid)},
    {"vf_silu", 12, EDGE_RT_VECTOR(silu)},
    {"vf_gelu", 13, EDGE_RT_VECTOR(gelu)},
    {"vf_tanh", 14, EDGE_RT_VECTOR(tanh)},
    {"vf_softplus", 15, EDGE_RT_VECTOR(softplus)},
    {"vf_max", 16, EDGE_RT_VECTOR(max)},
    {"vf_min", 17, EDGE_RT_VECTOR(min)},
    {"vf_sum", 18, EDGE_RT_JOINED(float, sum, bits_of)},
    {"vf_hmax", 19, EDGE_RT_JOINED(float, hmax, bits_of)},
    {"vi_sum", 20, EDGE_RT_JOINED(int32_t, int_sum, static_cast<uint32_t>)},
};

bool are_same(const Operation& operation, uint32_t got, uint32_t expected) {
  if (got == expected) return true;
  // What is no number may be another one that is none.
  if (operation.number == 8) return (got & 0x7fff) > 0x7c00 && (expected & 0x7fff) > 0x7c00;
  return operation.number != 20 && float_of(got) != float_of(got) && float_of(expected) != float_of(expected);
}

// How many results differ.
int compare(DeviceLauncher* launcher, const Operation& operation, int kind, const Numbers& x) {
  const SimdFunctions cpu = scalar::simd_functions();
  Words y(kCount), expected(kCount);
  const Kernel kernel("float_operations", 1u << operation.number);
  const FloatOperationsArgs args{x.a.data(), x.b.data(), x.c.data(), y.data()};
  if (!launcher->launch(kernel, kCount / kThreads, 1, args)) return kCount;
  int wrong = 0;
  for (int i = 0; i < kCount; ++i) {
    if (i % 16 == 0) operation.expected(cpu, &x.a[i], &x.b[i], &x.c[i], &expected[i]);
    if (are_same(operation, y[i], expected[i])) continue;
    if (++wrong == 1) {
      std::fprintf(stderr, "%s, numbers of kind %d: of %08x %08x %08x it makes %08x and not %08x\n", operation.name,
                   kind, x.a[i], x.b[i], x.c[i], y[i], expected[i]);
    }
  }
  return wrong;
}

int run(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "use: %s <folder of compiled kernels>\n", argv[0]);
    return 2;
  }
  DeviceLauncher* const launcher = DeviceLauncher::open(1, argv + 1, kLargeHeapBytes);
  if (launcher == nullptr) return 2;
  int wrong = 0, all = 0;
  Source source;
  for (int kind = 0; kind < kKinds; ++kind) {
    const Numbers x = draw(&source, kind);
    for (const Operation& operation : kOperations) {
      wrong += compare(launcher, operation, kind, x);
      all += kCount;
    }
  }
  std::printf("%d results, %d different\n", all, wrong);
  return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace gpu
}  // namespace edge_rt

int main(int argc, char** argv) { edge_rt::gpu::end_program(edge_rt::gpu::run(argc, argv)); }
