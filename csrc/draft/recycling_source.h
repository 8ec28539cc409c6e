// Token recycling: the tokens that the model found likely the last time it saw the same context; equals
// RecyclingSource of tests/reference/recycling.py.
#pragma once

#include <memory>
#include <vector>

#include "draft/source.h"

namespace edge_rt::draft {

constexpr int kMaxOrder = 3;
constexpr int kMaxLikely = 8;
constexpr int kMostContexts = 1 << 24;
constexpr int kRecyclingRanks = 3;
constexpr int kRecyclingLevels = 8;

// Contexts of one length and the likely tokens after them; the ones not seen for longest are dropped.
class LikelyTable {
 public:
  struct Entry {
    int32_t key[kMaxOrder];
    // Entries seen before and after this one, and the next of the same bucket.
    int32_t older, newer, chained;
    int32_t tokens[kMaxLikely];
    uint8_t levels[kMaxLikely];
    int32_t count;
  };

  LikelyTable(int order, int max_contexts) : order_(order), max_contexts_(max_contexts) {
    entries_.reserve(max_contexts);
  }

  void keep(const int32_t* key, const int32_t* tokens, const uint8_t* levels, int count);
  // Null: the context is not known.
  const Entry* find(const int32_t* key) const;
  size_t size() const { return entries_.size(); }
  size_t memory_bytes() const { return used_bytes(entries_) + bytes_of(buckets_); }

 private:
  size_t bucket(const int32_t* key) const;
  int32_t index_of(const int32_t* key) const;
  void link(int32_t index);
  void unlink(int32_t index);
  void grow_table();

  int order_, max_contexts_;
  std::vector<Entry> entries_;
  std::vector<int32_t> buckets_;
  int32_t oldest_ = -1, newest_ = -1;
};

// A cursor is the last tokens, at most `max_order`: their number, and the tokens themselves.
class RecyclingSource : public Source {
 public:
  // `max_order` from 1 to kMaxOrder, `max_contexts` from 0 to kMostContexts. `bounds`: log probabilities at which the
  // levels above the first begin, after that of the least likely token that is kept.
  RecyclingSource(int max_order, int max_contexts, float least, const float* bounds);

  void begin(const int32_t* tokens, size_t count) override;
  void extend(const int32_t* tokens, size_t count) override;
  void observe(const Step& step) override;
  bool root(Cursor* cursor) const override;
  int children(const Cursor& cursor, Guess* guesses) const override;
  size_t memory_bytes() const override;

 private:
  Cursor behind(const Cursor& cursor, int32_t token) const;

  int max_order_, max_contexts_;
  float least_;
  float bounds_[kRecyclingLevels - 1];
  // One for each order; copies of a source share them, each with a text of its own.
  std::shared_ptr<std::vector<LikelyTable>> tables_ = std::make_shared<std::vector<LikelyTable>>();
  Cursor context_;
};

}  // namespace edge_rt::draft
