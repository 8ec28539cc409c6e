// How checked passes are spread over threads; knows nothing of ONNX Runtime.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/parallel.h"
#include "common/pieces.h"
#include "ops/spec_attention/spec_attention.h"

namespace edge_rt {

// Three ways, which fold the same numbers in the same order:
// - Few rows, one span of keys: some chunks of a kv head are an item, from the queries on. Whoever ends the last item
//   of a kv head folds its chunks.
// - Few rows, many spans: a span of a kv head is an item; its result waits in scratch memory to be folded.
// - Many rows: a block of rows is an item, and folds its spans as it goes.
class AttentionPlan {
 public:
  // What items of all sequences do before items of the next stage begin.
  enum Stage : int { kPrepare, kAttend, kFinish, kStages };

  // The pass without its scratch pointers, but with depths; one of `sequences`, which share out the items wanted.
  AttentionPlan(const AttentionPass& pass, int64_t sequences);

  int64_t items(Stage stage) const { return items_[stage]; }
  // Scratch memory of the pass, and of one item under way.
  size_t pass_bytes() const { return pass_bytes_; }
  size_t work_bytes() const { return work_bytes_; }

  // Points the pass into its scratch memory. All must outlive the plan.
  void place(char* own, const SpecAttentionKernels& kernels, AttentionPass* pass);

  // `memory` is the item's, `work_bytes` of it.
  void run(Stage stage, int64_t item, char* memory);

 private:
  enum class Way { kChunks, kSpans, kBlocks };

  // Rows [begin, end) of a kv head.
  struct Block {
    int kv;
    int64_t begin, end;
  };

  // Where queries lie, rotated and coded.
  struct Queries {
    float* values;
    int8_t* codes;
    float* scales;
    int32_t* sums;

    void give_to(AttentionPass* pass) const;
  };

  // Memory of an item under way.
  struct Slot {
    Queries queries;  // way kChunks: of the block
    AttentionWork work;
    AttentionState chunk, span, all;  // of the block's queries: one chunk, one span, and all of them
  };

  void choose_items(const AttentionPass& pass, int64_t sequences);
  Queries take_queries(Pieces& pieces, const AttentionPass& pass, int64_t count) const;
  void lay_out(char* own, AttentionPass* pass);
  // Returns the bytes.
  size_t lay_out_slot(const AttentionPass& pass, char* memory, Slot* slot) const;
  // Items of stages.
  void append_some(int64_t item);
  void prepare_units(int64_t item);
  void attend_chunks(int64_t item, const Slot& slot);
  void attend_spans(int64_t item, const Slot& slot);
  void attend_blocks(int64_t item, const Slot& slot);
  void finish_units(int64_t item, const Slot& slot);
  void append_rows(int64_t begin, int64_t end) const;
  void prepare_block(const Block& block) const;
  // Appends the rows of the pass whose positions lie in chunks [begin, end), for one kv head.
  void append_chunks(int kv, int64_t begin, int64_t end) const;
  // Joins a block's finished chunks and writes its results.
  void finish_block(const Block& block, const Slot& slot) const;
  // The block's keys of a span.
  void attend_span(const Block& block, int64_t span, const Slot& slot, const AttentionState& out) const;
  // All spans [begin, end), to the block's results.
  void attend_block(const Block& block, int64_t begin, int64_t end, const Slot& slot) const;
  // Joins finished spans and writes a row's results.
  void finish_row(int kv, int64_t row, const Slot& slot) const;
  // First and last position of the block's rows.
  struct Positions {
    int64_t low, high;
  };
  Positions positions(const Block& block) const;
  Block block_of(int kv, int64_t index) const;
  // Span that holds the first position that a row at `position` attends to.
  int64_t first_span(const AttentionPass& pass, int64_t position) const;

  const SpecAttentionKernels* kernels_ = nullptr;
  const AttentionPass* pass_ = nullptr;
  Way way_;
  int64_t block_rows_, blocks_, queries_;           // queries_: of all rows
  int64_t span_begin_, span_end_, group_, groups_;  // spans of the pass; spans of an item; items per block
  int64_t append_rows_;
  int64_t units_, unit_share_;                // a unit is a row of a kv head
  int64_t chunk_begin_, chunk_end_, pieces_;  // way kChunks: chunks of the pass; items per block
  int64_t items_[kStages];
  int padded_dim_;
  size_t pass_bytes_ = 0, work_bytes_ = 0;
  AttentionState spans_{};  // [spans][queries], if they wait to be folded; way kChunks: [chunks][queries],
  std::atomic<int64_t>* left_ = nullptr;  // and the items of every block that are not done
};

// The plans of a run's sequences: their items are numbered through, in as many phases as one sequence has, and all use
// the same memory for items under way.
class AttentionPlans {
 public:
  // The passes must outlive the plans, and stay where they are.
  AttentionPlans(AttentionPass* passes, int64_t count);

  // Of the passes, and of the caller's item under way; helpers have memory of their own for theirs.
  size_t scratch_bytes() const { return own_bytes_ + slot_bytes_; }

  // Points the passes into scratch memory of that size and adds their phases; plans and kernels must outlive them.
  void add_phases(void* scratch, const SpecAttentionKernels& kernels, PhaseList* phases);

  // Whether a thread had no memory.
  bool failed() const { return failed_.load(std::memory_order_relaxed); }

 private:
  template <AttentionPlan::Stage stage>
  void run(int64_t item, int worker);
  template <AttentionPlan::Stage stage>
  void add_phase(PhaseList* phases);

  AttentionPass* passes_;
  std::vector<AttentionPlan> plans_;
  int64_t items_[AttentionPlan::kStages] = {};
  size_t own_bytes_ = 0, slot_bytes_ = 0;
  char* of_caller_ = nullptr;
  std::atomic<bool> failed_{false};
};

}  // namespace edge_rt
