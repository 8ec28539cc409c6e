// A float and its bits. Not for kernels, which are compiled once per instruction set and share no functions.
#pragma once

#include <cstdint>
#include <cstring>

namespace edge_rt {

inline float float_of(uint32_t bits) {
  float out;
  std::memcpy(&out, &bits, sizeof out);
  return out;
}

inline uint32_t bits_of(float value) {
  uint32_t out;
  std::memcpy(&out, &value, sizeof out);
  return out;
}

}  // namespace edge_rt
