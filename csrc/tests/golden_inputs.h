// Inputs of the golden runs, made of integers and single IEEE operations only, so that they are the same everywhere;
// and the hash of what comes out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
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

// Zeroed memory on a boundary of 64 bytes, as the kernels get it from ONNX Runtime and from packages.
class Memory {
 public:
  explicit Memory(size_t bytes) : words_(bytes / sizeof(Line) + 1) {}
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(words_.data());
  }

 private:
  struct alignas(64) Line {
    uint8_t bytes[64];
  };
  std::vector<Line> words_;
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
