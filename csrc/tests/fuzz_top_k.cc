// Calls of RowTopK; its answers are compared with a sort.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/row_top_k/row_top_k.h"
#include "tests/fuzz_case.h"

namespace edge_rt::fuzz {
namespace {

constexpr double kSumTolerance = 1e-4;

template <class T>
T element(const std::vector<uint8_t>& bytes, int64_t index) {
  T value;
  std::memcpy(&value, bytes.data() + static_cast<size_t>(index) * sizeof(T), sizeof(T));
  return value;
}

std::string verify(const Input& logits, int64_t k, const Outputs& outputs) {
  const int64_t rows = logits.dims[0], width = logits.dims[1];
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<float> values;
    for (int64_t i = 0; i < width; ++i) values.push_back(logits.get<float>(row * width + i));
    std::vector<int32_t> order(values.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return values[static_cast<size_t>(a)] > values[static_cast<size_t>(b)];
    });
    for (int64_t i = 0; i < k; ++i) {
      const int32_t id = order[static_cast<size_t>(i)];
      if (element<int32_t>(outputs[0], row * k + i) != id) return "an id is not that of a stable sort";
      if (element<float>(outputs[1], row * k + i) != values[static_cast<size_t>(id)]) return "a value is not its id's";
    }
    const double peak = values[static_cast<size_t>(order[0])];
    double sum = 0;
    for (const float value : values) sum += std::exp(value - peak);
    const double found = element<float>(outputs[2], row), wanted = peak + std::log(sum);
    if (!(std::fabs(found - wanted) <= kSumTolerance * (1 + std::fabs(wanted)))) return "log_sum_exp is wrong";
  }
  return "";
}

Case make(Random& random) {
  Case call;
  call.op = "RowTopK";
  const bool is_long = random.one_in(100);
  const int64_t width = is_long ? random.between(1, 3) * kTopKPart + random.between(-2, 40) : random.size(400);
  const int64_t rows = random.one_in(20) ? 0 : random.size(is_long ? 3 : 10);
  const int64_t k = random.size(std::min<int64_t>(width, kMaxTopK));
  call.set("k", k);
  const float size = random.pick({1.0f, 30.0f, 60.0f});
  call.inputs = {floats(random, {rows, width}, -size, size)};
  Input& logits = call.inputs[0];
  if (random.one_in(3)) {  // many equal ones
    for (int64_t i = 0; i < logits.count(); ++i) logits.set(i, std::floor(logits.get<float>(i) * 0.1f));
  }
  call.outputs = {{rows, k}, {rows, k}, {rows}};
  call.output_types = {abi::kInt32, abi::kFloat, abi::kFloat};
  call.verify = [logits, k](const Outputs& outputs) { return verify(logits, k, outputs); };
  return call;
}

}  // namespace

Subject row_top_k() {
  Subject subject{"RowTopK", make, {0}, {}, {"k"}, {}, {}, {}};
  subject.own_mistakes = {
      {"k out of range",
       [](Case& call, Random& random) {
         call.set("k", random.pick<int64_t>({0, -1, kMaxTopK + 1, INT64_MIN, INT64_MAX, int64_t{1} << 32}));
         call.words = {"k is "};
         return true;
       }},
      {"k beyond the row", [](Case& call, Random& random) {
         const int64_t width = random.below(kMaxTopK);
         call.inputs[0] = floats(random, {random.between(0, 3), width}, -1.0f, 1.0f);
         call.set("k", random.between(width + 1, kMaxTopK));
         call.words = {"columns"};
         return true;
       }}};
  return subject;
}

}  // namespace edge_rt::fuzz
