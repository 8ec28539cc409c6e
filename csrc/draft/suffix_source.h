// Guesses what followed the text's longest suffix earlier; equals SuffixSource of tests/reference/suffix.py
// without a corpus.
#pragma once

#include <vector>

#include "draft/automaton.h"
#include "draft/source.h"

namespace edge_rt::draft {

constexpr int kSuffixKinds = 7 * 6 * 2;
constexpr int kLeastSuffixTokens = 64;
constexpr int kMostSuffixTokens = 1 << 28;

// A cursor is a state of the automaton and the length of the match.
class SuffixSource : public Source {
 public:
  // Holds at most `max_tokens`, from kLeastSuffixTokens to kMostSuffixTokens.
  explicit SuffixSource(int max_tokens) : automaton_(max_tokens), max_tokens_(max_tokens) {}

  // Holds at most this many tokens from now on; if there are more, the oldest are dropped.
  void limit(int max_tokens);
  size_t size() const { return automaton_.text().size(); }

  void begin(const int32_t* tokens, size_t count) override;
  void extend(const int32_t* tokens, size_t count) override;
  bool root(Cursor* cursor) const override;
  int children(const Cursor& cursor, Guess* guesses) const override;
  size_t memory_bytes() const override { return automaton_.memory_bytes() + bytes_of(known_); }

 private:
  void take(const int32_t* tokens, size_t count);
  void rebuild(const int32_t* tokens, size_t count);
  std::vector<int32_t> newest(size_t count) const;
  void add_following(Match match, Guess* guesses, int* size) const;

  Automaton automaton_;
  std::vector<int32_t> known_;
  size_t max_tokens_;
  // Index of the current text's first token.
  int64_t begin_ = 0;
};

}  // namespace edge_rt::draft
