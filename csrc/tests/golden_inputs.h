// Inputs of the golden runs, made of integers and single IEEE operations only, so that they are the same everywhere;
// and the hash of what comes out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "ops/quant_linear/quant_linear.h"

namespace edge_rt::golden {

// splitmix64, seeded by name: a case does not change when another one is added.
class Random {
 public:
  explicit Random(const std::string& name);
  uint64_t next();
  int below(int bound) { return static_cast<int>((next() >> 33) % static_cast<uint64_t>(bound)); }
  float uniform() { return static_cast<float>(static_cast<int32_t>(next() >> 40) - (1 << 23)) * 0x1p-23f; }  // [-1, 1)
  std::vector<float> uniform(int64_t count, float size);

 private:
  uint64_t state_;
};

// FNV-1a.
class Hash {
 public:
  void add(const void* data, size_t bytes);
  template <class T>
  void add(const std::vector<T>& values) {
    add(values.data(), values.size() * sizeof(T));
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325u;
};

// Memory on a boundary of 64 bytes, as the kernels get it from ONNX Runtime and from packages.
template <class T>
struct Aligned {
  using value_type = T;
  static constexpr std::align_val_t kBoundary{64};

  T* allocate(size_t count) { return static_cast<T*>(::operator new(count * sizeof(T), kBoundary)); }
  void deallocate(T* memory, size_t) { ::operator delete(memory, kBoundary); }
  bool operator==(const Aligned&) const { return true; }
  bool operator!=(const Aligned&) const { return false; }
};

// Zeros, and not a byte more than were asked for: AddressSanitizer sees what is read behind them.
class Memory {
 public:
  explicit Memory(size_t bytes) : bytes_(bytes) {}
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(bytes_.data());
  }

 private:
  std::vector<uint8_t, Aligned<uint8_t>> bytes_;
};

// A matrix in the layout tile16 with random codes and scales; rows and columns of padding are zero.
struct Matrix {
  WeightFormat format;
  int64_t outputs, inputs;
  std::shared_ptr<Memory> memory;

  Matrix(Random& random, WeightFormat weight_format, int64_t output_count, int64_t input_count);
  PackedWeight packed() const;
};

}  // namespace edge_rt::golden
