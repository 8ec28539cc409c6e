#include "gpu/vulkan/self_test.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "common/float_bits.h"
#include "common/float_mode.h"

namespace edge_rt::gpu {
namespace {

constexpr int kCount = 1 << 14;  // values of an operation

// As in self_test.comp.
struct SelfTestArgs {
  const uint32_t *a, *b, *c;
  uint32_t* y;
  int32_t count, operation;
};

float of_half(uint32_t half) {
  const uint32_t sign = (half & 0x8000) << 16, exponent = half >> 10 & 31, fraction = half & 0x3ff;
  if (exponent == 31) return float_of(sign | 0x7f800000 | fraction << 13);
  const float size = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                                   : std::ldexp(static_cast<float>(fraction | 0x400), static_cast<int>(exponent) - 25);
  return sign != 0 ? -size : size;
}

// To nearest, ties to even, at most +-65504; a number.
uint32_t to_half(float value) {
  const uint32_t sign = bits_of(value) >> 16 & 0x8000;
  const float size = std::fmin(std::fabs(value), 65504.0f);
  if (size < std::ldexp(1.0f, -14)) return sign | static_cast<uint32_t>(std::nearbyint(std::ldexp(size, 24)));
  int exponent = 0;
  const float fraction = std::frexp(size, &exponent);  // 0.5 to 1
  const auto rounded = static_cast<uint32_t>(std::nearbyint(std::ldexp(fraction, 11)));
  return sign | ((static_cast<uint32_t>(exponent + 13) << 10) + rounded);
}

int32_t dot4(uint32_t a, uint32_t b, int32_t c) {
  int64_t sum = c;
  for (int i = 0; i < 32; i += 8) sum += int{static_cast<int8_t>(a >> i)} * static_cast<int8_t>(b >> i);
  return static_cast<int32_t>(static_cast<uint32_t>(sum));
}

struct Operation {
  const char* name;
  int number;
  uint32_t mend;  // that makes up for it; 0: none does
  uint32_t (*on_cpu)(uint32_t a, uint32_t b, uint32_t c);
};

const Operation kOperations[] = {
    {"add", 0, 0, [](uint32_t a, uint32_t b, uint32_t) { return bits_of(float_of(a) + float_of(b)); }},
    {"multiply", 1, 0, [](uint32_t a, uint32_t b, uint32_t) { return bits_of(float_of(a) * float_of(b)); }},
    // Which a compiler might fuse.
    {"multiply, then add", 2, 0,
     [](uint32_t a, uint32_t b, uint32_t c) {
       const float product = float_of(a) * float_of(b);
       return bits_of(product + float_of(c));
     }},
    {"fma", 3, 1,
     [](uint32_t a, uint32_t b, uint32_t c) { return bits_of(std::fma(float_of(a), float_of(b), float_of(c))); }},
    {"divide", 4, 2, [](uint32_t a, uint32_t b, uint32_t) { return bits_of(float_of(a) / float_of(b)); }},
    {"square root", 5, 4, [](uint32_t a, uint32_t, uint32_t) { return bits_of(std::sqrt(float_of(a))); }},
    {"float of half", 6, 8, [](uint32_t a, uint32_t, uint32_t) { return bits_of(of_half(a & 0xffff)); }},
    {"half of float", 7, 0, [](uint32_t a, uint32_t, uint32_t) { return to_half(float_of(a)); }},
    {"float of integer", 8, 0,
     [](uint32_t a, uint32_t, uint32_t) { return bits_of(static_cast<float>(static_cast<int32_t>(a))); }},
    {"dot of bytes", 9, kMendsDots,
     [](uint32_t a, uint32_t b, uint32_t c) { return static_cast<uint32_t>(dot4(a, b, static_cast<int32_t>(c))); }},
    {"round to integer", 10, 0,
     [](uint32_t a, uint32_t, uint32_t) {
       return static_cast<uint32_t>(static_cast<int32_t>(std::nearbyint(float_of(a))));
     }},
    // The halves of a word, by way of the block's other threads.
    {"exchange", 12, 0, [](uint32_t a, uint32_t, uint32_t) { return a << 16 | a >> 16; }},
    {"larger of two", 11, 0,
     [](uint32_t a, uint32_t b, uint32_t) { return bits_of(float_of(a) > float_of(b) ? float_of(a) : float_of(b)); }},
};
constexpr int kHalfOfFloat = 7, kDotOfBytes = 9, kRound = 10, kExchange = 12;

// Whether no device that keeps to Vulkan may differ.
bool is_of_integers(const Operation& operation) {
  return operation.number == kDotOfBytes || operation.number == kExchange;
}

// What an operation promises nothing for.
bool is_outside(const Operation& operation, uint32_t a) {
  if (operation.number == kRound) return !(std::fabs(float_of(a)) < 2147483648.0f);
  return operation.number == kHalfOfFloat && (a & 0x7fffffff) > 0x7f800000;
}

bool gives_float(const Operation& operation) {
  return operation.number != kHalfOfFloat && operation.number != kRound && !is_of_integers(operation);
}

class Numbers {
 public:
  uint32_t next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return static_cast<uint32_t>(state_ >> 16);
  }
  // A finite float whose exponent is in a range.
  uint32_t finite(uint32_t lowest, uint32_t highest) {
    return (next() & 0x807fffff) | (lowest + next() % (highest - lowest + 1)) << 23;
  }

 private:
  uint64_t state_ = 0x9e3779b97f4a7c15;
};

// Bits that tell exact operations from others: every pattern, results that nearly cancel, and subnormal ones.
void fill(std::vector<uint32_t>* a, std::vector<uint32_t>* b, std::vector<uint32_t>* c) {
  Numbers numbers;
  for (int i = 0; i < kCount; ++i) {
    uint32_t x = numbers.next(), y = numbers.next(), z = numbers.next();
    if (i % 4 == 1) {
      x = numbers.finite(100, 150), y = numbers.finite(100, 150);
      z = bits_of(-(float_of(x) * float_of(y)));  // what is left is the rounding of the product
    } else if (i % 4 == 2) {
      x = numbers.finite(1, 80), y = numbers.finite(40, 70), z = numbers.finite(0, 8);
    } else if (i % 8 == 3) {
      x = numbers.next() & 0x807fffff, y = numbers.finite(110, 135), z = numbers.next() & 0x80ffffff;
    } else if (i % 8 == 7) {  // sums of subnormal numbers, and halves between integers
      x = numbers.finite(0, 2), y = numbers.finite(0, 2), z = numbers.finite(0, 2);
      if (i % 16 == 7) x = bits_of(static_cast<float>(static_cast<int32_t>(numbers.next() % 400) - 200) / 2.0f), y = z;
    }
    if (i % 64 == 5) x = i & 64 ? 0x80000000 : 0;
    (*a)[static_cast<size_t>(i)] = x, (*b)[static_cast<size_t>(i)] = y, (*c)[static_cast<size_t>(i)] = z;
  }
}

bool is_number(uint32_t bits) { return (bits & 0x7fffffff) <= 0x7f800000; }

class Trial {
 public:
  Trial(GpuDevice* device, GpuQueue* queue) : device_(*device), queue_(*queue) {}
  ~Trial() { device_.free_host(memory_); }
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;

  bool begin(GpuError* error) {
    memory_ = device_.allocate_host(4 * kBytes, &address_, error);
    if (memory_ == nullptr) return false;
    fill(&a_, &b_, &c_);
    std::memcpy(place(0), a_.data(), kBytes);
    std::memcpy(place(1), b_.data(), kBytes);
    std::memcpy(place(2), c_.data(), kBytes);
    return true;
  }

  // `differs` gets whether any number is another one than the CPU's.
  bool run(const Operation& operation, bool* differs, GpuError* error) {
    const SelfTestArgs args{at(0), at(1), at(2), at(3), kCount, operation.number};
    const bool is_done = queue_.begin(false, error) &&
                         queue_.launch(kSelfTestKernel, kCount / 64, 1, &args, sizeof args, error) &&
                         queue_.end(nullptr, error);
    *differs = false;
    const uint32_t* const y = place(3);
    for (int i = 0; is_done && i < kCount; ++i) {
      const auto n = static_cast<size_t>(i);
      if (is_outside(operation, a_[n])) continue;
      const uint32_t expected = operation.on_cpu(a_[n], b_[n], c_[n]);
      if (y[n] != expected && !(gives_float(operation) && !is_number(y[n]) && !is_number(expected))) *differs = true;
    }
    return is_done;
  }

 private:
  static constexpr size_t kBytes = kCount * sizeof(uint32_t);
  uint32_t* place(int which) { return static_cast<uint32_t*>(memory_) + which * kCount; }
  uint32_t* at(int which) { return static_cast<uint32_t*>(address_) + which * kCount; }

  GpuDevice& device_;
  GpuQueue& queue_;
  std::vector<uint32_t> a_ = std::vector<uint32_t>(kCount), b_ = a_, c_ = a_;
  void *memory_ = nullptr, *address_ = nullptr;
};

}  // namespace

bool run_self_test(GpuDevice* device, GpuQueue* queue, const std::function<void(uint32_t)>& restart, SelfTest* out,
                   uint32_t* mends, GpuError* error) {
  const DefaultFloatMode mode;
  Trial trial(device, queue);
  std::vector<const Operation*> wrong;
  *out = {};
  *mends = 0;
  restart(0);
  if (!trial.begin(error)) return false;
  for (const Operation& operation : kOperations) {
    bool differs = false;
    if (!trial.run(operation, &differs, error)) return false;
    if (differs) wrong.push_back(&operation);
    if (differs) *mends |= operation.mend;
    out->operations.emplace_back(operation.name, differs ? "differs" : "as it is");
  }
  if (*mends != 0) restart(*mends);
  for (const Operation* operation : wrong) {
    bool differs = true;
    if (operation->mend != 0 && !trial.run(*operation, &differs, error)) return false;
    if (differs && is_of_integers(*operation)) {
      *error = {
          Fault::kRefused, 0,
          std::string("its driver does not compute what kernels say (") + operation->name + " differs in integers)"};
      return false;
    }
    if (differs) out->has_cpu_bits = false;
    for (auto& [name, how] : out->operations) {
      if (name == operation->name && !differs) how = "mended";
    }
  }
  return true;
}

}  // namespace edge_rt::gpu
