// A suffix automaton that grows with a text; see tests/reference/automaton.py, which it equals state by state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace edge_rt::draft {

constexpr int32_t kNoState = -1;
constexpr int32_t kNoToken = -2;
// States whose end and count are updated per token, those of the longest suffixes first.
constexpr int kUpdatedLinks = 16;
// Of a state with many transitions, only this many of the first and of the newest ones are returned.
constexpr int kScanned = 8;

struct Transition {
  int32_t token;
  int32_t state;
};

struct Match {
  int32_t state;
  int32_t length;
};

class Automaton {
 public:
  // Room for `most` tokens is reserved: so tables never move, and take no memory beyond what is written.
  explicit Automaton(size_t most);

  // Appends a token, at least -1; there must be room for it.
  void append(int32_t token);
  // Empties it; its memory is kept for what follows.
  void clear();
  // Empties it and reserves room for another number of tokens.
  void reset(size_t most);

  const std::vector<int32_t>& text() const { return text_; }
  size_t num_states() const { return states_.size(); }
  // The longest suffix of the text that occurs earlier too; state 0: none does.
  Match match() const { return match_; }

  int32_t shorter(int32_t state) const { return states_[state].link; }
  int32_t length(int32_t state) const { return states_[state].length; }
  int32_t end(int32_t state) const { return states_[state].end; }
  int32_t count(int32_t state) const { return states_[state].count; }
  // The longest suffix of (a match, then a token) that occurs in the text.
  Match advance(int32_t state, int32_t length, int32_t token) const;
  // A state's transitions: the latest first, then the most frequent. Returns their number, at most 2 * kScanned + 1.
  int following(int32_t state, Transition* found) const;

  size_t memory_bytes() const;

 private:
  struct State {
    int32_t length, link;
    // The latest known position of the last token, and how often the substrings occur.
    int32_t end, count;
    // The first transition; nine states out of ten have at most one.
    int32_t token, target;
    // Further transitions, in a ring in the order in which they were made: the newest, or kNoState.
    int32_t newest;
  };
  struct Edge {
    int32_t state, token, target;
    // The next edge of the state's ring, and of the chain in the hash table.
    int32_t next, chained;
    int32_t previous;
  };

  int32_t add(int32_t length, int32_t link, int32_t end, int32_t count);
  int32_t split(int32_t old, int32_t state, int32_t token);
  int32_t next(int32_t state, int32_t token) const;
  int32_t find(int32_t state, int32_t token) const;
  void add_edge(int32_t state, int32_t token, int32_t target);
  void grow_table();
  size_t bucket(int32_t state, int32_t token) const;

  std::vector<int32_t> text_;
  std::vector<State> states_;
  std::vector<Edge> edges_;
  // First edge of every bucket, or kNoState; their number is a power of two.
  std::vector<int32_t> buckets_;
  int32_t last_ = 0;
  Match match_{0, 0};
};

}  // namespace edge_rt::draft
