// Sampling as C functions, which edge_rt/runtime/decode/native_chain.py calls. A chain serves one generation; calls
// with one chain must not overlap. Their version is that of the library (register.cc).
//
// Functions that return int: 0 or a count; kRefused if an argument is out of range, and then nothing has changed;
// kNoMemory if memory ran out; kNoNumbers if a logit is no number or plus infinity; kNothingLeft if no token is left.
#pragma once

#include <cstdint>

#include "common/export.h"

namespace edge_rt::sampling {

constexpr int kRefused = -1;
constexpr int kNoMemory = -2;

// A list of tokens; null and 0 where there are none.
struct Tokens {
  const int32_t* tokens;
  int64_t count;
};

// Settings of a generation. What `off` says leaves a step out.
struct ChainSettings {
  double temperature;                      // 0: the largest score
  double top_p, min_p;                     // off: 1; 0
  double top_n_sigma, top_h;               // off: 0
  double xtc_probability, xtc_threshold;   // off: a probability of 0
  double fsd;                              // off: 0
  double repetition, presence, frequency;  // off: 1; 0; 0
  double dry_multiplier, dry_base;         // off: a multiplier of 0
  int32_t dry_allowed;
  int32_t fsd_order;   // 1 to kMostOrders; 0 without FSD
  int32_t top_k;       // off: 0
  int32_t vocabulary;  // length of a row
  Tokens prompt, exempt, breakers, banned, biased;
  const float* bias;  // one for every token of `biased`
};

}  // namespace edge_rt::sampling

// A chain with the kernels of an instruction set (null: the best). Null: an argument is out of range, or memory ran
// out.
EDGE_RT_EXPORT void* edge_rt_chain_open(const edge_rt::sampling::ChainSettings* settings, const char* isa);
EDGE_RT_EXPORT void edge_rt_chain_close(void* chain);
// Adds a token of the answer; `is_breaker`: it ends repetitions, as those in `breakers` do.
EDGE_RT_EXPORT int edge_rt_chain_observe(void* chain, int32_t token, int32_t is_breaker);
// Draws for a row of logits: the token, or an error. `mask` is null, or has a bit for every token (chain.h); `random`
// is in [0, 1).
EDGE_RT_EXPORT int edge_rt_chain_draw(void* chain, const float* logits, const uint32_t* mask, double random);
// The tokens that are drawn from, by id, and their weights; returns their number. Both arrays have room for a row.
// With XTC there are two laws: the one of rows in which it excludes tokens, and the other.
EDGE_RT_EXPORT int edge_rt_chain_law(void* chain, const float* logits, const uint32_t* mask, int32_t excludes,
                                     int32_t* tokens, int32_t* weights);
