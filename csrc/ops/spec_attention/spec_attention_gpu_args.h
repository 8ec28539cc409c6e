// What the kernels of spec_attention_cuda.cu take; spec_attention_gpu.h starts them.
#pragma once

#include "ops/spec_attention/spec_attention.h"

namespace edge_rt::gpu {

constexpr int kTreeThreads = 256;
constexpr int kRowWarps = 4;                      // of a block that prepares heads of a row: a warp has one
constexpr int kAttendThreads = 32 * kSpanChunks;  // a warp has a chunk of the span
constexpr int kFinishThreads = 128;

constexpr int kAttendQueries = 16;  // most queries of a block
constexpr int kQueryWords = 4096;   // what they may take of a block's shared memory
// Of a query that is codes, per group of dimensions: its codes, their scale and their sum.
constexpr int kCodedQueryWords = kKvGroup / 4 + 2;
static_assert(kQueryWords / kMaxHeadDim >= 8, "heads of every size leave room for some queries");

// A tree in device memory: whether it is a chain (0 or 1), and from number kTreeHead on the depth of every node.
constexpr int kTreeHead = 4;

struct TreeArgs {
  const int32_t* parents;
  int64_t nodes;
  int32_t* tree;
};

struct AttentionArgs {
  AttentionPass pass;  // of device memory; `past` and `chain` are not read, they lie at:
  const int32_t* past;
  const int32_t* tree;
  // What is known after each span: [spans][queries], the first span being that of the first position seen. Where spans
  // are folded as they come it is what is known after all.
  AttentionState states;
  int block_queries;
  Flag folds;
};

}  // namespace edge_rt::gpu
