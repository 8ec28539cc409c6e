#include "sampling/history.h"

#include <algorithm>
#include <limits>

namespace edge_rt::sampling {
namespace {

std::vector<bool> marked(const std::vector<int32_t>& tokens, int32_t vocabulary, bool is_used) {
  if (!is_used) return {};
  std::vector<bool> marks(static_cast<size_t>(vocabulary));
  for (const int32_t token : tokens) marks[static_cast<size_t>(token)] = true;
  return marks;
}

bool has_mark(const std::vector<bool>& marks, int32_t token) {
  return !marks.empty() && marks[static_cast<size_t>(token)];
}

}  // namespace

void History::Counted::add(int32_t token) {
  if (!counts.empty() && counts[static_cast<size_t>(token)]++ == 0) tokens.push_back(token);
}

History::History(const Penalties& penalties, int32_t vocabulary, std::vector<int32_t> exempt,
                 std::vector<int32_t> breakers, std::vector<std::pair<int32_t, float>> bias,
                 std::vector<int32_t> banned)
    : penalties_(penalties), is_exempt_(marked(exempt, vocabulary, !exempt.empty())),
      is_breaker_(marked(breakers, vocabulary, penalties.dry_multiplier > 0)), bias_(std::move(bias)),
      banned_(std::move(banned)), keeps_text_(penalties.dry_multiplier > 0 || penalties.fsd_order > 0) {
  const auto size = static_cast<size_t>(vocabulary);
  if (penalties.repetition != 1.0f) seen_.counts.resize(size);
  if (penalties.presence != 0.0f || penalties.frequency != 0.0f) answered_.counts.resize(size);
  if (penalties.fsd_order > 0) in_text_.counts.resize(size);
}

void History::add(int32_t token, bool is_answer) {
  if (!has_mark(is_exempt_, token)) seen_.add(token);
  if (is_answer) answered_.add(token);
  if (keeps_text_) text_.push_back(token);
  in_text_.add(token);
}

void History::mark_breaker(int32_t token) {
  if (!is_breaker_.empty()) is_breaker_[static_cast<size_t>(token)] = true;
}

bool History::changes_scores() const {
  return !banned_.empty() || !seen_.tokens.empty() || !answered_.tokens.empty() || !bias_.empty() ||
         (penalties_.dry_multiplier > 0 && text_.size() > 1);
}

void History::change(float* scores) {
  for (const int32_t token : banned_) scores[token] = -std::numeric_limits<float>::infinity();
  for (const int32_t token : seen_.tokens) {
    float& score = scores[token];
    score = score > 0 ? score / penalties_.repetition : score * penalties_.repetition;
  }
  for (const int32_t token : answered_.tokens) {
    const float count = static_cast<float>(answered_.counts[static_cast<size_t>(token)]);
    const float repeated = penalties_.frequency * count;
    scores[token] -= penalties_.presence + repeated;
  }
  if (penalties_.dry_multiplier > 0) add_dry(scores);
  for (const auto& [token, value] : bias_) scores[token] += value;
}

// How many tokens, `most` at most, before a position equal those at the end of the text; no breaker is among them.
int History::repeat_before(size_t position, int most) const {
  int length = 0;
  const size_t end = text_.size();
  while (length < most && static_cast<size_t>(length) < position) {
    const auto back = static_cast<size_t>(length) + 1;
    if (text_[position - back] != text_[end - back]) break;
    ++length;
  }
  return length;
}

void History::add_dry(float* scores) {
  const size_t end = text_.size();
  if (end < 2) return;
  int most = 0;
  while (most < kLongestRepeat && static_cast<size_t>(most) < end &&
         !has_mark(is_breaker_, text_[end - 1 - static_cast<size_t>(most)])) {
    ++most;
  }
  if (most < std::max(1, penalties_.dry_allowed)) return;
  repeats_.clear();
  const int32_t last = text_[end - 1];
  for (size_t position = 1; position < end; ++position) {
    if (text_[position - 1] != last) continue;
    const int length = repeat_before(position, most);
    if (length >= penalties_.dry_allowed) repeats_.emplace_back(text_[position], length);
  }
  std::sort(repeats_.begin(), repeats_.end());
  for (size_t i = 0; i < repeats_.size(); ++i) {
    const auto [token, length] = repeats_[i];
    if (i + 1 < repeats_.size() && repeats_[i + 1].first == token) continue;  // its longest is behind
    double penalty = penalties_.dry_multiplier;
    for (int n = penalties_.dry_allowed; n < length && penalty < static_cast<double>(kLargestPenalty); ++n) {
      penalty *= penalties_.dry_base;
    }
    scores[token] -= std::min(static_cast<float>(penalty), kLargestPenalty);
  }
}

void History::count_followers() {
  followers_.clear();
  for (int64_t& total : follower_totals_) total = 0;
  if (text_.empty()) return;
  const int32_t last = text_.back();
  for (size_t position = 1; position < text_.size(); ++position) {
    if (text_[position - 1] != last) continue;
    const int length = repeat_before(position, penalties_.fsd_order - 1);
    followers_.emplace_back(text_[position], length);
    for (int n = 1; n <= length; ++n) ++follower_totals_[n];
  }
  follower_totals_[0] = static_cast<int64_t>(text_.size());
  std::sort(followers_.begin(), followers_.end());
}

double History::expected_share(int32_t token) const {
  int64_t counts[kMostOrders] = {in_text_.counts[static_cast<size_t>(token)]};
  if (counts[0] == 0) return 0.0;
  const auto begin = std::lower_bound(followers_.begin(), followers_.end(), std::pair<int32_t, int>{token, 0});
  for (auto one = begin; one != followers_.end() && one->first == token; ++one) {
    for (int n = 1; n <= one->second; ++n) ++counts[n];
  }
  double shares[kMostOrders], rest = 1.0;
  for (int n = penalties_.fsd_order - 1; n > 0; --n) {
    shares[n] = rest * kOrderShare;
    rest -= shares[n];
  }
  shares[0] = rest;
  double share = 0.0;
  for (int n = 0; n < penalties_.fsd_order; ++n) {
    if (counts[n] > 0) share += shares[n] * (static_cast<double>(counts[n]) / static_cast<double>(follower_totals_[n]));
  }
  return share;
}

}  // namespace edge_rt::sampling
