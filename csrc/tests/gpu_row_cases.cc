// QuantEmbed and RowTopK on GPUs against the CPU's scalar kernels.
#include <cmath>
#include <cstring>

#include "ops/quant_embed/quant_embed_gpu.h"
#include "ops/row_top_k/row_top_k_gpu.h"
#include "tests/check.h"
#include "tests/golden_ops.h"
#include "tests/gpu_linear_cases.h"

namespace edge_rt::golden {
namespace {

const KernelTable& cpu_kernels() { return kernel_table(Isa::kScalar); }

}  // namespace

void run_embed_case(gpu::Launcher* launcher, WeightFormat format) {
  constexpr int64_t kOutputs = 37;
  Random random(format_name(format));
  const int64_t inputs = unit_inputs(format) > kBlock ? 512 : rounds_activations(format) ? 96 : 70;
  const Matrix matrix(random, format, kOutputs, inputs);
  std::vector<int64_t> ids = {kOutputs, -1, INT64_MIN, INT64_MAX};  // which do not exist
  const size_t bad = ids.size() * static_cast<size_t>(inputs);
  for (int64_t id = kOutputs - 1; id >= 0; --id) ids.push_back(id);
  std::vector<float> y(ids.size() * static_cast<size_t>(inputs)), expected(static_cast<size_t>(inputs));
  EmbedRows job;
  std::memset(&job, 0, sizeof job);  // the gap behind a float, too: launchers look for addresses everywhere
  job.weight = matrix.packed();
  job.ids = ids.data();
  job.rows = static_cast<int64_t>(ids.size());
  job.out_features = kOutputs;
  job.features = inputs;
  job.scale = 22.625f;
  job.y = y.data();
  CHECK(gpu::enqueue_embed(launcher, job));
  for (size_t i = 0; i < bad; ++i) CHECK(y[i] != y[i]);
  for (size_t i = 4; i < ids.size(); ++i) {
    cpu_kernels().quant_embed.row(matrix.packed(), ids[i], inputs, 22.625f, expected.data());
    CHECK(std::memcmp(expected.data(), &y[i * static_cast<size_t>(inputs)], expected.size() * sizeof(float)) == 0);
  }
}

namespace {

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

}  // namespace

void run_top_k_case(gpu::Launcher* launcher, int k, int64_t width) {
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
  CHECK(gpu::enqueue_top_k(launcher, job));
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

}  // namespace edge_rt::golden
