// How a checked pass is spread over threads; knows nothing of ONNX Runtime.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/parallel.h"
#include "ops/spec_attention/spec_attention.h"

namespace edge_rt {

// Few rows: every chunk of keys is an item, its results wait in scratch memory and are folded in a second phase. Many
// rows: a block of rows is an item, and folds its chunks as it goes. Both fold the same numbers in the same order.
class AttentionPlan {
 public:
  // The pass without its scratch pointers, but with depths.
  explicit AttentionPlan(const AttentionPass& pass);

  size_t scratch_bytes() const { return scratch_bytes_; }

  // Points the pass into scratch memory of that size.
  void place(void* scratch, AttentionPass* pass);

  void run(const SpecAttentionKernels& kernels, const AttentionPass& pass, const Executor& executor) const;

 private:
  size_t lay_out(char* base, AttentionPass* pass);
  void run_split(const SpecAttentionKernels& kernels, const AttentionPass& pass, const Executor& executor) const;
  void run_blocks(const SpecAttentionKernels& kernels, const AttentionPass& pass, const Executor& executor) const;
  AttentionWork work(int worker) const;
  // Chunk that holds the first position that a row at `position` attends to.
  int64_t first_chunk(const AttentionPass& pass, int64_t position) const;

  bool split_;
  int64_t block_rows_, blocks_, queries_;        // queries_: of all rows
  int64_t chunk_begin_, chunk_end_, group_, groups_;  // chunks of the pass; chunks of an item; items per block
  int64_t prepare_rows_, prepare_items_;
  int64_t workers_;
  int padded_dim_;
  size_t scratch_bytes_ = 0;
  AttentionWork first_work_{};
  int64_t work_floats_ = 0;       // distance between two workers' memory
  AttentionState partial_{};      // split: [chunks][queries]; blocks: of worker 0
  AttentionState state_{};        // split: [queries]; blocks: of worker 0
};

}  // namespace edge_rt
