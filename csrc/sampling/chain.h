// From a row of logits to a token: mask, what came before (history.h), temperature, the tokens that may be drawn, one
// draw. Weights are whole numbers (sampling_kernels.h), so every sum is exact and no order of adding shows; the one
// order of tokens is by falling weight, equal ones by id, and sets are its beginnings. docs/decoding.md has the chain.
#pragma once

#include <cstdint>
#include <vector>

#include "sampling/history.h"
#include "sampling/sampling_kernels.h"

namespace edge_rt::sampling {

struct Truncation {
  double temperature;                       // 0: the largest score
  double top_p, min_p, top_n_sigma, top_h;  // 1, 0, 0, 0: off
  double xtc_probability, xtc_threshold;    // 0: off
  double fsd;                               // 0: off
  int32_t top_k;                            // 0: off
};

struct Candidate {
  int32_t token, weight;
};

enum class Outcome : int { kDrawn = 0, kNoNumbers = -3, kNothingLeft = -4 };

// A row to draw from; what is null or 0 is left out.
struct Row {
  const float* logits;
  const uint32_t* mask;  // bit t % 32 of word t / 32: token t may be drawn
  double random;         // in [0, 1)
  int32_t token;         // drawn
  Outcome outcome;
};

class Chain {
 public:
  Chain(const Truncation& truncation, History history, int32_t vocabulary, const SamplingKernels& kernels);

  History& history() { return history_; }
  // Draws for a row, with the threads of the process.
  void draw(Row* row);
  // What `draw` draws from, by id: with XTC one of two, as `excludes` says.
  const std::vector<Candidate>& law(Row* row, bool excludes);

 private:
  static constexpr int64_t kPart = 8192;

  int64_t parts() const { return (vocabulary_ + kPart - 1) / kPart; }
  // Scores, peak and, with `weighs`, the blocks' weights of a row.
  void compute(Row* row, bool weighs);
  void mask_part(int64_t part, int worker);
  void change_scores(int64_t item, int worker);
  void peak_part(int64_t part, int worker);
  void weigh_part(int64_t part, int worker);
  void moments_part(int64_t part, int worker);
  float joined_peak() const;

  bool has_truncation() const;
  bool has_moments() const { return truncation_.top_n_sigma > 0.0 || truncation_.top_h > 0.0; }
  void find_candidates();
  void gather(int32_t least);
  void keep_first(int64_t count, uint64_t wanted);
  bool keep_entropy(double bound);
  int32_t sigma_weight();
  double row_entropy();
  void subtract_expected();
  void exclude_top();
  int32_t best_token() const;
  int32_t token_of_all(double random);

  Truncation truncation_;
  History history_;
  int64_t vocabulary_;
  const SamplingKernels& kernels_;
  float scale_;
  std::vector<float> changed_;  // scores, where they are not the logits
  std::vector<float> peaks_;    // of parts
  std::vector<uint8_t> has_wrong_;
  std::vector<BlockWeights> blocks_;
  std::vector<BlockMoments> moments_;
  std::vector<Candidate> candidates_, sorted_;
  // Of the row at hand.
  const Row* row_ = nullptr;
  const float* scores_ = nullptr;
  float peak_ = 0.0f;
};

}  // namespace edge_rt::sampling
