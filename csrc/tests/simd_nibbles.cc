// Functions of the 16-lane types that 4-bit codes need, against plain definitions: bits are equal.
#include <cmath>
#include <cstring>

#include "tests/check.h"
#include "tests/simd_test.h"

namespace edge_rt {
namespace {

constexpr int kTurns = 2000;

class Random {
 public:
  uint32_t next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state_ >> 32);
  }
  float uniform() { return static_cast<float>(static_cast<int>(next() >> 8) - (1 << 23)) / 8388608.0f; }

 private:
  uint64_t state_ = 0x2545f4914f6cdd1du;
};

bool same(float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0; }

void check_butterfly(SimdFunctions::Floats* tested, int distance) {
  Random random;
  for (int turn = 0; turn < kTurns; ++turn) {
    float a[16], out[16];
    for (float& value : a) value = random.uniform() * (turn % 2 == 0 ? 1.0f : 1e-6f);
    a[3] = turn % 3 == 0 ? -a[3 ^ distance] : a[3];  // differences and sums of 0
    tested(a, a, a, out);
    for (int l = 0; l < 16; ++l) {
      const float other = a[l ^ distance];
      CHECK(same(out[l], (l & distance) == 0 ? a[l] + other : other - a[l]));
    }
  }
}

void check_lane(SimdFunctions::Floats* tested, int lane) {
  Random random;
  float a[16], out[16];
  for (float& value : a) value = random.uniform();
  tested(a, a, a, out);
  for (const float value : out) CHECK(same(value, a[lane]));
}

void check_values(const SimdFunctions& f) {
  Random random;
  for (int turn = 0; turn < kTurns; ++turn) {
    uint8_t codes[16], finer[16];
    for (int i = 0; i < 16; ++i) {
      codes[i] = static_cast<uint8_t>(random.next());
      finer[i] = static_cast<uint8_t>(random.next());
    }
    const float scale = turn % 16 == 0 ? 0.0f : random.uniform(), minimum = 10.0f * random.uniform();
    float out[32];
    f.from_nibbles(codes, scale, minimum, out);
    for (int i = 0; i < 16; ++i) {
      CHECK(same(out[i], std::fma(static_cast<float>(codes[i] % 16), scale, minimum)));
      CHECK(same(out[i + 16], std::fma(static_cast<float>(codes[i] / 16), scale, minimum)));
    }
    f.from_nibble_pairs(codes, finer, scale, minimum, out);
    for (int i = 0; i < 16; ++i) {
      const int low = codes[i] % 16 * 16 + finer[i] % 16, high = codes[i] / 16 * 16 + finer[i] / 16;
      CHECK(same(out[i], std::fma(static_cast<float>(low), scale, minimum)));
      CHECK(same(out[i + 16], std::fma(static_cast<float>(high), scale, minimum)));
    }
  }
}

void check_words(const SimdFunctions& f) {
  Random random;
  for (int turn = 0; turn < kTurns; ++turn) {
    uint16_t halves[2][16];
    int32_t words[16];
    for (int l = 0; l < 16; ++l) {
      // All but infinities and what is no number.
      for (int i = 0; i < 2; ++i) {
        halves[i][l] = static_cast<uint16_t>((random.next() & 0x83ff) | random.next() % 31 << 10);
      }
      words[l] = static_cast<int32_t>(halves[0][l] | static_cast<uint32_t>(halves[1][l]) << 16);
    }
    float out[32], expected[16];
    f.from_half_pairs(words, out);
    for (int i = 0; i < 2; ++i) {
      f.from_half(halves[i], expected);
      CHECK(std::memcmp(out + 16 * i, expected, sizeof expected) == 0);
    }
    // At every offset from a boundary.
    alignas(64) uint8_t memory[192];
    for (uint8_t& byte : memory) byte = static_cast<uint8_t>(random.next());
    int32_t split[32], given[32];
    f.load_split(memory + turn % 64, split);
    std::memcpy(given, memory + turn % 64, sizeof given);
    for (int l = 0; l < 32; ++l) CHECK(split[l % 2 * 16 + l / 2] == given[l]);
  }
}

void check_bytes(const SimdFunctions& f) {
  Random random;
  for (int turn = 0; turn < kTurns; ++turn) {
    int8_t a[64], b[64], out[64];
    for (int i = 0; i < 64; ++i) {
      a[i] = static_cast<int8_t>(random.next());
      b[i] = static_cast<int8_t>(random.next());
    }
    const auto check = [&](SimdFunctions::Bytes* tested, auto plain) {
      tested(a, b, out);
      for (int i = 0; i < 64; ++i) {
        CHECK(static_cast<uint8_t>(out[i]) == plain(static_cast<uint8_t>(a[i]), static_cast<uint8_t>(b[i])));
      }
    };
    check(f.bytes_copy, [](int x, int) { return x; });
    check(f.bytes_lower, [](int x, int) { return x % 16; });
    check(f.bytes_upper, [](int x, int) { return x / 16; });
    check(f.bytes_join, [](int x, int y) { return x % 16 * 16 + y % 16; });
    check(f.bytes_flip, [](int x, int) { return (x + 128) % 256; });
  }
}

void check_dots(const SimdFunctions& f) {
  Random random;
  for (int turn = 0; turn < kTurns; ++turn) {
    int8_t a[64], positive[64], b[64];
    int32_t acc[16], out[16];
    const bool ends = turn % 8 == 0;  // nothing but the largest products, of one sign
    for (int i = 0; i < 64; ++i) {
      a[i] = static_cast<int8_t>(ends ? -128 : static_cast<int>(random.next() % 256) - 128);
      positive[i] = static_cast<int8_t>(ends ? 127 : random.next() % 128);
      b[i] = static_cast<int8_t>(ends ? (turn % 16 == 0 ? 127 : -127) : static_cast<int>(random.next() % 255) - 127);
    }
    for (int32_t& value : acc) value = static_cast<int32_t>(random.next() >> 2);
    const auto check = [&](const int8_t* factors, int32_t bias) {
      for (int l = 0; l < 16; ++l) {
        int32_t sum = acc[l];
        for (int k = 4 * l; k < 4 * l + 4; ++k) sum += (factors[k] + bias) * b[k];
        CHECK(out[l] == sum);
      }
    };
    f.dot4_positive(acc, positive, b, out);
    check(positive, 0);
    f.dot4_ready(acc, a, b, out);
    check(a, f.ready_bias);
  }
}

}  // namespace

void check_nibbles(const SimdFunctions& functions) {
  check_butterfly(functions.butterfly_1, 1);
  check_butterfly(functions.butterfly_2, 2);
  check_butterfly(functions.butterfly_4, 4);
  check_butterfly(functions.butterfly_8, 8);
  check_lane(functions.lane_0, 0);
  check_lane(functions.lane_6, 6);
  check_lane(functions.lane_9, 9);
  check_lane(functions.lane_15, 15);
  check_values(functions);
  check_words(functions);
  check_bytes(functions);
  check_dots(functions);
}

}  // namespace edge_rt
