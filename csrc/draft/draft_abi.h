// The drafting core as C functions, which edge_rt/runtime/speculation/library.py calls. A handle is made by one of the
// functions that end in _open, and freed by edge_rt_draft_close; a grower's sources must be closed after it. Calls with
// one grower or its sources must not overlap.
//
// Functions that return int: 0 or a count; kRefused if an argument is out of range, and then nothing has changed;
// kNoMemory if memory ran out: the handle may then only be closed.
#pragma once

#include <cstdint>

#if defined(_WIN32)
#define EDGE_RT_DRAFT_EXPORT extern "C" __declspec(dllexport)
#else
#define EDGE_RT_DRAFT_EXPORT extern "C" __attribute__((visibility("default")))
#endif

namespace edge_rt::draft {

// Number of these functions' arguments and meaning: the Python half does without a library of another one.
constexpr int kDraftVersion = 3;
constexpr int kRefused = -1;
constexpr int kNoMemory = -2;

// A guess as it is returned.
struct GuessView {
  int32_t token, kind, cursor[4];
};

}  // namespace edge_rt::draft

EDGE_RT_DRAFT_EXPORT int edge_rt_draft_version();

// Sources. Null: an argument is out of range, or memory ran out.
EDGE_RT_DRAFT_EXPORT void* edge_rt_draft_suffix_open(int32_t max_tokens);
EDGE_RT_DRAFT_EXPORT void* edge_rt_draft_recycling_open(int32_t max_order, int32_t max_contexts, float least,
                                                        const float* bounds);
// Another text with the same tables, which the last one frees.
EDGE_RT_DRAFT_EXPORT void* edge_rt_draft_recycling_beside(void* source);
EDGE_RT_DRAFT_EXPORT void* edge_rt_draft_reference_open(const int32_t* tokens, int64_t count);
EDGE_RT_DRAFT_EXPORT void* edge_rt_draft_forest_open(int32_t num_kinds);

// The functions of a source: see draft/source.h.
EDGE_RT_DRAFT_EXPORT int edge_rt_draft_source_begin(void* source, const int32_t* tokens, int64_t count);
EDGE_RT_DRAFT_EXPORT int edge_rt_draft_source_extend(void* source, const int32_t* tokens, int64_t count);
EDGE_RT_DRAFT_EXPORT int edge_rt_draft_source_observe(void* source, const int32_t* tokens, const int32_t* parents,
                                                      int32_t nodes, const int32_t* context, int32_t context_size,
                                                      const int32_t* top_ids, const float* top_logits,
                                                      const float* log_sum_exp, int32_t width);
// 1 and the cursor, or 0.
EDGE_RT_DRAFT_EXPORT int edge_rt_draft_source_root(void* source, int32_t* cursor);
// `guesses` has room for kMaxGuesses. The cursor must be one of this source, of the text as it is now.
EDGE_RT_DRAFT_EXPORT int edge_rt_draft_source_children(void* source, const int32_t* cursor,
                                                       edge_rt::draft::GuessView* guesses);
EDGE_RT_DRAFT_EXPORT int64_t edge_rt_draft_source_bytes(void* source);
EDGE_RT_DRAFT_EXPORT int edge_rt_draft_suffix_limit(void* source, int32_t max_tokens);
EDGE_RT_DRAFT_EXPORT int64_t edge_rt_draft_suffix_size(void* source);
EDGE_RT_DRAFT_EXPORT int edge_rt_draft_forest_set(void* source, int32_t count, const int32_t* tokens,
                                                  const int32_t* parents, const int32_t* kinds);

// A grower: `priors` are those of all kinds of the first source, then of the second, ...; `joint` are, for every set of
// sources (bit i is source i, the empty set first), start and slope of the log odds of a common guess by the sum of
// theirs.
EDGE_RT_DRAFT_EXPORT void* edge_rt_draft_grower_open(void* const* sources, int32_t num_sources,
                                                     const int32_t* num_kinds, const double* priors,
                                                     const double* joint, const uint32_t* arms, int32_t num_arms,
                                                     int32_t chain);
// Sets the costs of passes over 1, 2, ... rows, in milliseconds.
EDGE_RT_DRAFT_EXPORT int edge_rt_draft_grower_price(void* grower, const double* costs, int32_t count);
// Lets what was learned fade, and starts a generation in every source.
EDGE_RT_DRAFT_EXPORT int edge_rt_draft_grower_begin(void* grower, double keep, const int32_t* tokens, int64_t count);
// Grows a tree of at most `limit` nodes and cuts it to what pays; a negative `drafting` leaves it whole. Returns the
// number of nodes; `tokens`, `parents` and `values` have room for `limit`.
EDGE_RT_DRAFT_EXPORT int edge_rt_draft_grower_propose(void* grower, int32_t limit, int32_t arm, double least,
                                                      double drafting, int32_t* tokens, int32_t* parents,
                                                      double* values);
// Divides the rows of a pass among trees; see `divide` in draft/grower.h. Of every tree: its number of nodes, their
// values, its known rows, at least 1, and its attention, or null; costs and attention are those of `num_costs` passes,
// over 1, 2, ... rows: no fewer than are known and `most` more. Writes how many nodes each may have, and returns their
// sum.
EDGE_RT_DRAFT_EXPORT int edge_rt_draft_divide(int32_t count, const int32_t* nodes, const double* const* values,
                                              const int32_t* known, const double* const* attention, const double* costs,
                                              int32_t num_costs, int32_t least, int32_t most, double tokens,
                                              double drafting, int32_t* sizes);
// Learns from the first `nodes` nodes of the last tree: of its `accepted` nodes `path`, one token more was emitted.
// `arm`: who drafted, for the ledger; -1: the step does not count there. Returns the number of nodes tested.
EDGE_RT_DRAFT_EXPORT int edge_rt_draft_grower_observe(void* grower, int32_t nodes, const int32_t* emitted,
                                                      const int32_t* path, int32_t accepted, const int32_t* context,
                                                      int32_t context_size, const int32_t* top_ids,
                                                      const float* top_logits, const float* log_sum_exp, int32_t width,
                                                      int32_t arm, const double* drafting);
// Tokens and milliseconds of every arm in the ledger.
EDGE_RT_DRAFT_EXPORT int edge_rt_draft_grower_ledger(void* grower, int64_t* tokens, double* ms);
EDGE_RT_DRAFT_EXPORT int edge_rt_draft_grower_clear(void* grower);
EDGE_RT_DRAFT_EXPORT int64_t edge_rt_draft_grower_bytes(void* grower);

EDGE_RT_DRAFT_EXPORT void edge_rt_draft_source_close(void* source);
EDGE_RT_DRAFT_EXPORT void edge_rt_draft_grower_close(void* grower);
