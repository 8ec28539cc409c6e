// The 16-lane types of every instruction set that this machine executes, against plain definitions: bits are equal.
#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "common/float_bits.h"
#include "common/isa.h"
#include "tests/check.h"
#include "tests/pages.h"
#include "tests/simd_test.h"

namespace edge_rt {

#define EDGE_RT_DECLARE(set)      \
  namespace set {                 \
  SimdFunctions simd_functions(); \
  }
EDGE_RT_DECLARE(scalar)
EDGE_RT_DECLARE(avx2)
EDGE_RT_DECLARE(avx_vnni)
EDGE_RT_DECLARE(avx512_vnni)
EDGE_RT_DECLARE(neon_dotprod)
EDGE_RT_DECLARE(neon_i8mm)

namespace {

SimdFunctions functions_of(Isa isa) {
  switch (isa) {
#ifdef EDGE_RT_HAS_AVX2
    case Isa::kAvx2: return avx2::simd_functions();
#endif
#ifdef EDGE_RT_HAS_AVX_VNNI
    case Isa::kAvxVnni: return avx_vnni::simd_functions();
#endif
#ifdef EDGE_RT_HAS_AVX512_VNNI
    case Isa::kAvx512Vnni: return avx512_vnni::simd_functions();
#endif
#ifdef EDGE_RT_HAS_NEON_DOTPROD
    case Isa::kNeonDotprod: return neon_dotprod::simd_functions();
#endif
#ifdef EDGE_RT_HAS_NEON_I8MM
    case Isa::kNeonI8mm: return neon_i8mm::simd_functions();
#endif
    default: return scalar::simd_functions();
  }
}

struct Random {
  uint64_t state = 0x9e3779b97f4a7c15u;
  uint32_t next() {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state >> 32);
  }
  float uniform(float low, float high) { return low + (high - low) * static_cast<float>(next() >> 8) / 16777216.0f; }
};

// NaN is equal to NaN only, whatever its bits.
bool same(float a, float b) { return a != a ? b != b : bits_of(a) == bits_of(b); }

// Numbers of every size, whole ones and halves of such (ties of rounding), edges; never NaN.
float any_float(Random& random) {
  static const float kEdges[] = {0.0f,     -0.0f,     1.0f,          -1.0f,    65504.0f,  -65504.0f,
                                 65520.0f, 1e30f,     -1e30f,        1e-45f,   -1e-45f,   1.1754944e-38f,
                                 5.9e-8f,  -2.98e-8f, 3.4028235e38f, INFINITY, -INFINITY, 8388607.5f};
  switch (random.next() % 4) {
    case 0: return kEdges[random.next() % (sizeof kEdges / sizeof kEdges[0])];
    case 1: return static_cast<float>(static_cast<int>(random.next() % 2001) - 1000) * 0.5f;
    case 2: return random.uniform(-4.0f, 4.0f);
    default: {
      const float a = float_of(random.next());
      return a != a ? 0.0f : a;
    }
  }
}

using PlainFloat = std::function<float(float, float, float)>;

void check_floats(const char* name, SimdFunctions::Floats* tested, const PlainFloat& plain) {
  Random random;
  for (int turn = 0; turn < 3000; ++turn) {
    float a[16], b[16], c[16], out[16];
    for (int l = 0; l < 16; ++l) a[l] = any_float(random), b[l] = any_float(random), c[l] = any_float(random);
    tested(a, b, c, out);
    for (int l = 0; l < 16; ++l) {
      if (same(plain(a[l], b[l], c[l]), out[l])) continue;
      std::fprintf(stderr, "%s(%a, %a, %a) is %a, not %a\n", name, static_cast<double>(a[l]), static_cast<double>(b[l]),
                   static_cast<double>(c[l]), static_cast<double>(out[l]),
                   static_cast<double>(plain(a[l], b[l], c[l])));
      std::exit(1);
    }
  }
}

void check_arithmetic(const SimdFunctions& f) {
  check_floats("vf_zero", f.zero, [](float, float, float) { return 0.0f; });
  check_floats("vf_load", f.copy, [](float a, float, float) { return a; });
  check_floats("vf_add", f.add, [](float a, float b, float) { return a + b; });
  check_floats("vf_sub", f.sub, [](float a, float b, float) { return a - b; });
  check_floats("vf_mul", f.mul, [](float a, float b, float) { return a * b; });
  check_floats("vf_div", f.div, [](float a, float b, float) { return a / b; });
  check_floats("vf_fma", f.fma, [](float a, float b, float c) { return std::fma(a, b, c); });
  check_floats("vf_fnma", f.fnma, [](float a, float b, float c) { return std::fma(-a, b, c); });
  check_floats("vf_max", f.max, [](float a, float b, float) { return a > b ? a : b; });
  check_floats("vf_min", f.min, [](float a, float b, float) { return a < b ? a : b; });
  check_floats("vf_where_less", f.where_less, [](float a, float b, float c) { return a < b ? c : a; });
  check_floats("vf_abs", f.abs, [](float a, float, float) { return std::fabs(a); });
  check_floats("vf_neg", f.neg, [](float a, float, float) { return float_of(bits_of(a) ^ 0x80000000u); });
  check_floats("vf_sqrt", f.sqrt, [](float a, float, float) { return std::sqrt(a); });
  Random random;
  for (int turn = 0; turn < 3000; ++turn) {
    const float a = any_float(random), b = any_float(random), c = any_float(random);
    float lanes[16] = {a}, out[16];
    f.set1(lanes, lanes, lanes, out);
    for (float lane : out) CHECK(same(lane, a));
    CHECK(same(f.s_fma(a, b, c), std::fma(a, b, c)));
    CHECK(same(f.s_sqrt(a), std::sqrt(a)));
  }
}

void check_integers(const SimdFunctions& f) {
  Random random;
  for (int turn = 0; turn < 3000; ++turn) {
    int32_t a[16], b[16], out[16];
    for (int l = 0; l < 16; ++l) a[l] = static_cast<int32_t>(random.next()), b[l] = static_cast<int32_t>(random.next());
    const auto all = [&](SimdFunctions::Ints* tested, auto plain) {
      tested(a, b, out);
      for (int l = 0; l < 16; ++l) {
        CHECK(out[l] == static_cast<int32_t>(plain(static_cast<uint32_t>(a[l]), static_cast<uint32_t>(b[l]))));
      }
    };
    all(f.int_zero, [](uint32_t, uint32_t) { return 0u; });
    all(f.int_set1, [&](uint32_t, uint32_t) { return static_cast<uint32_t>(a[0]); });
    all(f.int_copy, [](uint32_t x, uint32_t) { return x; });
    all(f.int_add, [](uint32_t x, uint32_t y) { return x + y; });
    all(f.int_sub, [](uint32_t x, uint32_t y) { return x - y; });
    all(f.shl_1, [](uint32_t x, uint32_t) { return x << 1; });
    all(f.shl_8, [](uint32_t x, uint32_t) { return x << 8; });
    all(f.shl_23, [](uint32_t x, uint32_t) { return x << 23; });
    float lanes[16];
    f.from_i32(a, lanes);
    for (int l = 0; l < 16; ++l) CHECK(same(lanes[l], static_cast<float>(a[l])));
    // Steps at any place, eight or more apart, some of them down.
    StepTable table;
    for (int i = 0, step = 0; i < 256; ++i) {
      if (i == step) step += 8 + static_cast<int>(random.next() % 12);
      table.values[i] = static_cast<float>(step * 37 % 256 - 128);
    }
    CHECK(fill_steps(&table));
    for (int l = 0; l < 16; ++l) out[l] = static_cast<int32_t>(static_cast<uint32_t>(a[l]) % 256) - 128;
    f.lookup(table, out, lanes);
    for (int l = 0; l < 16; ++l) CHECK(same(lanes[l], table.values[out[l] + 128]));
    f.from_bits(a, lanes);
    CHECK(std::memcmp(lanes, a, sizeof a) == 0);
    f.to_bits(lanes, out);
    CHECK(std::memcmp(out, a, sizeof a) == 0);
    uint32_t sum = 0;
    for (int32_t value : a) sum += static_cast<uint32_t>(value);
    CHECK(f.int_sum(a) == static_cast<int32_t>(sum));
    uint64_t words = 0;
    for (int l = 0; l < 16; ++l) words += uint64_t{static_cast<uint32_t>(a[l])} + static_cast<uint32_t>(b[l]);
    CHECK(f.word_sum(a, b) == words);
  }
}

// One time in four an end of the range, where 16-bit steps would saturate.
int8_t any_byte(Random& random, int least) {
  const uint32_t choice = random.next() % 8;
  if (choice == 0) return static_cast<int8_t>(least);
  return choice == 1 ? int8_t{127} : static_cast<int8_t>(static_cast<int>(random.next() % (128 - least)) + least);
}

void check_bytes(const SimdFunctions& f) {
  Random random;
  for (int turn = 0; turn < 3000; ++turn) {
    int8_t a[64], b[64], back[16];
    int32_t acc[16], out[16];
    const bool ends = turn % 8 == 0;  // nothing but the largest products, of one sign
    for (int i = 0; i < 64; ++i) {
      a[i] = ends ? int8_t{-128} : any_byte(random, -128);
      b[i] = ends ? static_cast<int8_t>(turn % 16 == 0 ? 127 : -127) : any_byte(random, -127);
    }
    for (int32_t& value : acc) value = static_cast<int32_t>(random.next());
    const auto check_dot = [&](int mask) {
      for (int l = 0; l < 16; ++l) {
        int32_t sum = 0;
        for (int k = 0; k < 4; ++k) sum += a[4 * l + k] * b[(4 * l + k) & mask];
        CHECK(out[l] == static_cast<int32_t>(static_cast<uint32_t>(acc[l]) + static_cast<uint32_t>(sum)));
      }
    };
    f.dot4(acc, a, b, out);
    check_dot(63);
    f.dot4_set1(acc, a, b, out);
    check_dot(3);
    float lanes[16];
    f.from_i8(a, lanes);
    for (int l = 0; l < 16; ++l) CHECK(same(lanes[l], static_cast<float>(a[l])));
    for (int l = 0; l < 16; ++l) out[l] = b[l];
    f.to_i8(out, back);
    CHECK(std::memcmp(back, b, sizeof back) == 0);
  }
}

void check_rounding(const SimdFunctions& f) {
  Random random;
  for (int turn = 0; turn < 3000; ++turn) {
    float a[16];
    int32_t out[16];
    for (float& value : a) {
      do {
        value = any_float(random);
      } while (!(std::fabs(value) < 2147483648.0f));
    }
    f.round(a, out);
    for (int l = 0; l < 16; ++l) CHECK(out[l] == static_cast<int32_t>(std::nearbyint(static_cast<double>(a[l]))));
  }
  // Beyond the range any integer may come, but nothing else happens.
  const float wild[16] = {NAN, INFINITY, -INFINITY, 1e30f, -1e30f};
  int32_t out[16];
  int8_t bytes[16];
  f.round(wild, out);
  f.to_i8(out, bytes);
}

// The finite non-negative halves by value; a half's bits are its index.
std::vector<double> half_values() {
  std::vector<double> values;
  for (int bits = 0; bits < 0x7c00; ++bits) {
    const int exponent = bits >> 10, rest = bits & 0x3ff;
    values.push_back(exponent == 0 ? std::ldexp(rest, -24) : std::ldexp(1024 + rest, exponent - 25));
  }
  return values;
}

uint16_t nearest_half(const std::vector<double>& values, float a) {
  const double size = std::min(std::fabs(static_cast<double>(a)), values.back());
  const auto above = static_cast<size_t>(std::lower_bound(values.begin(), values.end(), size) - values.begin());
  size_t best = above;
  if (above > 0) {
    const double up = values[above] - size, down = size - values[above - 1];
    if (down < up || (down == up && above % 2 == 1)) best = above - 1;
  }
  return static_cast<uint16_t>(best | (std::signbit(a) ? 0x8000u : 0u));
}

void check_halves(const SimdFunctions& f) {
  const std::vector<double> values = half_values();
  for (uint32_t first = 0; first < 65536; first += 16) {
    uint16_t bits[16];
    float out[16];
    for (uint32_t l = 0; l < 16; ++l) bits[l] = static_cast<uint16_t>(first + l);
    f.from_half(bits, out);
    for (int l = 0; l < 16; ++l) {
      const uint32_t size = bits[l] & 0x7fff;
      const float plain = size < 0x7c00 ? static_cast<float>(values[size]) : size == 0x7c00 ? INFINITY : NAN;
      CHECK(same(out[l], bits[l] & 0x8000 ? -plain : plain));
    }
  }
  std::vector<float> inputs;
  for (size_t i = 0; i + 1 < values.size(); ++i) {
    const float middle = static_cast<float>((values[i] + values[i + 1]) / 2);  // exact: a tie
    for (float a : {static_cast<float>(values[i]), middle, std::nextafterf(middle, 0), std::nextafterf(middle, 1e9f)}) {
      inputs.push_back(a);
      inputs.push_back(-a);
    }
  }
  Random random;
  for (int i = 0; i < 20000; ++i) inputs.push_back(any_float(random));
  for (float a : {65504.0f, 65519.0f, 65520.0f, 1e9f, INFINITY}) inputs.insert(inputs.end(), {a, -a});
  inputs.resize((inputs.size() + 15) / 16 * 16);
  for (size_t i = 0; i < inputs.size(); i += 16) {
    uint16_t out[16];
    f.to_half(&inputs[i], out);
    for (size_t l = 0; l < 16; ++l) CHECK(out[l] == nearest_half(values, inputs[i + l]));
  }
}

float plain_tree(const float* a, const std::function<float(float, float)>& join) {
  float lanes[16];
  std::copy(a, a + 16, lanes);
  for (int half = 8; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) lanes[l] = join(lanes[l], lanes[l + half]);
  }
  return lanes[0];
}

void check_sums(const SimdFunctions& f) {
  Random random;
  for (int turn = 0; turn < 3000; ++turn) {
    float a[256], out[16];
    int32_t whole[256], whole_out[16];
    for (int i = 0; i < 256; ++i) {
      a[i] = turn % 2 == 0 ? any_float(random) : random.uniform(-1.0f, 1.0f);
      whole[i] = static_cast<int32_t>(random.next());
    }
    f.sum16(a, out);
    f.int_sum16(whole, whole_out);
    for (int j = 0; j < 16; ++j) {
      const float plain = plain_tree(a + 16 * j, [](float x, float y) { return x + y; });
      CHECK(same(out[j], plain));
      CHECK(same(f.sum(a + 16 * j), plain));
      CHECK(same(f.hmax(a + 16 * j), plain_tree(a + 16 * j, [](float x, float y) { return x > y ? x : y; })));
      CHECK(whole_out[j] == f.int_sum(whole + 16 * j));
    }
  }
}

// Parts of a vector at both ends of a page whose neighbours may not be touched.
void check_parts(const SimdFunctions& f) {
  const size_t page = pages::page_bytes();
  char* memory = pages::reserve(3 * page);
  char* middle = memory + page;
  pages::open(middle, page);
  float* begin = reinterpret_cast<float*>(middle);
  float* end = begin + page / sizeof(float);
  float values[16], out[16];
  for (int l = 0; l < 16; ++l) values[l] = static_cast<float>(l + 1);
  for (int n = 0; n <= 16; ++n) {
    for (float* at : {begin, end - n}) {
      std::fill(begin, end, -1.0f);
      f.store_n(at, values, n);
      for (float* p = begin; p < end; ++p) CHECK(*p == (p >= at && p < at + n ? values[p - at] : -1.0f));
      f.load_n(at, n, out);
      for (int l = 0; l < 16; ++l) CHECK(same(out[l], l < n ? values[l] : 0.0f));
    }
  }
  std::memset(middle, 0x11, page);
  uint16_t halves[16];
  float half_out[16];
  std::memset(halves, 0x11, sizeof halves);
  f.from_half(halves, half_out);
  for (int n = 0; n <= 16; n += 2) {
    f.from_half_n(reinterpret_cast<uint16_t*>(middle + page) - n, n, out);
    for (int l = 0; l < 16; ++l) CHECK(same(out[l], l < n ? half_out[l] : 0.0f));
    f.from_i8_n(reinterpret_cast<int8_t*>(middle + page) - n, n, out);
    for (int l = 0; l < 16; ++l) CHECK(same(out[l], l < n ? 17.0f : 0.0f));
  }
  pages::give_back(memory, 3 * page);
}

// Largest relative error against a function in double; bits are those of scalar code.
double worst_error(SimdFunctions::Floats* tested, SimdFunctions::Floats* scalar, double (*exact)(double), float low,
                   float high) {
  constexpr int kSteps = 1 << 17;
  double worst = 0;
  for (int i = 0; i <= kSteps; i += 16) {
    float a[16], out[16], plain[16];
    for (int l = 0; l < 16; ++l) {
      const float part = static_cast<float>(i + l) / kSteps;
      a[l] = std::min(high, low + (high - low) * part);
    }
    tested(a, a, a, out);
    scalar(a, a, a, plain);
    for (int l = 0; l < 16; ++l) {
      CHECK(same(out[l], plain[l]));
      const double wanted = exact(static_cast<double>(a[l]));
      const double error = std::fabs(static_cast<double>(out[l]) - wanted);
      if (wanted != 0) worst = std::max(worst, error / std::fabs(wanted));
    }
  }
  return worst;
}

double exact_sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double exact_silu(double x) { return x * exact_sigmoid(x); }
double exact_gelu(double x) { return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))); }
double exact_softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }

void check_math(const SimdFunctions& f, const SimdFunctions& scalar) {
  const auto both_ranges = [](SimdFunctions::Floats* tested, SimdFunctions::Floats* plain, double (*exact)(double),
                              float low, float high) {
    return std::max(worst_error(tested, plain, exact, low, high), worst_error(tested, plain, exact, -1e-3f, 1e-3f));
  };
  const double exp_error = both_ranges(f.exp, scalar.exp, std::exp, -87.3f, 88.3f);
  const double sigmoid_error = both_ranges(f.sigmoid, scalar.sigmoid, exact_sigmoid, -87.0f, 87.0f);
  const double silu_error = both_ranges(f.silu, scalar.silu, exact_silu, -80.0f, 87.0f);
  const double gelu_error = both_ranges(f.gelu, scalar.gelu, exact_gelu, -4.0f, 87.0f);
  const double tanh_error = both_ranges(f.tanh, scalar.tanh, std::tanh, -12.0f, 12.0f);
  const double softplus_error = both_ranges(f.softplus, scalar.softplus, exact_softplus, -87.0f, 87.0f);
  std::printf("  relative errors: exp %.3g  sigmoid %.3g  silu %.3g  gelu %.3g  tanh %.3g  softplus %.3g\n", exp_error,
              sigmoid_error, silu_error, gelu_error, tanh_error, softplus_error);
  CHECK(exp_error < 2e-7);
  CHECK(sigmoid_error < 4e-7);
  CHECK(silu_error < 5e-7);
  CHECK(gelu_error < 3e-6);  // of tails that are small themselves
  CHECK(tanh_error < 1e-6);
  CHECK(softplus_error < 1e-6);

  const auto lane = [&](SimdFunctions::Floats* function, float x) {
    float a[16], out[16];
    std::fill(a, a + 16, x);
    function(a, a, a, out);
    return out[0];
  };
  CHECK(lane(f.exp, 0.0f) == 1.0f && lane(f.exp, -0.0f) == 1.0f && lane(f.exp, 1e-45f) == 1.0f);
  CHECK(lane(f.exp, -1e9f) == lane(f.exp, -87.3f) && lane(f.exp, INFINITY) == lane(f.exp, 88.3f));
  CHECK(lane(f.exp, -1e9f) < 1.3e-38f && lane(f.exp, NAN) != lane(f.exp, NAN));
  CHECK(lane(f.sigmoid, 200.0f) == 1.0f && lane(f.sigmoid, -200.0f) < 1e-37f);
  CHECK(lane(f.silu, 1e5f) == 1e5f && std::fabs(lane(f.silu, -1e5f)) < 1e-32f && lane(f.silu, 0.0f) == 0.0f);
  CHECK(lane(f.gelu, 1e5f) == 1e5f && std::fabs(lane(f.gelu, -1e5f)) < 1e-32f && lane(f.gelu, 0.0f) == 0.0f);
  CHECK(lane(f.tanh, 1e9f) == 1.0f && lane(f.tanh, -1e9f) == -1.0f && lane(f.tanh, 0.0f) == 0.0f);
  CHECK(lane(f.softplus, 1e9f) == 1e9f && lane(f.softplus, -1e9f) < 1.3e-38f && lane(f.softplus, NAN) != 0.0f);
  CHECK(same(f.s_exp(1.5f), lane(f.exp, 1.5f)));
}

}  // namespace
}  // namespace edge_rt

int main() {
  using namespace edge_rt;  // NOLINT: a program, not a header
  const SimdFunctions plain = functions_of(Isa::kScalar);
  for (int i = 0; i < kIsaCount; ++i) {
    const Isa isa = static_cast<Isa>(i);
    if (!isa_is_usable(isa)) continue;
    std::printf("%s\n", isa_name(isa));
    const SimdFunctions f = functions_of(isa);
    check_arithmetic(f);
    check_integers(f);
    check_bytes(f);
    check_rounding(f);
    check_halves(f);
    check_sums(f);
    check_nibbles(f);
    check_parts(f);
    check_math(f, plain);
    check_norms(f, plain);
  }
  return 0;
}
