#include "sampling/sampling_abi.h"

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "common/isa.h"
#include "kernels/kernel_table.h"
#include "sampling/chain.h"

using namespace edge_rt;            // NOLINT: the functions below are C
using namespace edge_rt::sampling;  // NOLINT

namespace {

constexpr int32_t kMostTokens = 1 << 24;

struct OpenChain {
  Chain chain;
  int32_t vocabulary;
};

bool is_between(double value, double least, double most) { return value >= least && value <= most; }

bool are_tokens(const Tokens& list, int32_t vocabulary) {
  if (list.count < 0 || (list.count > 0 && list.tokens == nullptr)) return false;
  for (int64_t i = 0; i < list.count; ++i) {
    if (list.tokens[i] < 0 || list.tokens[i] >= vocabulary) return false;
  }
  return true;
}

bool is_valid(const ChainSettings& from) {
  const bool has_sets = is_between(from.temperature, 0, 100) && is_between(from.top_p, 0, 1) && from.top_p > 0 &&
                        is_between(from.min_p, 0, 1) && from.min_p < 1 && from.top_k >= 0 &&
                        is_between(from.top_n_sigma, 0, 100) && is_between(from.top_h, 0, 1) &&
                        is_between(from.xtc_probability, 0, 1) && is_between(from.xtc_threshold, 0, 1) &&
                        is_between(from.fsd, 0, 1) && from.fsd < 1;
  const bool has_penalties = is_between(from.repetition, 0.01, 100) && is_between(from.presence, -100, 100) &&
                             is_between(from.frequency, -100, 100) && is_between(from.dry_multiplier, 0, 100) &&
                             is_between(from.dry_base, 1, 100) && from.dry_allowed >= 1 && from.fsd_order >= 0 &&
                             from.fsd_order <= kMostOrders && (from.fsd == 0 || from.fsd_order > 0);
  if (!has_sets || !has_penalties || from.vocabulary < 1 || from.vocabulary > kMostTokens) return false;
  for (const Tokens& list : {from.prompt, from.exempt, from.breakers, from.banned, from.biased}) {
    if (!are_tokens(list, from.vocabulary)) return false;
  }
  return from.biased.count == 0 || from.bias != nullptr;
}

std::vector<int32_t> tokens_of(const Tokens& list) { return {list.tokens, list.tokens + list.count}; }

std::unique_ptr<OpenChain> made_of(const ChainSettings& from, Isa isa) {
  const Truncation truncation{from.temperature,     from.top_p,         from.min_p, from.top_n_sigma, from.top_h,
                              from.xtc_probability, from.xtc_threshold, from.fsd,   from.top_k};
  const Penalties penalties{static_cast<float>(from.repetition),
                            static_cast<float>(from.presence),
                            static_cast<float>(from.frequency),
                            from.dry_multiplier,
                            from.dry_base,
                            from.dry_allowed,
                            from.fsd > 0 ? from.fsd_order : 0};
  std::vector<std::pair<int32_t, float>> bias;
  for (int64_t i = 0; i < from.biased.count; ++i) bias.emplace_back(from.biased.tokens[i], from.bias[i]);
  History history(penalties, from.vocabulary, tokens_of(from.exempt), tokens_of(from.breakers), std::move(bias),
                  tokens_of(from.banned));
  for (int64_t i = 0; i < from.prompt.count; ++i) history.add(from.prompt.tokens[i], false);
  return std::make_unique<OpenChain>(
      OpenChain{Chain(truncation, std::move(history), from.vocabulary, kernel_table(isa).sampling), from.vocabulary});
}

OpenChain* chain_of(void* handle) { return static_cast<OpenChain*>(handle); }

}  // namespace

void* edge_rt_chain_open(const ChainSettings* settings, const char* isa_name) {
  Isa isa = best_isa();
  if (isa_name != nullptr && (!isa_from_name(isa_name, &isa) || !isa_is_usable(isa))) return nullptr;
  if (settings == nullptr || !is_valid(*settings)) return nullptr;
  return guarded<void*>(nullptr, [&]() -> void* { return made_of(*settings, isa).release(); });
}

void edge_rt_chain_close(void* chain) { delete chain_of(chain); }

int edge_rt_chain_observe(void* chain, int32_t token, int32_t is_breaker) {
  if (chain == nullptr || token < 0 || token >= chain_of(chain)->vocabulary) return kRefused;
  return guarded<int>(kNoMemory, [&] {
    History& history = chain_of(chain)->chain.history();
    if (is_breaker != 0) history.mark_breaker(token);
    history.add(token, true);
    return 0;
  });
}

int edge_rt_chain_draw(void* chain, const float* logits, const uint32_t* mask, double random) {
  if (chain == nullptr || logits == nullptr || !(random >= 0 && random < 1)) return kRefused;
  return guarded<int>(kNoMemory, [&] {
    Row row{logits, mask, random, 0, Outcome::kDrawn};
    chain_of(chain)->chain.draw(&row);
    return row.outcome == Outcome::kDrawn ? row.token : static_cast<int>(row.outcome);
  });
}

int edge_rt_chain_law(void* chain, const float* logits, const uint32_t* mask, int32_t excludes, int32_t* tokens,
                      int32_t* weights) {
  if (chain == nullptr || logits == nullptr || tokens == nullptr || weights == nullptr) return kRefused;
  return guarded<int>(kNoMemory, [&] {
    Row row{logits, mask, 0.0, 0, Outcome::kDrawn};
    const std::vector<Candidate>& law = chain_of(chain)->chain.law(&row, excludes != 0);
    if (row.outcome != Outcome::kDrawn) return static_cast<int>(row.outcome);
    for (size_t i = 0; i < law.size(); ++i) {
      tokens[i] = law[i].token;
      weights[i] = law[i].weight;
    }
    return static_cast<int>(law.size());
  });
}
