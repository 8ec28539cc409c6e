// The probability that a guess is right, learned from which guesses were; equals AcceptanceModel of
// tests/reference/acceptance.py to the bit: every sum and product is made in the same order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace edge_rt::draft {

constexpr int kMaxSources = 8;

// Log odds by the sum of those of the sources.
struct Line {
  double start, slope;
};

// Hit rates with priors that fade.
class Rates {
 public:
  Rates(std::vector<double> priors, double trials);

  double value(size_t index) const { return rates_[index].value; }
  size_t size() const { return rates_.size(); }
  void learn(size_t index, bool hit);
  // Moves part of the way back to the priors.
  void relax(double keep);
  size_t memory_bytes() const { return rates_.capacity() * sizeof(Rate); }

 private:
  struct Rate {
    double prior, hits, trials, value;
    bool is_learned;
  };

  std::vector<Rate> rates_;
  double prior_trials_;
};

class AcceptanceModel {
 public:
  // `priors[i]`: for every kind of source i the probability that such a guess is right; at most kMaxSources.
  // `joint`: for every set of sources what their common guess is worth before anything is learned.
  AcceptanceModel(std::vector<std::vector<double>> priors, const std::vector<Line>& joint);

  // Log odds of a source's guess alone.
  double odds(int source, int32_t kind) const { return odds_[source][kind]; }
  int32_t num_kinds(int source) const { return static_cast<int32_t>(odds_[source].size()); }
  // Probability of the guesses of a cell.
  double probability(int cell) const { return cells_.value(cell); }
  // The cell of a guess: the set of sources that make it, the sum of their log odds, and the probability of the leading
  // guess of the same position, or kLeads for that guess itself.
  static int cell(uint32_t mask, double odds, double lead);
  static constexpr double kLeads = -1.0;

  // Learns whether a guess was right; `kinds[i]` is that of source i, of those in the set.
  void learn(uint32_t mask, const int32_t* kinds, int cell, bool hit);
  void relax(double keep);
  size_t memory_bytes() const;

 private:
  std::vector<Rates> kinds_;
  std::vector<std::vector<double>> odds_;
  Rates cells_;
};

}  // namespace edge_rt::draft
