#include "ops/spec_attention/spec_attention_run.h"

#include <algorithm>

namespace edge_rt {
namespace {

constexpr int64_t kSplitRows = 16;     // up to here chunks are items
constexpr int64_t kBlockQueries = 48;  // queries of a block: their scores and outputs fit the first-level cache
constexpr int64_t kSplitItems = 48;    // items wanted of a split pass
constexpr int64_t kPrepareItems = 32;

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Hands out pieces of memory on 64-byte boundaries; with a null base it only counts.
class Pieces {
 public:
  explicit Pieces(char* base) : base_(base) {}

  template <class T>
  T* take(int64_t count) {
    T* piece = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + used_);
    used_ += (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
    return piece;
  }
  size_t used() const { return used_; }

 private:
  char* base_;
  size_t used_ = 0;
};

AttentionState take_state(Pieces& pieces, int64_t queries, int padded_dim) {
  float* peak = pieces.take<float>(queries);
  float* sum = pieces.take<float>(queries);
  return {peak, sum, pieces.take<float>(queries * padded_dim)};
}

AttentionState advance(const AttentionState& state, int64_t queries, int padded_dim) {
  return {state.peak + queries, state.sum + queries, state.output + queries * padded_dim};
}

AttentionState shift(const AttentionState& state, int64_t floats) {
  return {state.peak + floats, state.sum + floats, state.output + floats};
}

}  // namespace

AttentionPlan::AttentionPlan(const AttentionPass& pass) : padded_dim_(pass.padded_dim) {
  split_ = pass.rows <= kSplitRows;
  const int64_t most = std::clamp<int64_t>(kBlockQueries / pass.group, 1, kMaxBlockRows);
  blocks_ = divide_up(pass.rows, most);
  block_rows_ = divide_up(pass.rows, blocks_);  // blocks of like size, so that threads end together
  blocks_ = divide_up(pass.rows, block_rows_);
  queries_ = pass.rows * pass.heads;
  // A row of depth 0 attends to the earliest positions, one of the greatest depth to the last.
  chunk_begin_ = first_chunk(pass, pass.past);
  chunk_end_ = (pass.past + *std::max_element(pass.depths, pass.depths + pass.rows)) / kKvChunk + 1;
  const int64_t chunks = chunk_end_ - chunk_begin_;
  group_ = split_ ? divide_up(chunks * pass.kv_heads * blocks_, kSplitItems) : chunks;
  groups_ = divide_up(chunks, group_);
  prepare_rows_ = divide_up(pass.rows, kPrepareItems);
  prepare_items_ = divide_up(pass.rows, prepare_rows_);
  const int64_t items = pass.kv_heads * blocks_ * groups_, folds = split_ ? pass.kv_heads * pass.rows : 0;
  const int64_t prepares = split_ ? pass.rows : prepare_items_;
  workers_ = std::min<int64_t>(kMaxWorkers, std::max({items, folds, prepares}));
  AttentionPass unused = pass;
  scratch_bytes_ = lay_out(nullptr, &unused);
}

int64_t AttentionPlan::first_chunk(const AttentionPass& pass, int64_t position) const {
  return pass.window > 0 ? std::max<int64_t>(position + 1 - pass.window, 0) / kKvChunk : 0;
}

size_t AttentionPlan::lay_out(char* base, AttentionPass* pass) {
  Pieces pieces(base);
  const int codes = padded_codes(pass->head_dim), groups = kv_groups(pass->head_dim);
  pass->queries = pieces.take<float>(queries_ * padded_dim_);
  const int64_t coded = pass->format == kKvInt8 ? queries_ : 0;
  pass->query_codes = pieces.take<int8_t>(coded * codes);
  pass->query_scales = pieces.take<float>(coded * groups);
  const int64_t block_queries = block_rows_ * pass->group;
  if (split_) {
    partial_ = take_state(pieces, (chunk_end_ - chunk_begin_) * queries_, padded_dim_);
    state_ = take_state(pieces, queries_, padded_dim_);
  }
  const size_t shared = pieces.used();
  first_work_.scores = pieces.take<float>(block_queries * kKvChunk);
  const int64_t row_words = std::max<int64_t>(padded_dim_, codes / 4);
  first_work_.rows = pieces.take<float>(kKvTile * row_words);
  first_work_.across = pieces.take<float>(kKvTile * row_words);
  first_work_.scales = pieces.take<float>(kKvTile * groups);
  if (!split_) {
    partial_ = take_state(pieces, block_queries, padded_dim_);
    state_ = take_state(pieces, block_queries, padded_dim_);
  }
  const size_t one = pieces.used() - shared;
  work_floats_ = static_cast<int64_t>(one / sizeof(float));
  return shared + one * static_cast<size_t>(workers_);
}

void AttentionPlan::place(void* scratch, AttentionPass* pass) { lay_out(static_cast<char*>(scratch), pass); }

AttentionWork AttentionPlan::work(int worker) const {
  const int64_t offset = worker * work_floats_;
  return {first_work_.scores + offset, first_work_.rows + offset, first_work_.across + offset,
          first_work_.scales + offset};
}

void AttentionPlan::run(const SpecAttentionKernels& kernels, const AttentionPass& pass,
                        const Executor& executor) const {
  if (split_) {
    run_split(kernels, pass, executor);
  } else {
    run_blocks(kernels, pass, executor);
  }
}

void AttentionPlan::run_split(const SpecAttentionKernels& kernels, const AttentionPass& pass,
                              const Executor& executor) const {
  const int64_t heads = pass.kv_heads;
  auto prepare = [&](int64_t row) { kernels.prepare_row(pass, row); };
  auto attend = [&](int64_t item, int worker) {
    const int kv = static_cast<int>(item % heads);
    const int64_t block = item / heads % blocks_, group = item / heads / blocks_;
    const int64_t begin = block * block_rows_, end = std::min(begin + block_rows_, pass.rows);
    const int64_t last = std::min(chunk_begin_ + (group + 1) * group_, chunk_end_);
    for (int64_t chunk = chunk_begin_ + group * group_; chunk < last; ++chunk) {
      const int64_t at = (chunk - chunk_begin_) * queries_ + pass.query_index(kv, begin);
      kernels.attend_chunk(pass, kv, begin, end, chunk, work(worker), advance(partial_, at, padded_dim_));
    }
  };
  auto fold = [&](int64_t item) {
    const int kv = static_cast<int>(item % heads);
    const int64_t row = item / heads, position = pass.past + pass.depths[row], at = pass.query_index(kv, row);
    const AttentionState state = advance(state_, at, padded_dim_);
    kernels.begin(padded_dim_, pass.group, state);
    for (int64_t chunk = first_chunk(pass, position); chunk <= position / kKvChunk; ++chunk) {
      kernels.fold(padded_dim_, pass.group, advance(partial_, (chunk - chunk_begin_) * queries_ + at, padded_dim_),
                   state);
    }
    kernels.finish(pass, kv, row, row + 1, state);
  };
  run_phases(executor, {make_phase(pass.rows, prepare), make_phase(heads * blocks_ * groups_, attend),
                        make_phase(heads * pass.rows, fold)});
}

void AttentionPlan::run_blocks(const SpecAttentionKernels& kernels, const AttentionPass& pass,
                               const Executor& executor) const {
  const int64_t heads = pass.kv_heads;
  auto prepare = [&](int64_t item) {
    const int64_t end = std::min((item + 1) * prepare_rows_, pass.rows);
    for (int64_t row = item * prepare_rows_; row < end; ++row) kernels.prepare_row(pass, row);
  };
  auto attend = [&](int64_t item, int worker) {
    const int kv = static_cast<int>(item % heads);
    // The last rows see the most keys: begun first, they leave no thread alone at the end.
    const int64_t block = blocks_ - 1 - item / heads;
    const int64_t begin = block * block_rows_, end = std::min(begin + block_rows_, pass.rows);
    const int64_t queries = (end - begin) * pass.group;
    int64_t low = pass.past + pass.depths[begin], high = low;
    for (int64_t row = begin; row < end; ++row) {
      low = std::min<int64_t>(low, pass.past + pass.depths[row]);
      high = std::max<int64_t>(high, pass.past + pass.depths[row]);
    }
    const AttentionState partial = shift(partial_, worker * work_floats_);
    const AttentionState state = shift(state_, worker * work_floats_);
    kernels.begin(padded_dim_, queries, state);
    for (int64_t chunk = first_chunk(pass, low); chunk <= high / kKvChunk; ++chunk) {
      kernels.attend_chunk(pass, kv, begin, end, chunk, work(worker), partial);
      kernels.fold(padded_dim_, queries, partial, state);
    }
    kernels.finish(pass, kv, begin, end, state);
  };
  run_phases(executor, {make_phase(prepare_items_, prepare), make_phase(heads * blocks_, attend)});
}

}  // namespace edge_rt
