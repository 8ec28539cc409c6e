#include "draft/grower.h"

#include <algorithm>
#include <utility>

namespace edge_rt::draft {
namespace {

constexpr int32_t kUnreached = -1;

}  // namespace

void Tree::first(int count) {
  if (size() <= count) return;
  tokens.resize(count);
  parents.resize(count);
  values.resize(count);
  evidence.resize(count);
}

int divide(const Share* shares, int count, const double* costs, int least, int most, double tokens, double drafting,
           int32_t* sizes) {
  double added = 0.0, expected = tokens;
  int rows = 0;
  const auto beyond = [&](const Share& share, int nodes) {
    return share.attention == nullptr ? 0.0 : share.attention[share.known + nodes - 1];
  };
  for (int i = 0; i < count; ++i) {
    sizes[i] = 0;
    rows += shares[i].known;
    added += beyond(shares[i], 0);
  }
  double best = expected / (costs[rows - 1] + added + drafting);
  std::vector<int32_t> order;
  int size = 0;
  while (static_cast<int>(order.size()) < most) {
    int next = -1;
    for (int i = 0; i < count; ++i) {
      if (sizes[i] == shares[i].nodes) continue;
      if (next < 0 || shares[i].values[sizes[i]] > shares[next].values[sizes[next]]) next = i;
    }
    if (next < 0) break;
    const Share& share = shares[next];
    expected += share.values[sizes[next]];
    added += beyond(share, sizes[next] + 1) - beyond(share, sizes[next]);
    ++sizes[next];
    order.push_back(next);
    const int taken = static_cast<int>(order.size());
    const double speed = expected / (costs[rows + taken - 1] + added + drafting);
    if (speed > best || taken <= least) {
      best = speed;
      size = taken;
    }
  }
  for (size_t taken = order.size(); taken > static_cast<size_t>(size); --taken) --sizes[order[taken - 1]];
  return size;
}

Grower::Grower(std::vector<Source*> sources, std::vector<std::vector<double>> priors, const std::vector<Line>& joint,
               std::vector<uint32_t> arms, bool chain)
    : sources_(std::move(sources)), model_(std::move(priors), joint), arms_(std::move(arms)), chain_(chain) {
  clear_ledger();
}

const Tree& Grower::grow(int limit, int arm, double least) {
  tree_.first(0);
  candidates_.clear();
  heap_.clear();
  Cursor cursors[kMaxSources];
  uint32_t open = 0;
  for (size_t source = 0; source < sources_.size(); ++source) {
    if ((arms_[arm] >> source & 1) != 0 && sources_[source]->root(&cursors[source])) open |= 1u << source;
  }
  if (limit > 0) expand(kRoot, 1.0, open, cursors, least);
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), Worse{candidates_});
    // A copy, because `candidates_` grows below.
    const Candidate best = candidates_[heap_.back()];
    heap_.pop_back();
    if (chain_) heap_.clear();
    tree_.tokens.push_back(best.token);
    tree_.parents.push_back(best.parent);
    tree_.values.push_back(best.value);
    tree_.evidence.push_back(best.evidence);
    if (tree_.size() == limit) break;
    expand(tree_.size() - 1, best.value, best.evidence.mask, best.cursors, least);
  }
  return tree_;
}

void Grower::expand(int32_t parent, double value, uint32_t open, const Cursor* cursors, double least) {
  found_.clear();
  for (size_t source = 0; source < sources_.size(); ++source) {
    if ((open >> source & 1) == 0) continue;
    Guess guesses[kMaxGuesses];
    const int count = sources_[source]->children(cursors[source], guesses);
    for (int i = 0; i < count; ++i) {
      const Guess& guess = guesses[i];
      const double odds = model_.odds(static_cast<int>(source), guess.kind);
      size_t at = 0;
      while (at < found_.size() && found_[at].token != guess.token) ++at;
      if (at == found_.size()) {
        found_.emplace_back();
        found_[at].token = guess.token;
        found_[at].mask = 0;
        found_[at].odds = odds;
      } else {
        found_[at].odds += odds;
      }
      found_[at].mask |= 1u << source;
      found_[at].kinds[source] = guess.kind;
      found_[at].cursors[source] = guess.behind;
    }
  }
  size_t leader = found_.size();
  double lead = 0.0;
  for (size_t at = 0; at < found_.size(); ++at) {
    const double share =
        model_.probability(AcceptanceModel::cell(found_[at].mask, found_[at].odds, AcceptanceModel::kLeads));
    if (share > lead) {
      leader = at;
      lead = share;
    }
  }
  for (size_t at = 0; at < found_.size(); ++at) {
    const Found& guessed = found_[at];
    if (at != leader && value * (1.0 - lead) < least) continue;
    const int cell = AcceptanceModel::cell(guessed.mask, guessed.odds, at == leader ? AcceptanceModel::kLeads : lead);
    const double reached = value * model_.probability(cell);
    if (!(reached >= least)) continue;
    candidates_.emplace_back();
    Candidate& candidate = candidates_.back();
    candidate.value = reached;
    candidate.parent = parent;
    candidate.token = guessed.token;
    candidate.evidence.mask = guessed.mask;
    candidate.evidence.cell = cell;
    std::copy(guessed.kinds, guessed.kinds + kMaxSources, candidate.evidence.kinds);
    std::copy(guessed.cursors, guessed.cursors + kMaxSources, candidate.cursors);
    heap_.push_back(static_cast<int32_t>(candidates_.size() - 1));
    std::push_heap(heap_.begin(), heap_.end(), Worse{candidates_});
  }
}

const Tree& Grower::cut(const double* costs, double drafting) {
  const Share share{tree_.values.data(), tree_.size(), 1, nullptr};
  int32_t size = 0;
  divide(&share, 1, costs, 0, tree_.size(), 1.0, drafting, &size);
  tree_.first(size);
  return tree_;
}

int Grower::learn(const int32_t* tokens, const int32_t* path, int accepted) {
  following_.assign(tree_.size() + 1, kUnreached);
  following_[0] = tokens[0];
  for (int i = 0; i < accepted; ++i) following_[path[i] + 1] = tokens[i + 1];
  int tested = 0;
  for (int node = 0; node < tree_.size(); ++node) {
    const int32_t followed = following_[tree_.parents[node] + 1];
    if (followed == kUnreached) continue;
    ++tested;
    const Tree::Evidence& evidence = tree_.evidence[node];
    model_.learn(evidence.mask, evidence.kinds, evidence.cell, tree_.tokens[node] == followed);
  }
  return tested;
}

void Grower::add_step(int played, const int32_t* path, int accepted, const double* costs, const double* drafting) {
  const uint32_t whole = arms_[played];
  masks_.clear();
  for (int node = 0; node < tree_.size(); ++node) {
    const int32_t parent = tree_.parents[node];
    masks_.push_back((parent == kRoot ? whole : masks_[parent]) & tree_.evidence[node].mask);
  }
  for (size_t arm = 0; arm < arms_.size(); ++arm) {
    if (arm != 0 && (arms_[arm] & ~whole) != 0) continue;
    int nodes = 0, tokens = 0;
    for (const uint32_t mask : masks_) nodes += (mask & arms_[arm]) != 0;
    while (tokens < accepted && (masks_[path[tokens]] & arms_[arm]) != 0) ++tokens;
    arm_tokens_[arm] += 1 + tokens;
    arm_ms_[arm] += costs[nodes] + drafting[arm];
  }
}

void Grower::clear_ledger() {
  arm_tokens_.assign(arms_.size(), 0);
  arm_ms_.assign(arms_.size(), 0.0);
}

size_t Grower::memory_bytes() const {
  return model_.memory_bytes() + bytes_of(tree_.tokens) + bytes_of(tree_.parents) + bytes_of(tree_.values) +
         bytes_of(tree_.evidence) + bytes_of(candidates_) + bytes_of(heap_) + bytes_of(found_) + bytes_of(following_) +
         bytes_of(masks_) + bytes_of(arm_tokens_) + bytes_of(arm_ms_);
}

}  // namespace edge_rt::draft
