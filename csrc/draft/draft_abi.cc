#include "draft/draft_abi.h"

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "common/export.h"
#include "draft/forest_source.h"
#include "draft/grower.h"
#include "draft/recycling_source.h"
#include "draft/reference_source.h"
#include "draft/suffix_source.h"

using namespace edge_rt::draft;  // NOLINT: the functions below are C
using edge_rt::guarded;

namespace {

constexpr int64_t kMostTokens = int64_t{1} << 28;
constexpr int32_t kMostKinds = 1 << 16;
constexpr int32_t kMostWidth = 1 << 16;
constexpr int32_t kMostCursor = 1 << 30;

struct PricedGrower {
  Grower grower;
  std::vector<double> costs;
};

bool are_tokens(const int32_t* tokens, int64_t count) {
  if (count < 0 || count > kMostTokens || (count > 0 && tokens == nullptr)) return false;
  for (int64_t i = 0; i < count; ++i) {
    if (tokens[i] < 0) return false;
  }
  return true;
}

bool are_rows(const int32_t* top_ids, const float* top_logits, const float* log_sum_exp, int32_t width) {
  if (top_ids == nullptr) return true;
  return top_logits != nullptr && log_sum_exp != nullptr && width > 0 && width <= kMostWidth;
}

bool is_context(const int32_t* context, int32_t size) {
  return size >= 0 && size <= kContextTokens && are_tokens(context, size);
}

bool is_tree(const int32_t* tokens, const int32_t* parents, int32_t nodes) {
  if (nodes < 0 || nodes > kMaxNodes || !are_tokens(tokens, nodes) || (nodes > 0 && parents == nullptr)) return false;
  for (int32_t node = 0; node < nodes; ++node) {
    if (parents[node] < kRoot || parents[node] >= node) return false;
  }
  return true;
}

Source* source_of(void* handle) { return static_cast<Source*>(handle); }
PricedGrower* grower_of(void* handle) { return static_cast<PricedGrower*>(handle); }

template <typename Made, typename... Arguments>
void* opened(Arguments... arguments) {
  return guarded<void*>(nullptr, [&]() -> void* { return static_cast<Source*>(new Made(arguments...)); });
}

}  // namespace

int edge_rt_draft_version() { return kDraftVersion; }

void* edge_rt_draft_suffix_open(int32_t max_tokens) {
  if (max_tokens < kLeastSuffixTokens || max_tokens > kMostSuffixTokens) return nullptr;
  return opened<SuffixSource>(max_tokens);
}

void* edge_rt_draft_recycling_open(int32_t max_order, int32_t max_contexts, float least, const float* bounds) {
  const bool is_good = max_order >= 1 && max_order <= kMaxOrder && max_contexts >= 0 && max_contexts <= kMostContexts;
  if (!is_good || bounds == nullptr || !(least <= 0)) return nullptr;
  return opened<RecyclingSource>(max_order, max_contexts, least, bounds);
}

void* edge_rt_draft_recycling_beside(void* source) {
  const auto* const other = dynamic_cast<RecyclingSource*>(source_of(source));
  if (other == nullptr) return nullptr;
  return guarded<void*>(nullptr, [&]() -> void* { return static_cast<Source*>(new RecyclingSource(*other)); });
}

void* edge_rt_draft_reference_open(const int32_t* tokens, int64_t count) {
  if (count < 1 || !are_tokens(tokens, count)) return nullptr;
  return opened<ReferenceSource>(tokens, static_cast<size_t>(count));
}

void* edge_rt_draft_forest_open(int32_t num_kinds) {
  if (num_kinds < 1 || num_kinds > kMostKinds) return nullptr;
  return opened<ForestSource>(num_kinds);
}

int edge_rt_draft_source_begin(void* source, const int32_t* tokens, int64_t count) {
  if (source == nullptr || !are_tokens(tokens, count)) return kRefused;
  return guarded<int>(kNoMemory, [&] { return source_of(source)->begin(tokens, static_cast<size_t>(count)), 0; });
}

int edge_rt_draft_source_extend(void* source, const int32_t* tokens, int64_t count) {
  if (source == nullptr || !are_tokens(tokens, count)) return kRefused;
  return guarded<int>(kNoMemory, [&] { return source_of(source)->extend(tokens, static_cast<size_t>(count)), 0; });
}

int edge_rt_draft_source_observe(void* source, const int32_t* tokens, const int32_t* parents, int32_t nodes,
                                 const int32_t* context, int32_t context_size, const int32_t* top_ids,
                                 const float* top_logits, const float* log_sum_exp, int32_t width) {
  const bool is_good = is_tree(tokens, parents, nodes) && is_context(context, context_size) &&
                       are_rows(top_ids, top_logits, log_sum_exp, width);
  if (source == nullptr || !is_good) return kRefused;
  const Step step{nodes, tokens, parents, context, context_size, top_ids, top_logits, log_sum_exp, width};
  return guarded<int>(kNoMemory, [&] { return source_of(source)->observe(step), 0; });
}

int edge_rt_draft_source_root(void* source, int32_t* cursor) {
  if (source == nullptr || cursor == nullptr) return kRefused;
  Cursor root;
  const bool is_known = source_of(source)->root(&root);
  for (int i = 0; i < 4; ++i) cursor[i] = root.part[i];
  return is_known;
}

int edge_rt_draft_source_children(void* source, const int32_t* cursor, GuessView* guesses) {
  if (source == nullptr || cursor == nullptr || guesses == nullptr) return kRefused;
  Cursor at;
  for (int i = 0; i < 4; ++i) {
    if (cursor[i] < -1 || cursor[i] > kMostCursor) return kRefused;
    at.part[i] = cursor[i];
  }
  Guess found[kMaxGuesses];
  const int count = source_of(source)->children(at, found);
  for (int i = 0; i < count; ++i) {
    const int32_t* part = found[i].behind.part;
    guesses[i] = GuessView{found[i].token, found[i].kind, {part[0], part[1], part[2], part[3]}};
  }
  return count;
}

int64_t edge_rt_draft_source_bytes(void* source) {
  return source == nullptr ? kRefused : static_cast<int64_t>(source_of(source)->memory_bytes());
}

int edge_rt_draft_suffix_limit(void* source, int32_t max_tokens) {
  auto* const suffix = dynamic_cast<SuffixSource*>(source_of(source));
  if (suffix == nullptr || max_tokens < kLeastSuffixTokens || max_tokens > kMostSuffixTokens) return kRefused;
  return guarded<int>(kNoMemory, [&] { return suffix->limit(max_tokens), 0; });
}

int64_t edge_rt_draft_suffix_size(void* source) {
  const auto* const suffix = dynamic_cast<SuffixSource*>(source_of(source));
  return suffix == nullptr ? kRefused : static_cast<int64_t>(suffix->size());
}

int edge_rt_draft_forest_set(void* source, int32_t count, const int32_t* tokens, const int32_t* parents,
                             const int32_t* kinds) {
  auto* const forest = dynamic_cast<ForestSource*>(source_of(source));
  if (forest == nullptr || (count > 0 && (tokens == nullptr || parents == nullptr || kinds == nullptr))) {
    return kRefused;
  }
  return guarded<int>(kNoMemory, [&] { return forest->set(count, tokens, parents, kinds) ? 0 : kRefused; });
}

void* edge_rt_draft_grower_open(void* const* sources, int32_t num_sources, const int32_t* num_kinds,
                                const double* priors, const double* joint, const uint32_t* arms, int32_t num_arms,
                                int32_t chain) {
  if (num_sources < 0 || num_sources > kMaxSources || num_arms < 1 || num_arms > kMaxArms || arms == nullptr ||
      joint == nullptr || (num_sources > 0 && (sources == nullptr || num_kinds == nullptr || priors == nullptr))) {
    return nullptr;
  }
  for (int32_t i = 0; i < num_sources; ++i) {
    if (sources[i] == nullptr || num_kinds[i] < 1 || num_kinds[i] > kMostKinds) return nullptr;
  }
  for (int32_t arm = 0; arm < num_arms; ++arm) {
    if (arms[arm] >> num_sources != 0) return nullptr;
  }
  return guarded<void*>(nullptr, [&]() -> void* {
    std::vector<Source*> used;
    std::vector<std::vector<double>> rates;
    const double* next = priors;
    for (int32_t i = 0; i < num_sources; ++i) {
      used.push_back(source_of(sources[i]));
      rates.emplace_back(next, next + num_kinds[i]);
      next += num_kinds[i];
      for (const double rate : rates.back()) {
        if (!(rate >= 0 && rate <= 1)) return nullptr;
      }
    }
    std::vector<Line> lines;
    for (uint32_t set = 0; set < 1u << num_sources; ++set) {
      lines.push_back(Line{joint[2 * set], joint[2 * set + 1]});
      if (!std::isfinite(lines.back().start) || !std::isfinite(lines.back().slope)) return nullptr;
    }
    std::vector<uint32_t> masks(arms, arms + num_arms);
    return new PricedGrower{Grower(std::move(used), std::move(rates), lines, std::move(masks), chain != 0), {}};
  });
}

int edge_rt_draft_grower_price(void* grower, const double* costs, int32_t count) {
  if (grower == nullptr || costs == nullptr || count < 1 || count > kMaxNodes + 1) return kRefused;
  for (int32_t i = 0; i < count; ++i) {
    if (!(costs[i] > 0) || !std::isfinite(costs[i])) return kRefused;
  }
  return guarded<int>(kNoMemory, [&] { return grower_of(grower)->costs.assign(costs, costs + count), 0; });
}

int edge_rt_draft_grower_begin(void* grower, double keep, const int32_t* tokens, int64_t count) {
  if (grower == nullptr || !(keep >= 0 && keep <= 1) || !are_tokens(tokens, count)) return kRefused;
  return guarded<int>(kNoMemory, [&] {
    Grower& own = grower_of(grower)->grower;
    own.model().relax(keep);
    for (Source* source : own.sources()) source->begin(tokens, static_cast<size_t>(count));
    return 0;
  });
}

int edge_rt_draft_grower_propose(void* grower, int32_t limit, int32_t arm, double least, double drafting,
                                 int32_t* tokens, int32_t* parents, double* values) {
  if (grower == nullptr || limit < 0 || limit > kMaxNodes || !(least >= 0) || std::isnan(drafting) ||
      tokens == nullptr || parents == nullptr || values == nullptr) {
    return kRefused;
  }
  Grower& own = grower_of(grower)->grower;
  const std::vector<double>& costs = grower_of(grower)->costs;
  if (arm < 0 || arm >= static_cast<int32_t>(own.arms().size())) return kRefused;
  if (drafting >= 0 && costs.size() < static_cast<size_t>(limit) + 1) return kRefused;
  return guarded<int>(kNoMemory, [&] {
    own.grow(limit, arm, least);
    const Tree& tree = drafting >= 0 ? own.cut(costs.data(), drafting) : own.tree();
    for (int node = 0; node < tree.size(); ++node) {
      tokens[node] = tree.tokens[node];
      parents[node] = tree.parents[node];
      values[node] = tree.values[node];
    }
    return tree.size();
  });
}

int edge_rt_draft_divide(int32_t count, const int32_t* nodes, const double* const* values, const int32_t* known,
                         const double* const* attention, const double* costs, int32_t num_costs, int32_t least,
                         int32_t most, double tokens, double drafting, int32_t* sizes) {
  if (count < 1 || nodes == nullptr || values == nullptr || known == nullptr || attention == nullptr ||
      costs == nullptr || sizes == nullptr || most < 0 || !(tokens > 0) || !(drafting >= 0)) {
    return kRefused;
  }
  int64_t rows = most;
  for (int32_t i = 0; i < count; ++i) {
    if (nodes[i] < 0 || nodes[i] > kMaxNodes || known[i] < 1 || (nodes[i] > 0 && values[i] == nullptr)) return kRefused;
    rows += known[i];
  }
  if (rows > num_costs) return kRefused;
  return guarded<int>(kNoMemory, [&] {
    std::vector<Share> shares;
    for (int32_t i = 0; i < count; ++i) shares.push_back({values[i], nodes[i], known[i], attention[i]});
    return divide(shares.data(), count, costs, least, most, tokens, drafting, sizes);
  });
}

int edge_rt_draft_grower_observe(void* grower, int32_t nodes, const int32_t* emitted, const int32_t* path,
                                 int32_t accepted, const int32_t* context, int32_t context_size, const int32_t* top_ids,
                                 const float* top_logits, const float* log_sum_exp, int32_t width, int32_t arm,
                                 const double* drafting) {
  if (grower == nullptr || nodes < 0 || accepted < 0 || accepted > nodes || (accepted > 0 && path == nullptr) ||
      !are_tokens(emitted, int64_t{accepted} + 1) || !is_context(context, context_size) ||
      !are_rows(top_ids, top_logits, log_sum_exp, width)) {
    return kRefused;
  }
  Grower& own = grower_of(grower)->grower;
  const std::vector<double>& costs = grower_of(grower)->costs;
  const Tree& tree = own.tree();
  if (nodes > tree.size() || arm < -1 || arm >= static_cast<int32_t>(own.arms().size())) return kRefused;
  if (arm >= 0 && (drafting == nullptr || costs.size() < static_cast<size_t>(nodes) + 1)) return kRefused;
  for (int32_t i = 0; i < accepted; ++i) {
    if (path[i] < 0 || path[i] >= nodes || tree.parents[path[i]] != (i == 0 ? kRoot : path[i - 1])) return kRefused;
  }
  return guarded<int>(kNoMemory, [&] {
    own.keep(nodes);
    const int tested = own.learn(emitted, path, accepted);
    const Step step{nodes,   tree.tokens.data(), tree.parents.data(), context, context_size,
                    top_ids, top_logits,         log_sum_exp,         width};
    for (Source* source : own.sources()) {
      source->observe(step);
      source->extend(emitted, static_cast<size_t>(accepted) + 1);
    }
    if (arm >= 0) own.add_step(arm, path, accepted, costs.data(), drafting);
    own.keep(0);
    return tested;
  });
}

int edge_rt_draft_grower_ledger(void* grower, int64_t* tokens, double* ms) {
  if (grower == nullptr || tokens == nullptr || ms == nullptr) return kRefused;
  const Grower& own = grower_of(grower)->grower;
  for (size_t arm = 0; arm < own.arms().size(); ++arm) {
    tokens[arm] = own.arm_tokens()[arm];
    ms[arm] = own.arm_ms()[arm];
  }
  return 0;
}

int edge_rt_draft_grower_clear(void* grower) {
  if (grower == nullptr) return kRefused;
  grower_of(grower)->grower.clear_ledger();
  return 0;
}

int64_t edge_rt_draft_grower_bytes(void* grower) {
  if (grower == nullptr) return kRefused;
  return static_cast<int64_t>(grower_of(grower)->grower.memory_bytes() + bytes_of(grower_of(grower)->costs));
}

void edge_rt_draft_source_close(void* source) { delete source_of(source); }
void edge_rt_draft_grower_close(void* grower) { delete grower_of(grower); }
