// A function of the integers from -128 to 127 in steps: at most one within each eight of them that begin at a multiple
// of 8. So one word says all about these eight.
#pragma once

#include <cstdint>

namespace edge_rt {

struct StepTable {
  float values[256];  // of an integer at its number + 128; whole numbers from -128 to 127
  // Bytes of a word, the lowest first: the value before the step, the one behind it, 0, the first integer behind it.
  int32_t steps[32];
};

// Makes the words of values; false: two steps are too near to each other.
inline bool fill_steps(StepTable* table) {
  for (int word = 0; word < 32; ++word) {
    const float* own = table->values + 8 * word;
    int at = 0;
    for (int i = 1; i < 8; ++i) {
      if (own[i] == own[i - 1]) continue;
      if (at != 0) return false;
      at = i;
    }
    const auto byte = [](int value) { return static_cast<uint32_t>(static_cast<uint8_t>(static_cast<int8_t>(value))); };
    const uint32_t before = byte(static_cast<int>(own[0])), behind = byte(static_cast<int>(own[at]));
    table->steps[word] = static_cast<int32_t>(before | behind << 8 | byte(8 * word + at - 128) << 24);
  }
  return true;
}

}  // namespace edge_rt
