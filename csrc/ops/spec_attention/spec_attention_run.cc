#include "ops/spec_attention/spec_attention_run.h"

#include <algorithm>
#include <new>

#include "common/own_memory.h"
#include "common/pieces.h"

namespace edge_rt {
namespace {

constexpr int64_t kFewRows = 16;
// Queries of a block: their scores and outputs fit the first-level cache; in passes of many rows more, which share the
// reading of keys and values.
constexpr int64_t kBlockQueries = 48, kManyQueries = 96;
// Items wanted of a phase: claiming one takes a few hundred nanoseconds.
constexpr int64_t kSpanItems = 12;
constexpr int64_t kChunkItems = 9;  // of a phase whose items are chunks, which are short
constexpr int64_t kSmallItems = 6;
constexpr int64_t kMostSpans = 4;  // of an item, so that many threads find work in a long cache
constexpr int64_t kAppendItems = 32;

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Hands units to the kernel together, which takes less time; the last ones when it goes out of scope.
class Appending {
 public:
  Appending(const SpecAttentionKernels& kernels, const AttentionPass& pass) : kernels_(kernels), pass_(pass) {}
  ~Appending() { flush(); }
  Appending(const Appending&) = delete;
  Appending& operator=(const Appending&) = delete;

  void add(int64_t row, int kv) {
    if (pass_.shares_cache) return;
    units_[count_++] = {row, kv};
    if (count_ == kMostAppended) flush();
  }

 private:
  void flush() {
    if (count_ > 0) kernels_.append(pass_, units_, count_);
    count_ = 0;
  }

  const SpecAttentionKernels& kernels_;
  const AttentionPass& pass_;
  AppendUnit units_[kMostAppended];
  int count_ = 0;
};

AttentionState take_state(Pieces& pieces, int64_t queries, int padded_dim) {
  float* peak = pieces.take<float>(queries);
  float* sum = pieces.take<float>(queries);
  return {peak, sum, pieces.take<float>(queries * padded_dim)};
}

AttentionState advance(const AttentionState& state, int64_t queries, int padded_dim) {
  return {state.peak + queries, state.sum + queries, state.output + queries * padded_dim};
}

}  // namespace

AttentionPlan::AttentionPlan(const AttentionPass& pass, int64_t sequences) : padded_dim_(pass.padded_dim) {
  const int64_t of_block = pass.rows > kFewRows ? kManyQueries : kBlockQueries;
  const int64_t most = std::clamp<int64_t>(of_block / pass.group, 1, kMaxBlockRows);
  queries_ = pass.rows * pass.heads;
  // A row of depth 0 attends to the earliest positions, one of the greatest depth to the last.
  span_begin_ = first_span(pass, pass.past);
  const int64_t deepest = *std::max_element(pass.depths, pass.depths + pass.rows);
  span_end_ = (pass.past + deepest) / kKvSpan + 1;
  way_ = pass.rows > kFewRows ? Way::kBlocks : span_end_ - span_begin_ == 1 ? Way::kChunks : Way::kSpans;
  blocks_ = divide_up(pass.rows, most);
  block_rows_ = divide_up(pass.rows, blocks_);  // blocks of like size
  blocks_ = divide_up(pass.rows, block_rows_);
  chunk_begin_ = std::max(span_begin_ * kSpanChunks, pass.first_seen(pass.past) / kKvChunk);
  chunk_end_ = (pass.past + deepest) / kKvChunk + 1;
  choose_items(pass, sequences);
  AttentionPass unused = pass;
  lay_out(nullptr, &unused);
  Slot slot;
  work_bytes_ = lay_out_slot(pass, nullptr, &slot);
}

void AttentionPlan::choose_items(const AttentionPass& pass, int64_t sequences) {
  const int64_t units = pass.kv_heads * blocks_, all_units = units * sequences, spans = span_end_ - span_begin_;
  group_ = std::clamp<int64_t>(spans * all_units / kSpanItems, 1, kMostSpans);
  groups_ = divide_up(spans, group_);
  pieces_ = std::clamp<int64_t>(kChunkItems / all_units, 1, chunk_end_ - chunk_begin_);
  units_ = pass.kv_heads * pass.rows;
  unit_share_ = std::min(divide_up(units_ * sequences, kSmallItems), units_);
  append_rows_ = std::min(divide_up(pass.rows * sequences, kAppendItems), pass.rows);
  std::fill_n(items_, kStages, 0);
  switch (way_) {
    case Way::kChunks:
      // A block alone appends as it goes; several need each other's rows. One item: it is done before another thread
      // has woken up.
      append_rows_ = pass.rows;
      items_[kPrepare] = blocks_ > 1 && !pass.shares_cache ? 1 : 0;
      items_[kAttend] = units * pieces_;
      break;
    case Way::kSpans:
      items_[kPrepare] = items_[kFinish] = divide_up(units_, unit_share_);
      items_[kAttend] = units * groups_;
      break;
    case Way::kBlocks:
      items_[kPrepare] = pass.shares_cache ? 0 : divide_up(pass.rows, append_rows_);
      items_[kAttend] = units;
      break;
  }
}

int64_t AttentionPlan::first_span(const AttentionPass& pass, int64_t position) const {
  return pass.first_seen(position) / kKvSpan;
}

void AttentionPlan::Queries::give_to(AttentionPass* pass) const {
  pass->queries = values;
  pass->query_codes = codes;
  pass->query_scales = scales;
  pass->query_sums = sums;
}

AttentionPlan::Queries AttentionPlan::take_queries(Pieces& pieces, const AttentionPass& pass, int64_t count) const {
  Queries queries{};
  queries.values = pieces.take<float>(count * padded_dim_);
  const int64_t coded = pass.has_query_codes() ? count : 0;
  queries.codes = pieces.take<int8_t>(coded * padded_codes(pass.head_dim));
  queries.scales = pieces.take<float>(coded * pass.groups());
  queries.sums = pieces.take<int32_t>(coded * pass.groups());
  return queries;
}

void AttentionPlan::lay_out(char* own, AttentionPass* pass) {
  Pieces pieces(own);
  pass->first_query = 0;
  if (way_ != Way::kChunks) take_queries(pieces, *pass, queries_).give_to(pass);
  if (way_ == Way::kSpans) spans_ = take_state(pieces, (span_end_ - span_begin_) * queries_, padded_dim_);
  if (way_ == Way::kChunks) {
    spans_ = take_state(pieces, (chunk_end_ - chunk_begin_) * queries_, padded_dim_);
    left_ = pieces.take<std::atomic<int64_t>>(pass->kv_heads * blocks_);
  }
  pass_bytes_ = pieces.used();
}

size_t AttentionPlan::lay_out_slot(const AttentionPass& pass, char* memory, Slot* slot) const {
  Pieces pieces(memory);
  const int64_t queries = block_rows_ * pass.group;
  if (way_ == Way::kChunks) slot->queries = take_queries(pieces, pass, queries);
  slot->work.scores = pieces.take<float>(queries * kKvChunk);
  const int64_t row_words = std::max<int64_t>(padded_dim_, padded_codes(pass.head_dim) / 4);
  slot->work.rows = pieces.take<float>(kKvChunk * row_words);
  slot->work.across = pieces.take<float>(kKvTile * row_words);
  slot->work.scales = pieces.take<float>(2 * kKvTile * pass.groups());
  for (AttentionState* state : {&slot->chunk, &slot->span, &slot->all})
    *state = take_state(pieces, queries, padded_dim_);
  return pieces.used();
}

void AttentionPlan::place(char* own, const SpecAttentionKernels& kernels, AttentionPass* pass) {
  lay_out(own, pass);
  kernels_ = &kernels;
  pass_ = pass;
  if (way_ != Way::kChunks) return;
  for (int64_t i = 0; i < pass->kv_heads * blocks_; ++i) new (left_ + i) std::atomic<int64_t>(pieces_);
}

void AttentionPlan::run(Stage stage, int64_t item, char* memory) {
  if (stage == kPrepare) {
    if (way_ == Way::kSpans) {
      prepare_units(item);
    } else {
      append_some(item);
    }
    return;
  }
  Slot slot{};
  lay_out_slot(*pass_, memory, &slot);
  switch (way_) {
    case Way::kChunks:
      if (stage == kAttend) attend_chunks(item, slot);
      break;
    case Way::kSpans:
      if (stage == kAttend) attend_spans(item, slot);
      if (stage == kFinish) finish_units(item, slot);
      break;
    case Way::kBlocks:
      if (stage == kAttend) attend_blocks(item, slot);
      break;
  }
}

AttentionPlan::Block AttentionPlan::block_of(int kv, int64_t index) const {
  return {kv, index * block_rows_, std::min((index + 1) * block_rows_, pass_->rows)};
}

AttentionPlan::Positions AttentionPlan::positions(const Block& block) const {
  const auto depths = std::minmax_element(pass_->depths + block.begin, pass_->depths + block.end);
  return {pass_->past + *depths.first, pass_->past + *depths.second};
}

void AttentionPlan::append_rows(int64_t begin, int64_t end) const {
  Appending appending(*kernels_, *pass_);
  for (int kv = 0; kv < pass_->kv_heads; ++kv) {
    for (int64_t row = begin; row < end; ++row) appending.add(row, kv);
  }
}

void AttentionPlan::append_chunks(int kv, int64_t begin, int64_t end) const {
  Appending appending(*kernels_, *pass_);
  for (int64_t row = 0; row < pass_->rows; ++row) {
    const int64_t chunk = (pass_->past + pass_->depths[row]) / kKvChunk;
    if (chunk >= begin && chunk < end) appending.add(row, kv);
  }
}

void AttentionPlan::prepare_block(const Block& block) const {
  for (int64_t row = block.begin; row < block.end; ++row) kernels_->prepare_queries(*pass_, row, block.kv);
}

void AttentionPlan::attend_span(const Block& block, int64_t span, const Slot& slot, const AttentionState& out) const {
  const int64_t queries = (block.end - block.begin) * pass_->group;
  const Positions at = positions(block);
  const int64_t begin = std::max(span * kSpanChunks, pass_->first_seen(at.low) / kKvChunk);
  const int64_t end = std::min((span + 1) * kSpanChunks, at.high / kKvChunk + 1);
  kernels_->begin(padded_dim_, queries, out);
  for (int64_t chunk = begin; chunk < end; ++chunk) {
    kernels_->attend_chunk(*pass_, block.kv, block.begin, block.end, chunk, slot.work, slot.chunk, &out);
  }
}

void AttentionPlan::attend_block(const Block& block, int64_t begin, int64_t end, const Slot& slot) const {
  const int64_t queries = (block.end - block.begin) * pass_->group;
  kernels_->begin(padded_dim_, queries, slot.all);
  for (int64_t span = begin; span < end; ++span) {
    attend_span(block, span, slot, slot.span);
    kernels_->fold(padded_dim_, queries, slot.span, slot.all);
  }
  kernels_->finish(*pass_, block.kv, block.begin, block.end, slot.all);
}

void AttentionPlan::finish_row(int kv, int64_t row, const Slot& slot) const {
  const int64_t position = pass_->past + pass_->depths[row], at = pass_->query_index(kv, row);
  kernels_->begin(padded_dim_, pass_->group, slot.all);
  for (int64_t span = first_span(*pass_, position); span <= position / kKvSpan; ++span) {
    kernels_->fold(padded_dim_, pass_->group, advance(spans_, (span - span_begin_) * queries_ + at, padded_dim_),
                   slot.all);
  }
  kernels_->finish(*pass_, kv, row, row + 1, slot.all);
}

void AttentionPlan::append_some(int64_t item) {
  append_rows(item * append_rows_, std::min((item + 1) * append_rows_, pass_->rows));
}

void AttentionPlan::prepare_units(int64_t item) {
  Appending appending(*kernels_, *pass_);
  for (int64_t unit = item * unit_share_; unit < std::min((item + 1) * unit_share_, units_); ++unit) {
    const int kv = static_cast<int>(unit / pass_->rows);  // rows of a kv head share its constants
    appending.add(unit % pass_->rows, kv);
    kernels_->prepare_queries(*pass_, unit % pass_->rows, kv);
  }
}

void AttentionPlan::attend_chunks(int64_t item, const Slot& slot) {
  const int64_t heads = pass_->kv_heads, units = heads * blocks_, chunks = chunk_end_ - chunk_begin_;
  const int64_t unit = item % units, piece = item / units;
  const Block block = block_of(static_cast<int>(unit % heads), unit / heads);
  const int64_t begin = chunk_begin_ + piece * chunks / pieces_;
  const int64_t end = chunk_begin_ + (piece + 1) * chunks / pieces_;
  kernels_->fetch_keys(*pass_, block.kv, begin);
  if (blocks_ == 1) append_chunks(block.kv, begin, end);
  // Queries of its own are nearer than those of another thread.
  AttentionPass pass = *pass_;
  slot.queries.give_to(&pass);
  pass.first_query = pass.query_index(block.kv, block.begin);
  for (int64_t row = block.begin; row < block.end; ++row) kernels_->prepare_queries(pass, row, block.kv);
  for (int64_t chunk = begin; chunk < end; ++chunk) {
    const int64_t at = (chunk - chunk_begin_) * queries_ + pass.first_query;
    kernels_->attend_chunk(pass, block.kv, block.begin, block.end, chunk, slot.work, advance(spans_, at, padded_dim_),
                           nullptr);
  }
  if (left_[unit].fetch_sub(1, std::memory_order_acq_rel) == 1) finish_block(block, slot);
}

void AttentionPlan::finish_block(const Block& block, const Slot& slot) const {
  const int64_t queries = (block.end - block.begin) * pass_->group, first = pass_->query_index(block.kv, block.begin);
  kernels_->begin(padded_dim_, queries, slot.span);
  for (int64_t chunk = 0; chunk < chunk_end_ - chunk_begin_; ++chunk) {
    kernels_->fold(padded_dim_, queries, advance(spans_, chunk * queries_ + first, padded_dim_), slot.span);
  }
  kernels_->begin(padded_dim_, queries, slot.all);
  kernels_->fold(padded_dim_, queries, slot.span, slot.all);
  kernels_->finish(*pass_, block.kv, block.begin, block.end, slot.all);
}

void AttentionPlan::attend_spans(int64_t item, const Slot& slot) {
  const int64_t heads = pass_->kv_heads;
  const Block block = block_of(static_cast<int>(item % heads), item / heads % blocks_);
  const int64_t begin = span_begin_ + item / heads / blocks_ * group_, end = std::min(begin + group_, span_end_);
  const int64_t at = pass_->query_index(block.kv, block.begin);
  kernels_->fetch_keys(*pass_, block.kv, begin * kSpanChunks);
  for (int64_t span = begin; span < end; ++span) {
    attend_span(block, span, slot, advance(spans_, (span - span_begin_) * queries_ + at, padded_dim_));
  }
}

void AttentionPlan::attend_blocks(int64_t item, const Slot& slot) {
  const int64_t heads = pass_->kv_heads;
  // The last rows see the most keys: begun first, they leave no thread alone at the end.
  const Block block = block_of(static_cast<int>(item % heads), blocks_ - 1 - item / heads);
  const Positions at = positions(block);
  prepare_block(block);
  attend_block(block, first_span(*pass_, at.low), at.high / kKvSpan + 1, slot);
}

void AttentionPlan::finish_units(int64_t item, const Slot& slot) {
  const int64_t heads = pass_->kv_heads;
  for (int64_t unit = item * unit_share_; unit < std::min((item + 1) * unit_share_, units_); ++unit) {
    finish_row(static_cast<int>(unit % heads), unit / heads, slot);
  }
}

AttentionPlans::AttentionPlans(AttentionPass* passes, int64_t count) : passes_(passes) {
  plans_.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const AttentionPlan& plan = plans_.emplace_back(passes[i], count);
    own_bytes_ += plan.pass_bytes();
    slot_bytes_ = std::max(slot_bytes_, plan.work_bytes());
    for (int stage = 0; stage < AttentionPlan::kStages; ++stage) {
      items_[stage] += plan.items(static_cast<AttentionPlan::Stage>(stage));
    }
  }
}

void AttentionPlans::add_phases(void* scratch, const SpecAttentionKernels& kernels, PhaseList* phases) {
  char* own = static_cast<char*>(scratch);
  of_caller_ = own + own_bytes_;
  for (size_t i = 0; i < plans_.size(); ++i) {
    plans_[i].place(own, kernels, &passes_[i]);
    own += plans_[i].pass_bytes();
  }
  add_phase<AttentionPlan::kPrepare>(phases);
  add_phase<AttentionPlan::kAttend>(phases);
  add_phase<AttentionPlan::kFinish>(phases);
}

template <AttentionPlan::Stage stage>
void AttentionPlans::add_phase(PhaseList* phases) {
  if (items_[stage] > 0) phases->add(make_phase_of<&AttentionPlans::run<stage>>(items_[stage], this));
}

template <AttentionPlan::Stage stage>
void AttentionPlans::run(int64_t item, int worker) {
  // The caller may be any thread, and any number of them; helpers stay, so their memory is in their cores' caches.
  char* memory = worker == 0 ? of_caller_ : reinterpret_cast<char*>(own_memory(slot_bytes_));
  if (memory == nullptr) {
    failed_.store(true, std::memory_order_relaxed);
    return;
  }
  AttentionPlan* plan = plans_.data();
  for (; item >= plan->items(stage); ++plan) item -= plan->items(stage);
  plan->run(stage, item, memory);
}

}  // namespace edge_rt
