// How a checked call of DraftHead grows its tree and is spread over threads; knows nothing of ONNX Runtime.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/crew.h"
#include "ops/draft_head/draft_head.h"
#include "ops/quant_embed/quant_embed.h"
#include "ops/quant_linear/quant_linear.h"

namespace edge_rt {

struct HeadBlock {
  const float* norm;
  PackedParts gate_up, down;
};

// The arguments, all of them checked.
struct DraftHeadJob {
  int64_t hidden, intermediate;  // intermediate: of a block
  float epsilon;
  PackedWeight embedding;
  PackedParts fc;
  const float *state_norm, *token_norm, *output_norm;
  int blocks;
  HeadBlock block[kMaxHeadBlocks];
  PackedWeight head, more_head;  // more_head may have no tiles
  int64_t head_rows, more_rows;
  const int32_t *head_ids, *more_ids;
  const float* state;
  int64_t token;
  int nodes, width, depth;
};

// Where the tree goes: `nodes` places each; those behind `count` stay as they are.
struct DraftTree {
  int32_t *ids, *parents, *depths;
  float* log_probs;
  int count;
};

struct DraftHeadRun {
  const QuantLinearKernels& linear;
  const QuantEmbedKernels& embed;
  const RowTopKKernels& top_k;
  const DraftHeadKernels& head;
  Crew& crew;
  int lanes;    // threads to plan for
  int workers;  // set: threads that took part
};

size_t draft_head_scratch_bytes(const DraftHeadJob& job);

// `scratch` is 64-byte aligned and of that size. False if a thread had no memory; the tree is then not written.
bool run_draft_head(DraftHeadRun& run, const DraftHeadJob& job, void* scratch, DraftTree* tree);

}  // namespace edge_rt
