// How a checked pass is spread over threads; knows nothing of ONNX Runtime.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "common/parallel.h"
#include "ops/spec_attention/spec_attention.h"

namespace edge_rt {

// Three ways, which fold the same numbers in the same order:
// - Few rows, one span of keys: some chunks of a kv head are an item, from the queries on. Whoever ends the last item
//   of a kv head folds its chunks.
// - Few rows, many spans: a span of a kv head is an item; its result waits in scratch memory to be folded.
// - Many rows: a block of rows is an item, and folds its spans as it goes.
class AttentionPlan {
 public:
  // The pass without its scratch pointers, but with depths.
  explicit AttentionPlan(const AttentionPass& pass);

  size_t scratch_bytes() const { return scratch_bytes_; }

  // Points the pass into scratch memory of that size.
  void place(void* scratch, AttentionPass* pass);

  // Adds the phases of a pass that lies in scratch memory; plan, kernels and pass must outlive them.
  void add_phases(const SpecAttentionKernels& kernels, const AttentionPass& pass, PhaseList* phases);

 private:
  enum class Way { kChunks, kSpans, kBlocks };

  // Rows [begin, end) of a kv head.
  struct Block {
    int kv;
    int64_t begin, end;
  };

  size_t lay_out(char* base, AttentionPass* pass);
  // Items of phases.
  void append_all(int64_t item, int worker);
  void append_some(int64_t item, int worker);
  void prepare_units(int64_t item, int worker);
  void attend_chunks(int64_t item, int worker);
  void attend_spans(int64_t item, int worker);
  void attend_blocks(int64_t item, int worker);
  void finish_units(int64_t item, int worker);
  void append_rows(int64_t begin, int64_t end) const;
  void prepare_block(const Block& block) const;
  // Appends the rows of the pass whose positions lie in chunks [begin, end), for one kv head.
  void append_chunks(int kv, int64_t begin, int64_t end) const;
  // Joins a block's finished chunks and writes its results.
  void finish_block(const Block& block, int slot) const;
  // The block's keys of a span.
  void attend_span(const Block& block, int64_t span, int slot, const AttentionState& out) const;
  // All spans [begin, end), to the block's results.
  void attend_block(const Block& block, int64_t begin, int64_t end, int slot) const;
  // Joins finished spans and writes a row's results.
  void finish_row(int kv, int64_t row, int slot) const;
  // First and last position of the block's rows.
  struct Positions {
    int64_t low, high;
  };
  Positions positions(const Block& block) const;
  Block block_of(int kv, int64_t index) const;
  AttentionWork work(int slot) const;
  // Memory for an item under way: its worker's, which is in that core's caches, or, beyond a few workers, its own.
  int slot(int64_t items, int64_t item, int worker) const;
  // Span that holds the first position that a row at `position` attends to.
  int64_t first_span(const AttentionPass& pass, int64_t position) const;

  const SpecAttentionKernels* kernels_ = nullptr;
  const AttentionPass* pass_ = nullptr;
  Way way_;
  int64_t block_rows_, blocks_, queries_;           // queries_: of all rows
  int64_t span_begin_, span_end_, group_, groups_;  // spans of the pass; spans of an item; items per block
  int64_t append_rows_, append_items_;
  int64_t units_, unit_share_, unit_items_;   // a unit is a row of a kv head
  int64_t chunk_begin_, chunk_end_, pieces_;  // way kChunks: chunks of the pass; items per block
  int64_t slots_;
  int padded_dim_;
  size_t scratch_bytes_ = 0;
  AttentionWork first_work_{};
  int64_t work_floats_ = 0;  // distance between two slots
  AttentionState chunk_{};   // of slot 0: one chunk,
  AttentionState span_{};    // one span,
  AttentionState state_{};   // and all of them, for the queries of a block
  AttentionState spans_{};   // [spans][queries], if they wait to be folded; way kChunks: [chunks][queries],
  std::atomic<int64_t>* left_ = nullptr;  // and the items of every block that are not done
};

}  // namespace edge_rt
