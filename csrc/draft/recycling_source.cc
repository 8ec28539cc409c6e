#include "draft/recycling_source.h"

#include <algorithm>

namespace edge_rt::draft {
namespace {

constexpr int32_t kNone = -1;

}  // namespace

size_t LikelyTable::bucket(const int32_t* key) const {
  uint64_t hash = 0;
  for (int i = 0; i < order_; ++i) hash = (hash ^ static_cast<uint32_t>(key[i])) * 0x9E3779B97F4A7C15u;
  return static_cast<size_t>(hash >> 32) & (buckets_.size() - 1);
}

int32_t LikelyTable::index_of(const int32_t* key) const {
  if (entries_.empty()) return kNone;
  int32_t index = buckets_[bucket(key)];
  while (index != kNone && !std::equal(key, key + order_, entries_[index].key)) index = entries_[index].chained;
  return index;
}

const LikelyTable::Entry* LikelyTable::find(const int32_t* key) const {
  const int32_t index = index_of(key);
  return index == kNone ? nullptr : &entries_[index];
}

void LikelyTable::link(int32_t index) {
  Entry& entry = entries_[index];
  entry.older = newest_;
  entry.newer = kNone;
  (newest_ == kNone ? oldest_ : entries_[newest_].newer) = index;
  newest_ = index;
}

void LikelyTable::unlink(int32_t index) {
  const Entry& entry = entries_[index];
  (entry.older == kNone ? oldest_ : entries_[entry.older].newer) = entry.newer;
  (entry.newer == kNone ? newest_ : entries_[entry.newer].older) = entry.older;
}

void LikelyTable::grow_table() {
  std::vector<int32_t>().swap(buckets_);
  size_t size = 16;
  while (size < 2 * entries_.size()) size *= 2;
  buckets_.assign(size, kNone);
  for (size_t index = 0; index < entries_.size(); ++index) {
    int32_t& first = buckets_[bucket(entries_[index].key)];
    entries_[index].chained = first;
    first = static_cast<int32_t>(index);
  }
}

void LikelyTable::keep(const int32_t* key, const int32_t* tokens, const uint8_t* levels, int count) {
  if (max_contexts_ == 0) return;
  int32_t index = index_of(key);
  const bool is_known = index != kNone, is_full = entries_.size() >= static_cast<size_t>(max_contexts_);
  if (is_known) {
    unlink(index);
  } else if (is_full) {
    index = oldest_;
    unlink(index);
    int32_t* at = &buckets_[bucket(entries_[index].key)];
    while (*at != index) at = &entries_[*at].chained;
    *at = entries_[index].chained;
  } else {
    index = static_cast<int32_t>(entries_.size());
    entries_.push_back(Entry{});
  }
  Entry& entry = entries_[index];
  std::copy(key, key + order_, entry.key);
  std::copy(tokens, tokens + count, entry.tokens);
  std::copy(levels, levels + count, entry.levels);
  entry.count = count;
  link(index);
  if (is_known) return;
  if (entries_.size() > buckets_.size()) {
    grow_table();
    return;
  }
  int32_t& first = buckets_[bucket(key)];
  entry.chained = first;
  first = index;
}

RecyclingSource::RecyclingSource(int max_order, int max_contexts, float least, const float* bounds)
    : max_order_(max_order), max_contexts_(max_contexts), least_(least) {
  std::copy(bounds, bounds + kRecyclingLevels - 1, bounds_);
  tables_->reserve(max_order);
  for (int order = 1; order <= max_order; ++order) tables_->emplace_back(order, max_contexts);
}

Cursor RecyclingSource::behind(const Cursor& cursor, int32_t token) const {
  const int32_t* tokens = cursor.part + 1;
  const int count = std::min(cursor.part[0], max_order_ - 1), skipped = cursor.part[0] - count;
  Cursor next;
  next.part[0] = count + 1;
  std::copy(tokens + skipped, tokens + skipped + count, next.part + 1);
  next.part[1 + count] = token;
  return next;
}

void RecyclingSource::begin(const int32_t* tokens, size_t count) {
  context_ = Cursor{};
  const size_t last = std::min<size_t>(count, max_order_);
  extend(tokens + (count - last), last);
}

void RecyclingSource::extend(const int32_t* tokens, size_t count) {
  for (size_t i = 0; i < count; ++i) context_ = behind(context_, tokens[i]);
}

void RecyclingSource::observe(const Step& step) {
  if (step.top_ids == nullptr) return;
  // Contexts before row 0, 1, ...: that of a node goes on from its parent's.
  std::vector<Cursor> contexts(1);
  contexts.reserve(step.nodes + 1);
  for (int i = 0; i < step.context_size; ++i) contexts[0] = behind(contexts[0], step.context[i]);
  for (int node = 0; node < step.nodes; ++node) {
    contexts.push_back(behind(contexts[step.parents[node] - kRoot], step.tokens[node]));
  }
  for (int row = 0; row <= step.nodes; ++row) {
    const int32_t* ids = step.top_ids + static_cast<size_t>(row) * step.width;
    const float* logits = step.top_logits + static_cast<size_t>(row) * step.width;
    int count = 0;
    uint8_t levels[kMaxLikely];
    for (int i = 0; i < std::min(step.width, kMaxLikely); ++i) {
      const float share = logits[i] - step.log_sum_exp[row];
      count += share >= least_;
      // Not a number counts as the highest level, as numpy sorts it.
      levels[i] = 0;
      for (const float bound : bounds_) levels[i] += !(share < bound);
    }
    if (count == 0) continue;
    const Cursor& context = contexts[row];
    const int32_t* end = context.part + 1 + context.part[0];
    for (int order = 1; order <= context.part[0]; ++order) (*tables_)[order - 1].keep(end - order, ids, levels, count);
  }
}

bool RecyclingSource::root(Cursor* cursor) const {
  *cursor = context_;
  return context_.part[0] > 0;
}

int RecyclingSource::children(const Cursor& cursor, Guess* guesses) const {
  Cursor at = cursor;
  at.part[0] = std::clamp(at.part[0], 0, max_order_);
  const int32_t* end = at.part + 1 + at.part[0];
  for (int order = at.part[0]; order > 0; --order) {
    const LikelyTable::Entry* entry = (*tables_)[order - 1].find(end - order);
    if (entry == nullptr) continue;
    const int base = (order - 1) * kRecyclingRanks * kRecyclingLevels;
    for (int i = 0; i < entry->count; ++i) {
      const int kind = base + std::min(i, kRecyclingRanks - 1) * kRecyclingLevels + entry->levels[i];
      guesses[i] = Guess{entry->tokens[i], kind, behind(at, entry->tokens[i])};
    }
    return entry->count;
  }
  return 0;
}

size_t RecyclingSource::memory_bytes() const {
  size_t bytes = 0;
  for (const LikelyTable& table : *tables_) bytes += table.memory_bytes();
  return bytes;
}

}  // namespace edge_rt::draft
