// Sampling: every instruction set draws the same tokens from the same laws, whose hash is that of every machine.
#include <cstdio>
#include <limits>
#include <vector>

#include "common/crew.h"
#include "common/isa.h"
#include "kernels/kernel_table.h"
#include "sampling/chain.h"
#include "tests/check.h"

namespace edge_rt::sampling {
namespace {

constexpr int32_t kVocabulary = 20011;
constexpr int kRows = 48;
// Of all laws and draws below; tests/reference/sampling.py checks what they are.
constexpr uint64_t kHash = 0xfc8e8a778788e69aull;

class Numbers {
 public:
  explicit Numbers(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
    return state_ >> 33;
  }
  // A sum of three, so that few are large.
  float score(float spread) {
    float sum = 0;
    for (int i = 0; i < 3; ++i) sum += static_cast<float>(next() % 65536) / 65536.0f - 0.5f;
    return sum * spread;
  }

 private:
  uint64_t state_;
};

struct Hash {
  uint64_t value = 1469598103934665603ull;
  void add(uint64_t word) { value = (value ^ word) * 1099511628211ull; }
};

Truncation settings_of(int row) {
  Truncation use{};
  use.temperature = row % 6 == 5 ? 0.0 : 0.4 + 0.3 * (row % 5);
  use.top_p = row % 3 == 0 ? 1.0 : 0.9;
  use.min_p = row % 4 == 1 ? 0.05 : 0.0;
  use.top_k = row % 5 == 2 ? 40 : 0;
  use.top_n_sigma = row % 7 == 3 ? 1.2 : 0.0;
  use.top_h = row % 8 == 4 ? 0.5 : 0.0;
  use.xtc_probability = row % 9 == 1 ? 0.5 : 0.0;
  use.xtc_threshold = 0.01;
  use.fsd = row % 6 >= 4 ? 0.4 : 0.0;
  return use;
}

uint64_t hash_of(const SamplingKernels& kernels) {
  Hash hash;
  for (int number = 0; number < kRows; ++number) {
    Numbers numbers(static_cast<uint64_t>(number) + 1);
    std::vector<float> logits(kVocabulary);
    const float spread = 4.0f * static_cast<float>(1 + number % 7);
    for (float& logit : logits) logit = numbers.score(spread);
    if (number % 10 == 7) logits[5] = -std::numeric_limits<float>::infinity();
    std::vector<uint32_t> mask((kVocabulary + 31) / 32);
    for (uint32_t& word : mask) word = static_cast<uint32_t>(numbers.next()) | 1u;
    const Truncation use = settings_of(number);
    const Penalties penalties{
        number % 2 == 0 ? 1.0f : 1.2f, 0.1f, 0.05f, number % 3 == 0 ? 0.8 : 0.0, 1.75, 2, use.fsd > 0 ? 3 : 0};
    Chain chain(use, History(penalties, kVocabulary, {1}, {2}, {{3, 1.5f}}, {4}), kVocabulary, kernels);
    for (int i = 0; i < 200; ++i) chain.history().add(static_cast<int32_t>(numbers.next() % 50), i > 100);
    Row row{logits.data(), number % 4 == 3 ? mask.data() : nullptr, 0.0, 0, Outcome::kDrawn};
    for (const Candidate& one : chain.law(&row, false)) {
      hash.add(static_cast<uint64_t>(one.token));
      hash.add(static_cast<uint64_t>(one.weight));
    }
    for (const double random : {0.0, 0.37, 0.99}) {
      row.random = random;
      chain.draw(&row);
      CHECK(row.outcome == Outcome::kDrawn);
      hash.add(static_cast<uint64_t>(row.token));
    }
    logits[7] = std::numeric_limits<float>::quiet_NaN();
    row.mask = nullptr;
    chain.draw(&row);
    CHECK(row.outcome == Outcome::kNoNumbers);
  }
  return hash.value;
}

int run() {
  for (const int threads : {1, 3}) {
    process_crew().resize(threads);
    for (int i = 0; i < kIsaCount; ++i) {
      const Isa isa = static_cast<Isa>(i);
      if (!isa_is_usable(isa)) continue;
      const uint64_t hash = hash_of(kernel_table(isa).sampling);
      std::printf("%s, %d threads: %016llx\n", isa_name(isa), threads, static_cast<unsigned long long>(hash));
      CHECK(hash == kHash);
    }
  }
  return 0;
}

}  // namespace
}  // namespace edge_rt::sampling

int main() { return edge_rt::sampling::run(); }
