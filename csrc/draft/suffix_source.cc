#include "draft/suffix_source.h"

#include <algorithm>

namespace edge_rt::draft {
namespace {

constexpr int32_t kSeparator = -1;
constexpr int kMaxChildren = 3;
// Tokens shared with the previous text that are added again, as the context of the new tokens.
constexpr size_t kOverlap = 16;
constexpr int kPerBucket = 2 * kMaxChildren;
constexpr int kKinds = kSuffixKinds / 2;
// Match length -> bucket: 1, 2, 3, 4-5, 6-8, 9-15, 16 and more.
constexpr int kBuckets[] = {0, 0, 1, 2, 3, 3, 4, 4, 4, 5, 5, 5, 5, 5, 5, 5, 6};
constexpr int kLongest = 16;

}  // namespace

void SuffixSource::limit(int max_tokens) {
  if (static_cast<size_t>(max_tokens) == max_tokens_) return;
  const size_t kept = size() > static_cast<size_t>(max_tokens) ? static_cast<size_t>(max_tokens) / 2 : size();
  begin_ = std::max<int64_t>(begin_ - static_cast<int64_t>(size() - kept), 0);
  const std::vector<int32_t> text = newest(kept);
  max_tokens_ = max_tokens;
  automaton_.reset(max_tokens_);
  for (const int32_t token : text) automaton_.append(token);
}

std::vector<int32_t> SuffixSource::newest(size_t count) const {
  return {automaton_.text().end() - static_cast<std::ptrdiff_t>(count), automaton_.text().end()};
}

void SuffixSource::begin(const int32_t* tokens, size_t count) {
  const size_t shorter = std::min(count, known_.size());
  const size_t common = std::mismatch(known_.begin(), known_.begin() + shorter, tokens).first - known_.begin();
  if (common == known_.size()) {
    take(tokens + common, count - common);
  } else {
    // Otherwise the conversation continues.
    if (common <= kOverlap) begin_ = static_cast<int64_t>(size()) + 1;
    const size_t from = common > kOverlap ? common - kOverlap : 0;
    std::vector<int32_t> added{kSeparator};
    added.insert(added.end(), tokens + from, tokens + count);
    take(added.data(), added.size());
  }
  known_.resize(common);
  make_room(&known_, count - common);
  known_.insert(known_.end(), tokens + common, tokens + count);
}

void SuffixSource::extend(const int32_t* tokens, size_t count) {
  make_room(&known_, count);
  known_.insert(known_.end(), tokens, tokens + count);
  take(tokens, count);
}

void SuffixSource::take(const int32_t* tokens, size_t count) {
  if (size() + count > max_tokens_) {
    rebuild(tokens, count);
    return;
  }
  for (size_t i = 0; i < count; ++i) automaton_.append(tokens[i]);
}

void SuffixSource::rebuild(const int32_t* tokens, size_t count) {
  const size_t kept = max_tokens_ / 2, held = size();
  const size_t skipped = count > kept ? count - kept : 0;
  const size_t old = std::min(held, kept - (count - skipped));
  std::vector<int32_t> text = newest(old);
  text.insert(text.end(), tokens + skipped, tokens + count);
  begin_ = std::max<int64_t>(begin_ - static_cast<int64_t>(held + count - text.size()), 0);
  automaton_.clear();
  for (const int32_t token : text) automaton_.append(token);
}

bool SuffixSource::root(Cursor* cursor) const {
  const Match match = automaton_.match();
  *cursor = Cursor{{match.state, match.length, 0, 0}};
  return match.state > 0;
}

int SuffixSource::children(const Cursor& cursor, Guess* guesses) const {
  const int32_t state = cursor.part[0];
  if (state <= 0 || static_cast<size_t>(state) >= automaton_.num_states()) return 0;
  int size = 0;
  add_following({state, cursor.part[1]}, guesses, &size);
  const int32_t shorter = automaton_.shorter(state);
  if (size < kMaxChildren && shorter > 0) add_following({shorter, automaton_.length(shorter)}, guesses, &size);
  return size;
}

void SuffixSource::add_following(Match match, Guess* guesses, int* size) const {
  Transition following[2 * kScanned + 1];
  const int count = automaton_.following(match.state, following);
  const int base = kPerBucket * kBuckets[std::clamp(match.length, 0, kLongest)];
  const int known = *size;
  for (int i = 0; i < count && *size < kMaxChildren; ++i) {
    const auto [token, behind] = following[i];
    bool is_new = token != kSeparator;
    for (int other = 0; other < known; ++other) is_new = is_new && guesses[other].token != token;
    if (!is_new) continue;
    int kind = base + 2 * *size + (automaton_.count(behind) > 1);
    if (automaton_.end(behind) < begin_) kind += kKinds;
    guesses[(*size)++] = Guess{token, kind, Cursor{{behind, match.length + 1, 0, 0}}};
  }
}

}  // namespace edge_rt::draft
