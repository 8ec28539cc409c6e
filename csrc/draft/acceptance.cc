#include "draft/acceptance.h"

#include <cmath>
#include <utility>

namespace edge_rt::draft {
namespace {

constexpr double kKeepTrial = 0.998;
constexpr double kPriorTrials = 6.0;
constexpr double kWidest = 5.0;
constexpr int kStepsPerUnit = 2;
constexpr int kCells = 21;
constexpr double kLeadBounds[] = {0.25, 0.5, 0.75};
constexpr int kLevels = 5;

double logit(double p) {
  if (p < 1e-4) p = 1e-4;
  if (p > 1 - 1e-4) p = 1 - 1e-4;
  return std::log(p / (1 - p));
}

std::vector<double> cell_priors(const std::vector<Line>& joint) {
  constexpr double kBelow[] = {0.0, 0.25, 0.5, 0.75};
  std::vector<double> priors;
  for (const Line& line : joint) {
    for (int lead = 0; lead < kLevels; ++lead) {
      // Share of the probability that the leading guess of the position leaves.
      const double share = lead == 0 ? 1.0 : 1.0 - kBelow[lead - 1] - 0.1;
      for (int cell = 0; cell < kCells; ++cell) {
        const double x = line.start + line.slope * (static_cast<double>(cell) / kStepsPerUnit - kWidest);
        priors.push_back(share / (1 + std::exp(-x)));
      }
    }
  }
  return priors;
}

}  // namespace

Rates::Rates(std::vector<double> priors, double trials) : prior_trials_(trials) {
  rates_.reserve(priors.size());
  for (const double prior : priors) rates_.push_back(Rate{prior, prior * trials, trials, prior, false});
}

void Rates::learn(size_t index, bool hit) {
  Rate& rate = rates_[index];
  rate.trials = rate.trials * kKeepTrial + 1.0;
  rate.hits = rate.hits * kKeepTrial + (hit ? 1.0 : 0.0);
  rate.is_learned = true;
  rate.value = rate.hits / rate.trials;
}

void Rates::relax(double keep) {
  const double own = prior_trials_;
  for (Rate& rate : rates_) {
    if (!rate.is_learned) continue;
    rate.trials = own + keep * (rate.trials - own);
    rate.hits = rate.prior * own + keep * (rate.hits - rate.prior * own);
    rate.value = rate.hits / rate.trials;
  }
}

AcceptanceModel::AcceptanceModel(std::vector<std::vector<double>> priors, const std::vector<Line>& joint)
    : cells_(cell_priors(joint), kPriorTrials) {
  for (std::vector<double>& own : priors) {
    odds_.emplace_back();
    odds_.back().reserve(own.size());
    for (const double prior : own) odds_.back().push_back(logit(prior));
    kinds_.emplace_back(std::move(own), kPriorTrials);
  }
}

int AcceptanceModel::cell(uint32_t mask, double odds, double lead) {
  int level = 0;
  if (lead != kLeads) {
    level = 1;
    for (const double bound : kLeadBounds) level += lead >= bound;
  }
  if (odds > kWidest) odds = kWidest;
  if (odds < -kWidest) odds = -kWidest;
  return static_cast<int>(mask * kLevels + level) * kCells + static_cast<int>((odds + kWidest) * kStepsPerUnit + 0.5);
}

void AcceptanceModel::learn(uint32_t mask, const int32_t* kinds, int cell, bool hit) {
  for (size_t source = 0; source < kinds_.size(); ++source) {
    if ((mask >> source & 1) == 0) continue;
    kinds_[source].learn(kinds[source], hit);
    odds_[source][kinds[source]] = logit(kinds_[source].value(kinds[source]));
  }
  cells_.learn(cell, hit);
}

void AcceptanceModel::relax(double keep) {
  cells_.relax(keep);
  for (size_t source = 0; source < kinds_.size(); ++source) {
    kinds_[source].relax(keep);
    for (size_t kind = 0; kind < kinds_[source].size(); ++kind) {
      odds_[source][kind] = logit(kinds_[source].value(kind));
    }
  }
}

size_t AcceptanceModel::memory_bytes() const {
  size_t bytes = cells_.memory_bytes();
  for (const Rates& rates : kinds_) bytes += rates.memory_bytes();
  for (const std::vector<double>& odds : odds_) bytes += odds.capacity() * sizeof(double);
  return bytes;
}

}  // namespace edge_rt::draft
