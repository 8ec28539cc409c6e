// What norms take from a row, against sums in double; bits are those of scalar code.
#include <cmath>
#include <cstring>
#include <vector>

#include "tests/check.h"
#include "tests/simd_test.h"

namespace edge_rt {
namespace {

constexpr int kMostNumbers = 300;
constexpr float kEpsilon = 1e-5f;

bool same(float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0; }

bool is_near(float found, double exact) { return std::fabs(static_cast<double>(found) - exact) < 1e-6 * exact; }

}  // namespace

void check_norms(const SimdFunctions& f, const SimdFunctions& scalar) {
  uint64_t state = 0x9e3779b97f4a7c15u;
  const auto uniform = [&state] {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<float>(static_cast<int>(state >> 40) - (1 << 23)) / 2796202.0f;  // [-3, 3)
  };
  for (int n = 1; n <= kMostNumbers; ++n) {
    std::vector<float> x(static_cast<size_t>(n));
    for (float& value : x) value = uniform() + 0.5f;
    double sum = 0, squares = 0, differences = 0;
    for (const float value : x) {
      sum += static_cast<double>(value);
      squares += static_cast<double>(value) * static_cast<double>(value);
    }
    for (const float value : x) differences += std::pow(static_cast<double>(value) - sum / n, 2);
    const double epsilon = static_cast<double>(kEpsilon);
    const float rms = f.rms_scale(x.data(), n, kEpsilon);
    CHECK(same(rms, scalar.rms_scale(x.data(), n, kEpsilon)));
    CHECK(is_near(rms, 1 / std::sqrt(squares / n + epsilon)));
    float mean, scalar_mean;
    const float scale = f.layer_scale(x.data(), n, kEpsilon, &mean);
    CHECK(same(scale, scalar.layer_scale(x.data(), n, kEpsilon, &scalar_mean)) && same(mean, scalar_mean));
    CHECK(std::fabs(static_cast<double>(mean) - sum / n) < 1e-6);
    CHECK(is_near(scale, 1 / std::sqrt(differences / n + epsilon)));
  }
}

}  // namespace edge_rt
