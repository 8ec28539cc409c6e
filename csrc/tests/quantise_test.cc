// Rounding of rows: every instruction set has the bits of scalar code, and nothing is read or written beyond the
// arrays, which lie in allocations of their exact sizes.
#include "quantise/quantise.h"

#include <cmath>
#include <string>
#include <vector>

#include "common/isa.h"
#include "tests/check.h"

namespace edge_rt {
namespace {

struct Result {
  std::vector<uint8_t> codes, scales, minima;
  std::vector<uint16_t> d, m;
  std::vector<float> errors;

  bool operator==(const Result& other) const {
    return codes == other.codes && scales == other.scales && minima == other.minima && d == other.d && m == other.m &&
           errors == other.errors;
  }
};

struct Case {
  const char* name;
  RoundingFormat format;
};

uint32_t state = 1;
float any() {
  state = state * 1664525u + 1013904223u;
  return static_cast<float>(static_cast<int32_t>(state)) / 2147483648.0f;
}

std::vector<float> floats(int64_t count, float least) {
  std::vector<float> out(static_cast<size_t>(count));
  for (float& value : out) value = least == 0.0f ? any() : least + std::fabs(any());
  return out;
}

RoundingFormat format_of(int group, int unit, RoundingScales scales, bool has_minimum, int offset, float lowest,
                         float highest) {
  RoundingFormat format{group, unit, scales, has_minimum, offset, 2, 3, lowest, highest, {}, nullptr, nullptr};
  const float starts[3] = {0.85f, 0.95f, 1.0f};
  for (int i = 0; i < 3; ++i) format.starts[i] = has_minimum ? starts[i] : starts[i] * lowest;
  return format;
}

Result round_with(const char* isa, const RoundingFormat& format, const std::vector<float>& weights, int64_t rows,
                  int64_t inputs, const std::vector<float>& importance, const std::vector<std::vector<float>>& factors,
                  const std::vector<int64_t>& widths) {
  Result out;
  const auto size = [&](int64_t share) { return static_cast<size_t>(rows * inputs / share); };
  out.codes.resize(size(1));
  out.errors.resize(size(1));
  if (format.scales != kHalfScales) out.scales.resize(size(format.group));
  if (format.scales == kByteScales) out.minima.resize(size(format.group));
  out.d.resize(size(format.unit));
  if (format.has_minimum != 0) out.m.resize(size(format.unit));
  std::vector<const float*> addresses;
  for (const auto& factor : factors) addresses.push_back(factor.data());
  const auto or_null = [](auto& values) { return values.empty() ? nullptr : values.data(); };
  const RoundingTask task{&format,
                          weights.data(),
                          rows,
                          inputs,
                          importance.data(),
                          addresses.data(),
                          widths.data(),
                          static_cast<int64_t>(factors.size()),
                          out.codes.data(),
                          or_null(out.scales),
                          or_null(out.minima),
                          out.d.data(),
                          or_null(out.m),
                          out.errors.data()};
  CHECK(edge_rt_quantise(&task, isa) == 0);
  return out;
}

void check(const Case& tested, int64_t rows, bool has_feedback) {
  const std::vector<int64_t> widths = has_feedback ? std::vector<int64_t>{512, 256} : std::vector<int64_t>{};
  const int64_t inputs = 768;
  const auto weights = floats(rows * inputs, 0.0f), importance = floats(inputs, 0.1f);
  std::vector<std::vector<float>> factors;
  for (const int64_t width : widths) {
    factors.push_back(floats(width * width, 0.0f));
    for (float& value : factors.back()) value *= 0.02f;
  }
  const Result scalar = round_with("scalar", tested.format, weights, rows, inputs, importance, factors, widths);
  for (int i = 0; i < kIsaCount; ++i) {
    const Isa isa = static_cast<Isa>(i);
    if (!isa_is_usable(isa)) continue;
    const Result found = round_with(isa_name(isa), tested.format, weights, rows, inputs, importance, factors, widths);
    if (found == scalar) continue;
    std::fprintf(stderr, "%s: %s differs from scalar code at %d rows\n", tested.name, isa_name(isa),
                 static_cast<int>(rows));
    std::exit(1);
  }
}

// A factor with what is no number: any code, and nothing beyond the tables is read.
void check_no_numbers(const RoundingFormat& format) {
  const auto weights = floats(16 * 256, 0.0f), importance = floats(256, 0.1f);
  std::vector<std::vector<float>> factors{floats(256 * 256, 0.0f)};
  factors[0][256 * 40 + 3] = NAN;
  for (int i = 0; i < kIsaCount; ++i) {
    const Isa isa = static_cast<Isa>(i);
    if (isa_is_usable(isa)) round_with(isa_name(isa), format, weights, 16, 256, importance, factors, {256});
  }
}

void check_refusals() {
  RoundingFormat format = format_of(32, 32, kHalfScales, false, 8, -8, 7);
  const std::vector<float> values(64, 1.0f);
  std::vector<uint8_t> codes(64);
  std::vector<uint16_t> d(2);
  RoundingTask task{&format, values.data(), 1,       64,      values.data(), nullptr, nullptr,
                    0,       codes.data(),  nullptr, nullptr, d.data(),      nullptr, nullptr};
  CHECK(edge_rt_quantise(&task, nullptr) == 0);
  CHECK(edge_rt_quantise(&task, "no such set") == -1);
  CHECK(edge_rt_quantise(nullptr, nullptr) == -1);
  task.inputs = 63;
  CHECK(edge_rt_quantise(&task, nullptr) == -1);
  task.inputs = 64;
  StepTable steep{};
  for (int i = 0; i < 256; ++i) steep.values[i] = static_cast<float>(i / 3 - 42);
  format.table = &steep, format.table_codes = codes.data();
  CHECK(edge_rt_quantise(&task, nullptr) == -1);
  format.table = nullptr, format.table_codes = nullptr;
  format.has_minimum = 1;
  CHECK(edge_rt_quantise(&task, nullptr) == -1);
  format.has_minimum = 0;
  const int64_t width = 32;
  const float* factor = values.data();
  task.factors = &factor, task.widths = &width, task.num_factors = 1;
  CHECK(edge_rt_quantise(&task, nullptr) == -1);
}

}  // namespace
}  // namespace edge_rt

int main() {
  using namespace edge_rt;  // NOLINT
  StepTable table{};
  uint8_t places[256];
  for (int i = 0; i < 256; ++i) {
    places[i] = static_cast<uint8_t>(i / 16);
    table.values[i] = static_cast<float>(places[i] * 16 - 120);
  }
  Case cases[] = {
      {"half", format_of(32, 32, kHalfScales, false, 8, -8, 7)},
      {"bytes", format_of(32, 32, kHalfScales, false, 0, -127, 127)},
      {"half with a minimum", format_of(32, 32, kHalfScales, true, 0, 0, 15)},
      {"signed", format_of(16, 256, kSignedScales, false, 32, -32, 31)},
      {"byte", format_of(32, 256, kByteScales, true, 0, 0, 31)},
      {"table", format_of(32, 256, kSignedScales, false, 0, -120, 120)},
  };
  cases[5].format.table = &table;
  cases[5].format.table_codes = places;
  for (const Case& tested : cases) {
    for (const int64_t rows : {1, 16, 37, 65}) {
      check(tested, rows, false);
      check(tested, rows, true);
    }
    check_no_numbers(tested.format);
  }
  check_refusals();
  std::puts("ok");
  return 0;
}
