#include "tests/golden_bits.h"

#include <cstdio>
#include <fstream>

namespace edge_rt::golden {

bool read_bits(const char* path, Bits* out) {
  std::ifstream file(path);
  std::string name;
  uint64_t hash;
  while (file >> name >> std::hex >> hash) (*out)[name] = hash;
  return file.eof() && !out->empty();
}

int compare_bits(const Bits& computed, const Bits& expected) {
  int different = 0;
  const auto complain = [&](const std::string& name, const char* what) {
    std::fprintf(stderr, "%s: %s\n", name.c_str(), what);
    ++different;
  };
  for (const auto& [name, hash] : computed) {
    const auto found = expected.find(name);
    if (found == expected.end()) {
      complain(name, "is not on record");
    } else if (found->second != hash) {
      complain(name, "has other bits than those on record");
    }
  }
  for (const auto& [name, hash] : expected) {
    if (computed.count(name) == 0) complain(name, "is on record, but was not computed");
  }
  std::printf("%zu cases, %d different\n", computed.size(), different);
  return different == 0 ? 0 : 1;
}

}  // namespace edge_rt::golden
