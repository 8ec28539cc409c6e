#include "sampling/chain.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <utility>

#include "common/crew.h"
#include "common/float_mode.h"

namespace edge_rt::sampling {
namespace {

constexpr double kLeastTemperature = 1e-30;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr uint64_t kNoSum = std::numeric_limits<uint64_t>::max();
constexpr int kThresholdStep = 6;  // bits by which the least weight falls until enough is above it

uint64_t sum_of(const std::vector<Candidate>& candidates) {
  uint64_t sum = 0;
  for (const Candidate& one : candidates) sum += static_cast<uint64_t>(one.weight);
  return sum;
}

// The smallest whole number that is at least share * total.
uint64_t share_of(double share, uint64_t total) {
  return static_cast<uint64_t>(std::ceil(share * static_cast<double>(total)));
}

bool is_before(const Candidate& a, const Candidate& b) {
  return a.weight != b.weight ? a.weight > b.weight : a.token < b.token;
}

// A number below `total`, proportional to one in [0, 1); exact.
uint64_t place_of(double random, uint64_t total) {
  const auto steps = static_cast<uint64_t>(random * 9007199254740992.0);  // 2^53
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>(static_cast<Wide>(steps) * total >> 53);
}

// Natural logarithm of a positive number by a series of atanh: no library's rounding shows.
double logarithm(double x) {
  int exponent;
  double mantissa = std::frexp(x, &exponent);
  if (mantissa < 0.7071067811865476) {
    mantissa *= 2.0;
    --exponent;
  }
  const double s = (mantissa - 1.0) / (mantissa + 1.0), square = s * s;
  double series = 0.0;
  for (int n = 23; n >= 1; n -= 2) series = series * square + 1.0 / n;
  return static_cast<double>(exponent) * 0.6931471805599453 + 2.0 * s * series;
}

}  // namespace

Chain::Chain(const Truncation& truncation, History history, int32_t vocabulary, const SamplingKernels& kernels)
    : truncation_(truncation), history_(std::move(history)), vocabulary_(vocabulary), kernels_(kernels),
      // FSD compares probabilities, so temperature 0 has weights too: those of temperature 1.
      scale_(truncation.temperature == 0.0
                 ? 1.0f
                 : static_cast<float>(1.0 / std::max(truncation.temperature, kLeastTemperature))),
      peaks_(static_cast<size_t>(parts())), has_wrong_(static_cast<size_t>(parts())),
      blocks_(static_cast<size_t>((vocabulary + kWeightBlock - 1) / kWeightBlock)),
      moments_(has_moments() ? blocks_.size() : 0) {}

void Chain::mask_part(int64_t part, int) {
  const int64_t end = std::min(vocabulary_, (part + 1) * kPart);
  for (int64_t begin = part * kPart; begin < end; begin += 32) {
    const int64_t count = std::min<int64_t>(32, end - begin);
    const uint32_t word = row_->mask == nullptr ? ~0u : row_->mask[begin / 32];
    float* const to = changed_.data() + begin;
    if (word == ~0u) {
      std::memcpy(to, row_->logits + begin, static_cast<size_t>(count) * sizeof(float));
    } else {
      for (int64_t i = 0; i < count; ++i) to[i] = (word >> i & 1) != 0 ? row_->logits[begin + i] : kMinusInfinity;
    }
  }
}

void Chain::change_scores(int64_t, int) { history_.change(changed_.data()); }

void Chain::peak_part(int64_t part, int) {
  const int64_t begin = part * kPart;
  bool has_wrong;
  peaks_[static_cast<size_t>(part)] = kernels_.peak(scores_ + begin, std::min(kPart, vocabulary_ - begin), &has_wrong);
  has_wrong_[static_cast<size_t>(part)] = has_wrong;
}

void Chain::weigh_part(int64_t part, int) {
  const int64_t begin = part * kPart;
  kernels_.blocks(scores_ + begin, std::min(kPart, vocabulary_ - begin), joined_peak(), scale_,
                  blocks_.data() + begin / kWeightBlock);
}

void Chain::moments_part(int64_t part, int) {
  const int64_t begin = part * kPart;
  kernels_.moments(scores_ + begin, std::min(kPart, vocabulary_ - begin), joined_peak(), scale_,
                   moments_.data() + begin / kWeightBlock);
}

float Chain::joined_peak() const { return *std::max_element(peaks_.begin(), peaks_.end()); }

void Chain::compute(Row* row, bool weighs) {
  row_ = row;
  const bool is_changed = row->mask != nullptr || history_.changes_scores();
  if (is_changed) changed_.resize(static_cast<size_t>(vocabulary_));
  scores_ = is_changed ? changed_.data() : row->logits;
  PhaseList phases;
  if (is_changed) phases.add(make_phase_of<&Chain::mask_part>(parts(), this));
  if (history_.changes_scores()) phases.add(make_phase_of<&Chain::change_scores>(1, this));
  phases.add(make_phase_of<&Chain::peak_part>(parts(), this));
  if (weighs) phases.add(make_phase_of<&Chain::weigh_part>(parts(), this));
  if (weighs && has_moments()) phases.add(make_phase_of<&Chain::moments_part>(parts(), this));
  run_phases(process_crew(), phases);
  peak_ = joined_peak();
  const bool has_wrong = std::any_of(has_wrong_.begin(), has_wrong_.end(), [](uint8_t has) { return has != 0; });
  row->outcome = has_wrong ? Outcome::kNoNumbers : peak_ == kMinusInfinity ? Outcome::kNothingLeft : Outcome::kDrawn;
}

bool Chain::has_truncation() const {
  return truncation_.top_k > 0 || truncation_.top_p < 1.0 || truncation_.min_p > 0.0 || truncation_.top_n_sigma > 0.0 ||
         truncation_.top_h > 0.0 || truncation_.fsd > 0.0 || truncation_.xtc_probability > 0.0;
}

void Chain::draw(Row* row) {
  const DefaultFloatMode mode;
  const bool is_greedy = truncation_.temperature == 0.0;
  const bool weighs = !is_greedy || truncation_.fsd > 0.0;
  compute(row, weighs);
  if (row->outcome != Outcome::kDrawn) return;
  if (!weighs) {
    row->token = best_token();
    return;
  }
  if (!has_truncation()) {
    row->token = token_of_all(row->random);
    return;
  }
  find_candidates();
  double random = row->random;
  const double excluded = truncation_.xtc_probability;
  if (excluded > 0.0 && !is_greedy) {
    // One number decides both, so that the next token's number is the same one with and without XTC.
    const bool excludes = random < excluded;
    random = excludes ? random / excluded : (random - excluded) / (1.0 - excluded);
    random = std::min(random, 1.0 - 0x1p-53);
    if (excludes) exclude_top();
  }
  if (is_greedy) {
    row->token = std::min_element(candidates_.begin(), candidates_.end(), is_before)->token;
    return;
  }
  uint64_t place = place_of(random, sum_of(candidates_));
  for (const Candidate& one : candidates_) {
    row->token = one.token;
    const auto weight = static_cast<uint64_t>(one.weight);
    if (place < weight) return;
    place -= weight;
  }
}

const std::vector<Candidate>& Chain::law(Row* row, bool excludes) {
  const DefaultFloatMode mode;
  const bool is_greedy = truncation_.temperature == 0.0;
  candidates_.clear();
  compute(row, !is_greedy || truncation_.fsd > 0.0);
  if (row->outcome != Outcome::kDrawn) return candidates_;
  if (is_greedy && truncation_.fsd == 0.0) {
    candidates_ = {{best_token(), kWholeWeight}};
    return candidates_;
  }
  find_candidates();
  if (is_greedy) {
    candidates_ = {*std::min_element(candidates_.begin(), candidates_.end(), is_before)};
  } else if (excludes) {
    exclude_top();
  }
  return candidates_;
}

int32_t Chain::best_token() const {
  const auto part = std::find(peaks_.begin(), peaks_.end(), peak_) - peaks_.begin();
  int64_t token = part * kPart;
  while (scores_[token] != peak_) ++token;
  return static_cast<int32_t>(token);
}

int32_t Chain::token_of_all(double random) {
  uint64_t total = 0;
  for (const BlockWeights& block : blocks_) total += block.sum;
  uint64_t place = place_of(random, total);
  size_t block = 0;
  for (; place >= blocks_[block].sum; ++block) place -= blocks_[block].sum;
  const int64_t begin = static_cast<int64_t>(block) * kWeightBlock;
  int32_t weights[kWeightBlock];
  kernels_.weights(scores_ + begin, std::min(kWeightBlock, vocabulary_ - begin), peak_, scale_, weights);
  int64_t i = 0;
  for (; place >= static_cast<uint64_t>(weights[i]); ++i) place -= static_cast<uint64_t>(weights[i]);
  return static_cast<int32_t>(begin + i);
}

// Makes candidates of all tokens of at least this weight.
void Chain::gather(int32_t least) {
  size_t found = 0;
  int32_t weights[kWeightBlock];
  for (size_t block = 0; block < blocks_.size(); ++block) {
    if (blocks_[block].most < least) continue;
    const int64_t begin = static_cast<int64_t>(block) * kWeightBlock;
    const int64_t count = std::min(kWeightBlock, vocabulary_ - begin);
    kernels_.weights(scores_ + begin, count, peak_, scale_, weights);
    if (found + static_cast<size_t>(count) > candidates_.size())
      candidates_.resize(2 * candidates_.size() + kWeightBlock);
    // Without a jump for every weight.
    for (int64_t i = 0; i < count; ++i) {
      candidates_[found] = {static_cast<int32_t>(begin + i), weights[i]};
      found += weights[i] >= least;
    }
  }
  candidates_.resize(found);
}

// Keeps the first candidates in the order of weights: `count` of them, or fewer whose sum reaches `wanted`.
void Chain::keep_first(int64_t count, uint64_t wanted) {
  constexpr int kBits = 10, kBuckets = (1 << kBits) + 1;
  wanted = std::min(wanted, sum_of(candidates_));
  uint64_t sum_above = 0;
  int64_t count_above = 0;
  int32_t high = 0;  // upper bits of the last weight kept
  for (int shift = 2 * kBits; shift >= 0; shift -= kBits) {
    uint64_t sums[kBuckets] = {};
    int32_t counts[kBuckets] = {};
    const bool is_first = shift == 2 * kBits;
    for (const Candidate& one : candidates_) {
      if (!is_first && one.weight >> (shift + kBits) != high) continue;
      const int bucket = is_first ? one.weight >> shift : one.weight >> shift & ((1 << kBits) - 1);
      sums[bucket] += static_cast<uint64_t>(one.weight);
      ++counts[bucket];
    }
    int bucket = kBuckets - 1;
    while (bucket > 0 && count_above + counts[bucket] < count && sum_above + sums[bucket] < wanted) {
      count_above += counts[bucket];
      sum_above += sums[bucket];
      --bucket;
    }
    high = is_first ? bucket : high << kBits | bucket;
  }
  const auto cut = static_cast<uint64_t>(high);
  int64_t equal = std::min(count - count_above, static_cast<int64_t>((wanted - sum_above + cut - 1) / cut));
  size_t kept = 0;
  for (const Candidate& one : candidates_) {
    if (one.weight < high || (one.weight == high && equal-- <= 0)) continue;
    candidates_[kept++] = one;
  }
  candidates_.resize(kept);
}

// The weight of a score as far below the largest as so many standard deviations of all.
int32_t Chain::sigma_weight() {
  double count = 0, sum = 0, squares = 0;
  for (const BlockMoments& block : moments_) {
    count += static_cast<double>(block.count);
    sum += static_cast<double>(block.sum);
    squares += static_cast<double>(block.squares);
  }
  const double mean = sum / count;
  const double below = -truncation_.top_n_sigma * std::sqrt(std::max(0.0, squares / count - mean * mean));
  const auto score = static_cast<float>(below);
  int32_t weight;
  kernels_.weights(&score, 1, 0.0f, scale_, &weight);
  return std::max(weight, 1);
}

double Chain::row_entropy() {
  double information = 0;
  uint64_t sum = 0;
  for (const BlockMoments& block : moments_) information += static_cast<double>(block.information);
  for (const BlockWeights& block : blocks_) sum += block.sum;
  const double whole = static_cast<double>(sum) / kWholeWeight;
  return logarithm(whole) - information / whole;
}

// Keeps the longest beginning whose entropy is at most `bound`; false: that is all of them.
bool Chain::keep_entropy(double bound) {
  sorted_ = candidates_;
  uint64_t sum = 0;
  double information = 0;
  size_t kept = 0, ordered = 0;
  bool is_over = false;
  for (; kept < sorted_.size() && !is_over; ++kept) {
    if (kept == ordered) {
      ordered = std::min(sorted_.size(), std::max<size_t>(64, 4 * ordered));
      const auto middle = sorted_.begin() + static_cast<int64_t>(ordered);
      std::partial_sort(sorted_.begin() + static_cast<int64_t>(kept), middle, sorted_.end(), is_before);
    }
    const double share = static_cast<double>(sorted_[kept].weight) / kWholeWeight;
    sum += static_cast<uint64_t>(sorted_[kept].weight);
    information += share * logarithm(share);
    const double whole = static_cast<double>(sum) / kWholeWeight;
    is_over = kept > 0 && logarithm(whole) - information / whole > bound;
  }
  if (!is_over) return false;
  keep_first(static_cast<int64_t>(kept) - 1, kNoSum);
  return true;
}

void Chain::find_candidates() {
  const Truncation& use = truncation_;
  const int32_t floor = use.top_n_sigma > 0.0 ? sigma_weight() : 1;
  const auto likely = static_cast<int32_t>(std::ceil(use.min_p * kWholeWeight));
  const double entropy = use.top_h > 0.0 ? use.top_h * row_entropy() : 0.0;
  if (use.top_k > 0) {
    // The k-th largest maximum of the blocks is a weight that the k-th largest of all reaches.
    int32_t least = floor;
    const auto k = static_cast<size_t>(use.top_k);
    if (k <= blocks_.size()) {
      std::vector<int32_t> most;
      for (const BlockWeights& block : blocks_) most.push_back(block.most);
      std::nth_element(most.begin(), most.begin() + static_cast<int64_t>(k) - 1, most.end(), std::greater<>());
      least = std::max(least, most[k - 1]);
    }
    gather(least);
    if (candidates_.size() > k) keep_first(use.top_k, kNoSum);
    if (use.top_p < 1.0) keep_first(vocabulary_, share_of(use.top_p, sum_of(candidates_)));
    if (likely > 1) {
      const auto is_unlikely = [&](const Candidate& one) { return one.weight < likely; };
      candidates_.erase(std::remove_if(candidates_.begin(), candidates_.end(), is_unlikely), candidates_.end());
    }
    if (use.top_h > 0.0) keep_entropy(entropy);
  } else {
    uint64_t wanted = kNoSum;
    if (use.top_p < 1.0) {
      uint64_t total = 0;
      if (floor > 1) {
        gather(floor);
        total = sum_of(candidates_);
      } else {
        for (const BlockWeights& block : blocks_) total += block.sum;
      }
      wanted = share_of(use.top_p, total);
    }
    // Where a set ends early, tokens far below its end need not be looked at.
    const int32_t lowest = std::max(floor, likely);
    const bool ends_early = use.top_p < 1.0 || use.top_h > 0.0;
    int32_t least = ends_early ? kWholeWeight : lowest;
    for (bool is_whole = false; !is_whole;) {
      least = ends_early ? std::max(lowest, least >> kThresholdStep) : lowest;
      gather(least);
      is_whole = least <= lowest;
      if (use.top_p < 1.0 && sum_of(candidates_) >= wanted) {
        keep_first(vocabulary_, wanted);
        is_whole = true;
      }
      if (use.top_h > 0.0 && keep_entropy(entropy)) is_whole = true;
    }
  }
  if (use.fsd > 0.0) subtract_expected();
}

// FSD: takes from every candidate what the n-grams of the text expect of it.
void Chain::subtract_expected() {
  const double total = static_cast<double>(sum_of(candidates_)), ratio = truncation_.fsd / (1.0 - truncation_.fsd);
  history_.count_followers();
  size_t kept = 0;
  Candidate best{};
  double most = -std::numeric_limits<double>::infinity();
  for (const Candidate& one : candidates_) {
    const double rest = static_cast<double>(one.weight) - ratio * history_.expected_share(one.token) * total;
    if (rest > most) {
      most = rest;
      best = {one.token, 1};
    }
    if (rest >= 1.0) candidates_[kept++] = {one.token, static_cast<int32_t>(rest)};
  }
  candidates_.resize(kept);
  if (kept == 0) candidates_.push_back(best);
}

// XTC: takes out all tokens of at least the threshold's probability but the least likely one.
void Chain::exclude_top() {
  const uint64_t bound = share_of(truncation_.xtc_threshold, sum_of(candidates_));
  const auto is_top = [&](const Candidate& one) { return static_cast<uint64_t>(one.weight) >= bound; };
  const Candidate* least = nullptr;
  for (const Candidate& one : candidates_) {
    if (is_top(one) && (least == nullptr || is_before(*least, one))) least = &one;
  }
  if (least == nullptr) return;
  const int32_t stays = least->token;
  const auto goes = [&](const Candidate& one) { return is_top(one) && one.token != stays; };
  candidates_.erase(std::remove_if(candidates_.begin(), candidates_.end(), goes), candidates_.end());
}

}  // namespace edge_rt::sampling
