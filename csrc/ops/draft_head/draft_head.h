// DraftHead: a small recurrent head that guesses which tokens follow, as a tree.
//
// A step takes a state s and the token x behind it, and makes the next state s', D numbers each:
//   u = [(s * rms(s)) * state_norm, (e * rms(e)) * token_norm], e the embedding of x
//   y = fc u;  then for each block  y = y + down(silu(gate) * up), gate and up of n = (y * rms(y)) * norm;  s' = y
// The first state is given, with the last token of the sequence. A step's guesses are rows of the reduced heads: with
//   logits = [head, more_head] ((s' * rms(s')) * output_norm)
// they are the `width` tokens of largest logit, of equal ones the smaller id first, and
//   log_prob = min(logit - log of the sum of all exp(logit), 0)
// A guess without a finite log_prob is left out. Products are QuantLinear's, sums of exp are RowTopK's parts, those of
// `head` first; so the bits of a node depend on its ancestors alone.
//
// `total` is the sum of log_prob from the root down. Nodes are in the order of their totals, largest first, equal ones
// in the order they were found: by depth, then by their parents' order, then by rank. The tree is the first `nodes` of
// them. At each depth the first kFrontier of those that belong to it so far run the step together, so that the tree of
// fewer nodes is the beginning of the tree of more.
#pragma once

#include <cstdint>

#include "ops/row_top_k/row_top_k.h"

namespace edge_rt {

constexpr int kMaxHeadBlocks = 4;
constexpr int kMaxHeadNodes = 256;
constexpr int kMaxHeadDepth = 8;
constexpr int kMaxHeadWidth = kMaxTopK;
// Nodes of a depth whose children are looked for: rows of one walk over the weights.
constexpr int kFrontier = 8;

struct DraftHeadKernels {
  // y = (x * rms(x)) * weight; y may be x.
  void (*norm)(const float* x, const float* weight, int64_t features, float epsilon, float* y);
  // Joins the parts of a row's logits. Columns of the first `head_parts` stand for head_ids, of the others for
  // more_ids, each counted from the beginning of its own. Returns the number of guesses, at most `width`.
  int (*join)(const TopKPart* parts, int64_t count, int64_t head_parts, const int32_t* head_ids,
              const int32_t* more_ids, int width, int32_t* ids, float* log_probs);
};

}  // namespace edge_rt
