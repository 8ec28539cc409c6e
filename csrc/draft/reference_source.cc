#include "draft/reference_source.h"

#include <algorithm>

namespace edge_rt::draft {
namespace {

// Most tokens that are compared where the last two tokens occur more than once.
constexpr int32_t kLongest = 8;
// Most occurrences that are compared after the pointer, and before it.
constexpr int kNearest = 8;
// Tokens after a mismatch during which a small edit is assumed.
constexpr int32_t kAstray = 4;
// Tokens copied so far -> kind: 0, 1, 2, 3, 4-7, 8-15, 16 and more.
constexpr int32_t kRunKinds[] = {0, 1, 2, 3, 4, 4, 4, 4, 5, 5, 5, 5, 5, 5, 5, 5, 6};
constexpr int32_t kLongRun = 16;
// Tokens of the reference to skip after a mismatch: one was inserted, one replaced, or two replaced by one.
constexpr int kEdits = 3;
constexpr int32_t kFirstEdit = 7;

}  // namespace

ReferenceSource::ReferenceSource(const int32_t* tokens, size_t count) : text_(tokens, tokens + count) {
  places_.reserve(count > 1 ? count - 1 : 0);
  for (size_t place = 2; place <= count; ++place) places_.push_back(static_cast<int32_t>(place));
  std::sort(places_.begin(), places_.end(), [this](int32_t one, int32_t other) {
    if (text_[one - 2] != text_[other - 2]) return text_[one - 2] < text_[other - 2];
    if (text_[one - 1] != text_[other - 1]) return text_[one - 1] < text_[other - 1];
    return one < other;
  });
}

void ReferenceSource::begin(const int32_t* tokens, size_t count) {
  if (known_.size() == count && std::equal(known_.begin(), known_.end(), tokens)) return;
  pointer_ = run_ = astray_ = 0;
  known_.assign(tokens, tokens + count);
}

void ReferenceSource::extend(const int32_t* tokens, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    make_room(&known_);
    known_.push_back(tokens[i]);
    if (astray_ == 0 && static_cast<size_t>(pointer_) < text_.size() && text_[pointer_] == tokens[i]) {
      ++pointer_;
      ++run_;
    } else {
      resume();
    }
  }
}

void ReferenceSource::resume() {
  run_ = 0;
  ++astray_;
  if (known_.size() < 2) return;
  const int32_t first = known_[known_.size() - 2], second = known_.back();
  // The places after these two tokens, ascending.
  const auto is_before = [&](int32_t place) {
    return text_[place - 2] != first ? text_[place - 2] < first : text_[place - 1] < second;
  };
  const auto is_theirs = [&](int32_t place) { return text_[place - 2] == first && text_[place - 1] == second; };
  const auto low = std::partition_point(places_.begin(), places_.end(), is_before);
  const auto high = std::partition_point(low, places_.end(), is_theirs);
  if (low == high) return;
  const auto split = std::lower_bound(low, high, pointer_);
  int32_t best = -1, agreed = -1;
  const auto consider = [&](int32_t place) {
    const int32_t length = agreement(place);
    if (length > agreed) best = place, agreed = length;
  };
  for (auto place = split; place != high && place - split < kNearest; ++place) consider(*place);
  for (auto place = split; place != low && split - place < kNearest;) consider(*--place);
  pointer_ = best;
  run_ = agreed;
  astray_ = 0;
}

int32_t ReferenceSource::agreement(int32_t place) const {
  const int32_t known = static_cast<int32_t>(std::min<size_t>(known_.size(), kLongest));
  const int32_t limit = std::min(place, known);
  int32_t length = 0;
  while (length < limit && text_[place - 1 - length] == known_[known_.size() - 1 - length]) ++length;
  return length;
}

bool ReferenceSource::root(Cursor* cursor) const {
  *cursor = Cursor{{pointer_, run_, astray_, 0}};
  return astray_ <= kAstray && static_cast<size_t>(pointer_) < text_.size();
}

int ReferenceSource::children(const Cursor& cursor, Guess* guesses) const {
  const int32_t pointer = cursor.part[0], run = cursor.part[1], astray = cursor.part[2];
  const int32_t size = static_cast<int32_t>(text_.size());
  if (pointer < 0 || pointer >= size) return 0;
  if (astray == 0) {
    const int32_t kind = kRunKinds[std::clamp(run, 0, kLongRun)];
    guesses[0] = Guess{text_[pointer], kind, Cursor{{pointer + 1, run + 1, 0, 0}}};
    return 1;
  }
  const int32_t base = astray == 1 ? kFirstEdit : kFirstEdit + kEdits;
  int count = 0;
  for (int edit = 0; edit < kEdits && pointer + edit < size; ++edit) {
    const int32_t at = pointer + edit, token = text_[at];
    bool is_new = true;
    for (int other = 0; other < count; ++other) is_new = is_new && guesses[other].token != token;
    if (is_new) guesses[count++] = Guess{token, base + edit, Cursor{{at + 1, 1, 0, 0}}};
  }
  return count;
}

}  // namespace edge_rt::draft
