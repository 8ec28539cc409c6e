// QuantLinear, QuantEmbed and RowTopK of GPUs, on fibers, against the CPU's scalar kernels: the same bits.
//
//   gpu_linear_test                  some cases of every format, 2 seeds
//   gpu_linear_test <seeds>          all cases with so many seeds (minutes)
//   gpu_linear_test out_of_bounds    whether a read behind a matrix is found
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "ops/quant_embed/quant_embed_gpu.h"
#include "ops/row_top_k/row_top_k_gpu.h"
#include "tests/check.h"
#include "tests/child.h"
#include "tests/fiber_launcher.h"
#include "tests/golden_ops.h"
#include "tests/gpu_linear_cases.h"
#include "tests/gpu_tables.h"
#include "tests/pages.h"

namespace edge_rt::golden {
namespace {

const KernelTable& cpu_kernels() { return kernel_table(Isa::kScalar); }

void compare_embed(WeightFormat format, uint64_t seed) {
  constexpr int64_t kOutputs = 37;
  Random random(format_name(format));
  const int64_t inputs = unit_inputs(format) > kBlock ? 512 : rounds_activations(format) ? 96 : 70;
  const Matrix matrix(random, format, kOutputs, inputs);
  std::vector<int64_t> ids = {kOutputs, -1, INT64_MIN, INT64_MAX};  // which do not exist
  const size_t bad = ids.size() * static_cast<size_t>(inputs);
  for (int64_t id = kOutputs - 1; id >= 0; --id) ids.push_back(id);
  std::vector<float> y(ids.size() * static_cast<size_t>(inputs)), expected(static_cast<size_t>(inputs));
  gpu::FiberLauncher launcher(seed);
  CHECK(gpu::enqueue_embed(
      &launcher, {matrix.packed(), ids.data(), static_cast<int64_t>(ids.size()), kOutputs, inputs, 22.625f, y.data()}));
  for (size_t i = 0; i < bad; ++i) CHECK(y[i] != y[i]);
  for (size_t i = 4; i < ids.size(); ++i) {
    cpu_kernels().quant_embed.row(matrix.packed(), ids[i], inputs, 22.625f, expected.data());
    CHECK(std::memcmp(expected.data(), &y[i * static_cast<size_t>(inputs)], expected.size() * sizeof(float)) == 0);
  }
}

// Rows of random logits with many equal ones; of equal logits; of what is no number or not finite.
std::vector<float> awkward_logits(Random& random, int64_t width) {
  std::vector<float> logits = random.uniform(4 * width, 30.0f);
  const auto at = [&](int64_t row) { return static_cast<size_t>(row * width + random.below(static_cast<int>(width))); };
  for (int i = 0; i < 150; ++i) logits[at(i % 2)] = static_cast<float>(25 + i % 7);
  for (int i = 0; i < 70; ++i) logits[at(1)] = i % 3 == 0 ? std::nanf("") : i % 3 == 1 ? -HUGE_VALF : -0.0f;
  for (int64_t i = 0; i < width; ++i) {
    logits[static_cast<size_t>(2 * width + i)] = i % 2 == 0 ? 0.0f : -0.0f;
    logits[static_cast<size_t>(3 * width + i)] = std::nanf("");
  }
  return logits;
}

void compare_top_k(int k, int64_t width, uint64_t seed) {
  constexpr int64_t kRows = 4;
  Random random("top_k" + std::to_string(k) + "." + std::to_string(width));
  const std::vector<float> logits = awkward_logits(random, width);
  TopKRows job{logits.data(), kRows, width, k, nullptr, nullptr, nullptr, nullptr};
  const auto parts_of_row = static_cast<size_t>(job.part_count());
  std::vector<TopKPart> parts(kRows * parts_of_row), found(parts_of_row);
  std::vector<int32_t> ids(static_cast<size_t>(kRows * k)), expected_ids(static_cast<size_t>(k));
  std::vector<float> values(ids.size()), sums(kRows), expected_values(expected_ids.size()), expected_sum(1);
  job.parts = parts.data();
  job.ids = ids.data();
  job.values = values.data();
  job.log_sum_exp = sums.data();
  gpu::FiberLauncher launcher(seed);
  CHECK(gpu::enqueue_top_k(&launcher, job));
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t begin = 0; begin < width; begin += kTopKPart) {
      const int64_t end = begin + kTopKPart < width ? begin + kTopKPart : width;
      cpu_kernels().row_top_k.part(logits.data() + row * width, begin, end, k,
                                   &found[static_cast<size_t>(begin / kTopKPart)]);
    }
    cpu_kernels().row_top_k.join(found.data(), job.part_count(), k, expected_ids.data(), expected_values.data(),
                                 expected_sum.data());
    const size_t bytes = sizeof(float) * static_cast<size_t>(k);
    CHECK(std::memcmp(expected_ids.data(), &ids[static_cast<size_t>(row * k)], bytes) == 0);
    CHECK(std::memcmp(expected_values.data(), &values[static_cast<size_t>(row * k)], bytes) == 0);
    // What is no number has no bits that are promised.
    const float sum = sums[static_cast<size_t>(row)];
    if (expected_sum[0] == expected_sum[0] || sum == sum) {
      CHECK(std::memcmp(expected_sum.data(), &sum, sizeof sum) == 0);
    }
  }
}

// Whether one can multiply by a matrix of which so many bytes lie behind what may be read.
bool can_multiply(size_t bytes_behind) {
  Random random("out of bounds");
  const Matrix matrix(random, WeightFormat::kW4, 32, 96);
  const std::vector<float> x = random.uniform(matrix.inputs, 3.0f);
  PackedWeight weight = matrix.packed();
  const size_t bytes = static_cast<size_t>(weight.bytes()) - bytes_behind;
  char* begin = pages::before_closed_page(bytes);
  std::memcpy(begin, weight.data, bytes);
  weight.data = reinterpret_cast<uint8_t*>(begin);
  return comes_through([&] { linear(fiber_kernels(1), {one_part(weight), matrix.inputs, matrix.outputs}, x, 1, {}); },
                       60);
}

int run_out_of_bounds() {
  CHECK(can_multiply(0));
  CHECK(!can_multiply(16));  // of the last scales
  return 0;
}

int run(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "out_of_bounds") == 0) return run_out_of_bounds();
  const bool all = argc == 2;
  const int seeds = all ? std::atoi(argv[1]) : 2;
  CHECK(seeds > 0);
  for (int i = 0; i < kWeightFormatCount; ++i) {
    const auto format = static_cast<WeightFormat>(i);
    run_linear_cases(format, seeds, all);
    for (int seed = 1; seed <= seeds; ++seed) compare_embed(format, static_cast<uint64_t>(seed));
    if (all) std::printf("%s: the bits of the CPU\n", format_name(format));
    std::fflush(stdout);
  }
  for (int seed = 1; seed <= seeds; ++seed) {
    for (const int k : {1, 5, kMaxTopK}) {
      for (const int64_t width : {int64_t{70}, 2 * kTopKPart + 777})
        compare_top_k(k, width, static_cast<uint64_t>(seed));
    }
    if (all) compare_top_k(kMaxTopK, 33 * kTopKPart + 1, static_cast<uint64_t>(seed));
  }
  return 0;
}

}  // namespace
}  // namespace edge_rt::golden

int main(int argc, char** argv) { return edge_rt::golden::run(argc, argv); }
