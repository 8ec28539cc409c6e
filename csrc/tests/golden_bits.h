// Hashes of output bits by the names of their cases: computed, or on record in golden_bits.txt.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace edge_rt::golden {

using Bits = std::map<std::string, uint64_t>;

// Lines of "case hash". False: the file holds anything else, or nothing.
bool read_bits(const char* path, Bits* out);

// Says which cases differ, are not on record or were not computed, and how many there are. 0: none; else 1.
int compare_bits(const Bits& computed, const Bits& expected);

}  // namespace edge_rt::golden
