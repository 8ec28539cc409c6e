#include "tests/gpu_faults.h"

#include <cstdio>
#include <cstring>
#include <set>
#include <string>
#include <utility>

#include "tests/check.h"
#include "tests/child.h"

namespace edge_rt::faults {
namespace {

using Place = std::pair<std::string, int>;  // file and line
std::set<Place> met;
bool lists = false;
Place removed;  // none where the line is 0

}  // namespace

bool holds(const char* file, int line) {
  if (lists) met.insert({file, line});
  return line != removed.second || removed.first != file;
}

int try_without_barriers(const std::function<void()>& passes, size_t hidden, size_t every) {
  lists = true;
  passes();
  lists = false;
  size_t number = 0, tried = 0, missed = 0;
  for (const Place& place : met) {
    if (number++ % every != 0) continue;
    const auto run_without = [&] {
      removed = place;
      passes();
    };
    const bool is = !comes_through(run_without, 120);
    ++tried;
    missed += is ? 1 : 0;
    const char* name = std::strrchr(place.first.c_str(), '/');
    std::printf("%s:%d: %s\n", name == nullptr ? place.first.c_str() : name + 1, place.second,
                is ? "missed" : "nothing changes without this barrier");
  }
  std::printf("%zu of %zu barriers tried, %zu of them missed\n", tried, met.size(), missed);
  CHECK(tried > 0);
  return tried - missed <= hidden ? 0 : 1;
}

}  // namespace edge_rt::faults
