// What the tokens before a position do to its scores: penalties, DRY, and the n-gram model that FSD subtracts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace edge_rt::sampling {

// Longest repetition that DRY looks at; a longer one counts as this one.
constexpr int kLongestRepeat = 64;
constexpr float kLargestPenalty = 1e4f;
constexpr int kMostOrders = 8;
// Share that FSD's model gives to the longest n-grams, and of the rest to the next ones.
constexpr double kOrderShare = 0.9;

// Settings of one generation; sampling_abi.h has their meaning.
struct Penalties {
  float repetition, presence, frequency;
  double dry_multiplier, dry_base;
  int32_t dry_allowed;
  int32_t fsd_order;  // 0: no n-grams
};

class History {
 public:
  // Tokens in `exempt` have no repetition penalty; those in `breakers` end DRY's repetitions.
  History(const Penalties& penalties, int32_t vocabulary, std::vector<int32_t> exempt, std::vector<int32_t> breakers,
          std::vector<std::pair<int32_t, float>> bias, std::vector<int32_t> banned);

  void add(int32_t token, bool is_answer);
  // Lets a token end DRY's repetitions from now on.
  void mark_breaker(int32_t token);
  bool changes_scores() const;
  // Bans, repetition, presence and frequency penalties, DRY, bias, in this order.
  void change(float* scores);
  // Reads the n-grams of the text that may go on now; then `expected_share` is what they expect of a token.
  void count_followers();
  double expected_share(int32_t token) const;

 private:
  struct Counted {
    std::vector<int32_t> counts;  // by token; empty: not counted
    std::vector<int32_t> tokens;  // each once
    void add(int32_t token);
  };

  void add_dry(float* scores);
  int repeat_before(size_t position, int most) const;

  Penalties penalties_;
  std::vector<bool> is_exempt_, is_breaker_;
  std::vector<std::pair<int32_t, float>> bias_;
  std::vector<int32_t> banned_;
  bool keeps_text_;
  std::vector<int32_t> text_;
  Counted seen_, answered_, in_text_;
  std::vector<std::pair<int32_t, int>> repeats_;
  // Tokens behind n-grams that equal the text's end, and how many tokens of it.
  std::vector<std::pair<int32_t, int>> followers_;
  int64_t follower_totals_[kMostOrders] = {};
};

}  // namespace edge_rt::sampling
