// The drafting core through its C functions: what it drafts, what it refuses, and calls made up at random.
//
//     draft_test [--runs N] [--seed S]
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "draft/draft_abi.h"
#include "draft/grower.h"
#include "draft/suffix_source.h"
#include "tests/check.h"

using namespace edge_rt::draft;  // NOLINT: a program, not a header

namespace {

constexpr int kWidth = 6;
constexpr int kMostNodes = 40;
const float kBounds[] = {-2.8f, -2.1f, -1.6f, -1.1f, -0.7f, -0.36f, -0.1f};
using Ids = std::vector<int32_t>;

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  int below(int count) { return static_cast<int>(engine_() % static_cast<uint32_t>(count)); }
  bool once_in(int count) { return below(count) == 0; }
  double share() { return engine_() / 4294967296.0; }

 private:
  std::mt19937 engine_;
};

// A grower with all kinds of sources.
struct Core {
  explicit Core(Random& random, bool chain) {
    Ids text(1 + random.below(50));
    for (int32_t& token : text) token = random.below(9);
    sources = {edge_rt_draft_suffix_open(64 + random.below(200)),
               edge_rt_draft_recycling_open(1 + random.below(3), random.below(30), -3.5f, kBounds),
               edge_rt_draft_reference_open(text.data(), static_cast<int64_t>(text.size())),
               edge_rt_draft_forest_open(4)};
    for (void* source : sources) CHECK(source != nullptr);
    const int32_t num_kinds[] = {kSuffixKinds, 3 * 24, 13, 4};
    std::vector<double> priors;
    for (const int32_t count : num_kinds) {
      for (int32_t kind = 0; kind < count; ++kind) priors.push_back(random.share());
    }
    std::vector<double> joint;
    for (int number = 0; number < 2 * 16; ++number) joint.push_back(2 * random.share() - 0.5);
    const uint32_t arms[] = {0, 1, 2, 4, 8, 15};
    grower = edge_rt_draft_grower_open(sources.data(), 4, num_kinds, priors.data(), joint.data(), arms, 6, chain);
    CHECK(grower != nullptr);
  }
  ~Core() {
    edge_rt_draft_grower_close(grower);
    for (void* source : sources) edge_rt_draft_source_close(source);
  }
  Core(const Core&) = delete;

  std::vector<void*> sources;
  void* grower;
};

Ids some_tokens(Random& random, int most) {
  Ids tokens(random.below(most + 1));
  for (int32_t& token : tokens) token = random.below(9);
  return tokens;
}

void check_tree(const Ids& tokens, const Ids& parents, const std::vector<double>& values, int count) {
  for (int node = 0; node < count; ++node) {
    CHECK(parents[node] >= kRoot && parents[node] < node && tokens[node] >= 0);
    CHECK(values[node] > 0 && values[node] <= (node == 0 ? 1.0 : values[node - 1]));
    for (int other = 0; other < node; ++other) {
      CHECK(parents[other] != parents[node] || tokens[other] != tokens[node]);
    }
  }
}

// Drafts, accepts some of it, and learns.
void step(Core& core, Random& random, Ids* known) {
  Ids tokens(kMostNodes), parents(kMostNodes);
  std::vector<double> values(kMostNodes);
  if (random.once_in(2)) {
    const int count = random.below(20);
    Ids guessed(count), above(count), kinds(count);
    for (int node = 0; node < count; ++node) {
      guessed[node] = random.below(30);
      above[node] = random.below(node + 1) - 1;
      kinds[node] = random.below(4);
    }
    // Siblings may be the same: then it is refused, and there are no guesses.
    const int code = edge_rt_draft_forest_set(core.sources[3], count, guessed.data(), above.data(), kinds.data());
    CHECK(code == 0 || code == kRefused);
  }
  const int arm = random.below(6);
  const int count =
      edge_rt_draft_grower_propose(core.grower, random.below(kMostNodes + 1), arm, random.once_in(2) ? 0.0 : 0.03,
                                   random.once_in(2) ? -1.0 : 0.1, tokens.data(), parents.data(), values.data());
  CHECK(count >= 0 && count <= kMostNodes);
  check_tree(tokens, parents, values, count);
  const int nodes = random.below(count + 1);
  Ids path, emitted;
  int32_t at = kRoot;
  for (int node = 0; node < nodes; ++node) {
    if (parents[node] != at || random.once_in(3)) continue;
    path.push_back(node);
    emitted.push_back(tokens[node]);
    at = node;
  }
  emitted.push_back(random.below(9));
  Ids ids((nodes + 1) * kWidth);
  std::vector<float> logits(ids.size()), sums(nodes + 1);
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<int32_t>(i % kWidth) + random.below(3) * kWidth;
    logits[i] =
        random.once_in(50) ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(-4.0 * random.share());
  }
  const int context = std::min<int>(kContextTokens, static_cast<int>(known->size()));
  const std::vector<double> drafting(6, 0.05);
  const bool has_rows = !random.once_in(5);
  const int tested =
      edge_rt_draft_grower_observe(core.grower, nodes, emitted.data(), path.data(), static_cast<int32_t>(path.size()),
                                   known->data() + known->size() - context, context, has_rows ? ids.data() : nullptr,
                                   logits.data(), sums.data(), kWidth, random.once_in(4) ? -1 : arm, drafting.data());
  CHECK(tested >= static_cast<int>(path.size()) && tested <= nodes);
  known->insert(known->end(), emitted.begin(), emitted.end());
}

void divided(Random& random) {
  const int count = 1 + random.below(8), most = random.below(30);
  std::vector<std::vector<double>> values(count);
  std::vector<const double*> addresses, attention;
  Ids nodes, known, sizes(count);
  int rows = most;
  for (std::vector<double>& own : values) {
    for (int left = random.below(9); left > 0; --left) own.push_back((own.empty() ? 1.0 : own.back()) * random.share());
    addresses.push_back(own.data());
    nodes.push_back(static_cast<int32_t>(own.size()));
    known.push_back(1 + random.below(3));
    rows += known.back();
  }
  std::vector<double> costs;
  for (int row = 0; row < rows; ++row) costs.push_back(4.0 + 0.3 * row + random.share());
  for (int i = 0; i < count; ++i) attention.push_back(random.once_in(2) ? nullptr : costs.data());
  const int least = random.below(9);
  const auto divide_by = [&](int32_t num_costs, double tokens) {
    return edge_rt_draft_divide(count, nodes.data(), addresses.data(), known.data(), attention.data(), costs.data(),
                                num_costs, least, most, tokens, 0.1, sizes.data());
  };
  const int all = divide_by(rows, count);
  int sum = 0, there = 0;
  for (int i = 0; i < count; ++i) {
    CHECK(sizes[i] >= 0 && sizes[i] <= nodes[i]);
    sum += sizes[i];
    there += nodes[i];
  }
  CHECK(all == sum && all <= most && all >= std::min(least, std::min(most, there)));
  CHECK(divide_by(rows - 1, count) == kRefused && divide_by(rows, 0.0) == kRefused && divide_by(rows, NAN) == kRefused);
}

void fuzz(uint32_t seed) {
  Random random(seed);
  Core core(random, random.once_in(3));
  std::vector<double> costs;
  for (int rows = 0; rows <= kMostNodes; ++rows) costs.push_back(4.0 + 0.3 * rows + random.share());
  CHECK(edge_rt_draft_grower_price(core.grower, costs.data(), static_cast<int32_t>(costs.size())) == 0);
  Ids known;
  for (int turn = 0; turn < 4; ++turn) {
    known.resize(random.below(static_cast<int>(known.size()) + 1));
    for (const int32_t token : some_tokens(random, 300)) known.push_back(token);
    CHECK(edge_rt_draft_grower_begin(core.grower, 0.8, known.data(), static_cast<int64_t>(known.size())) == 0);
    for (int steps = random.below(60); steps > 0; --steps) step(core, random, &known);
    if (random.once_in(4)) CHECK(edge_rt_draft_suffix_limit(core.sources[0], 64 + random.below(100)) == 0);
    if (random.once_in(4)) CHECK(edge_rt_draft_grower_clear(core.grower) == 0);
    divided(random);
    for (void* source : core.sources) {
      // Any cursor is answered, or refused.
      const int32_t cursor[] = {random.below(400) - 2, random.below(400) - 2, random.below(9), random.below(9)};
      GuessView guesses[kMaxGuesses];
      CHECK(edge_rt_draft_source_children(source, cursor, guesses) <= kMaxGuesses);
      CHECK(edge_rt_draft_source_bytes(source) >= 0);
    }
    CHECK(edge_rt_draft_grower_bytes(core.grower) > 0);
  }
}

void refusals() {
  Random random(1);
  Core core(random, false);
  const int32_t good[] = {1, 2, 3}, bad[] = {1, -1, 3};
  void* const suffix = core.sources[0];
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  CHECK(edge_rt_draft_suffix_open(63) == nullptr && edge_rt_draft_suffix_open(INT32_MAX) == nullptr);
  CHECK(edge_rt_draft_recycling_open(0, 8, -1, kBounds) == nullptr);
  CHECK(edge_rt_draft_recycling_open(4, 8, -1, kBounds) == nullptr);
  CHECK(edge_rt_draft_recycling_open(2, -1, -1, kBounds) == nullptr);
  CHECK(edge_rt_draft_recycling_open(2, 8, NAN, kBounds) == nullptr);
  CHECK(edge_rt_draft_recycling_open(2, 8, -1, nullptr) == nullptr);
  CHECK(edge_rt_draft_recycling_beside(nullptr) == nullptr && edge_rt_draft_recycling_beside(suffix) == nullptr);
  void* const beside = edge_rt_draft_recycling_beside(core.sources[1]);
  CHECK(beside != nullptr);
  edge_rt_draft_source_close(beside);
  CHECK(edge_rt_draft_reference_open(good, 0) == nullptr && edge_rt_draft_reference_open(bad, 3) == nullptr);
  CHECK(edge_rt_draft_forest_open(0) == nullptr && edge_rt_draft_forest_open(INT32_MAX) == nullptr);
  for (const int64_t count : {int64_t{-1}, kHuge}) {
    CHECK(edge_rt_draft_source_begin(suffix, good, count) == kRefused);
    CHECK(edge_rt_draft_source_extend(suffix, good, count) == kRefused);
    CHECK(edge_rt_draft_grower_begin(core.grower, 0.8, good, count) == kRefused);
  }
  CHECK(edge_rt_draft_source_begin(suffix, bad, 3) == kRefused && edge_rt_draft_suffix_size(suffix) == 0);
  CHECK(edge_rt_draft_source_begin(suffix, nullptr, 3) == kRefused && edge_rt_draft_source_begin(nullptr, good, 3) < 0);
  CHECK(edge_rt_draft_suffix_limit(core.sources[1], 64) == kRefused);
  CHECK(edge_rt_draft_suffix_size(core.sources[1]) == kRefused);
  CHECK(edge_rt_draft_forest_set(suffix, 1, good, good, good) == kRefused);
  CHECK(edge_rt_draft_forest_set(core.sources[3], -1, good, good, good) == kRefused);
  CHECK(edge_rt_draft_grower_begin(core.grower, NAN, good, 3) == kRefused);

  Ids tokens(kMaxNodes), parents(kMaxNodes);
  std::vector<double> values(kMaxNodes);
  const auto propose = [&](int32_t limit, int32_t arm, double least, double drafting) {
    return edge_rt_draft_grower_propose(core.grower, limit, arm, least, drafting, tokens.data(), parents.data(),
                                        values.data());
  };
  // No costs are known yet.
  CHECK(propose(1, 1, 0.0, 0.1) == kRefused && propose(1, 1, 0.0, -1.0) >= 0);
  CHECK(propose(-1, 1, 0.0, -1.0) == kRefused && propose(kMaxNodes + 1, 1, 0.0, -1.0) == kRefused);
  CHECK(propose(1, -1, 0.0, -1.0) == kRefused && propose(1, 6, 0.0, -1.0) == kRefused);
  CHECK(propose(1, 1, NAN, -1.0) == kRefused && propose(1, 1, 0.0, NAN) == kRefused);
  const double costs[] = {1.0, 0.0};
  CHECK(edge_rt_draft_grower_price(core.grower, costs, 2) == kRefused);
  CHECK(edge_rt_draft_grower_price(core.grower, costs, 0) == kRefused);
  CHECK(edge_rt_draft_grower_price(core.grower, costs, INT32_MAX) == kRefused);
  const auto observe = [&](int32_t nodes, const int32_t* emitted, int32_t accepted, const int32_t* path,
                           int32_t context, int32_t width) {
    const float row[] = {0.0f};
    return edge_rt_draft_grower_observe(core.grower, nodes, emitted, path, accepted, good, context, good, row, row,
                                        width, -1, nullptr);
  };
  const int32_t path[] = {0, 0};
  CHECK(observe(kMaxNodes + 1, good, 0, path, 0, 1) == kRefused && observe(-1, good, 0, path, 0, 1) == kRefused);
  CHECK(observe(0, good, 1, path, 0, 1) == kRefused && observe(0, bad + 1, 0, path, 0, 1) == kRefused);
  CHECK(observe(0, good, 0, path, kContextTokens + 1, 1) == kRefused && observe(0, good, 0, path, 0, 0) == kRefused);
  CHECK(observe(0, good, 0, path, 0, 1) == 0);

  const int32_t kinds[] = {1};
  const double sure[] = {1.5}, share[] = {0.5}, joint[] = {0, 1, 0, 1}, endless[] = {0, 1, 0, INFINITY};
  const uint32_t arms[] = {0, 2};
  CHECK(edge_rt_draft_grower_open(&suffix, 1, kinds, sure, joint, arms, 1, 0) == nullptr);
  CHECK(edge_rt_draft_grower_open(&suffix, 1, kinds, share, nullptr, arms, 1, 0) == nullptr);
  CHECK(edge_rt_draft_grower_open(&suffix, 1, kinds, share, endless, arms, 1, 0) == nullptr);
  CHECK(edge_rt_draft_grower_open(&suffix, 1, kinds, share, joint, arms, 2, 0) == nullptr);
  CHECK(edge_rt_draft_grower_open(&suffix, kMaxSources + 1, kinds, share, joint, arms, 1, 0) == nullptr);
}

void copies() {
  void* suffix = edge_rt_draft_suffix_open(64);
  const int32_t text[] = {1, 2, 3, 9, 8, 2, 3, 7, 6, 5, 1, 2, 3};
  CHECK(edge_rt_draft_source_begin(suffix, text, 13) == 0);
  int32_t cursor[4];
  CHECK(edge_rt_draft_source_root(suffix, cursor) == 1 && cursor[1] == 3);
  for (const int32_t expected : {9, 8, 2, 3}) {
    GuessView guesses[kMaxGuesses];
    CHECK(edge_rt_draft_source_children(suffix, cursor, guesses) > 0 && guesses[0].token == expected);
    std::memcpy(cursor, guesses[0].cursor, sizeof(cursor));
  }
  edge_rt_draft_source_close(suffix);
}

}  // namespace

int main(int argc, char** argv) {
  int runs = 300;
  uint32_t seed = 1;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--runs") == 0) runs = std::atoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--seed") == 0) seed = static_cast<uint32_t>(std::strtoul(argv[i + 1], nullptr, 10));
  }
  CHECK(edge_rt_draft_version() == kDraftVersion);
  copies();
  refusals();
  for (int run = 0; run < runs; ++run) fuzz(seed + static_cast<uint32_t>(run));
  return 0;
}
