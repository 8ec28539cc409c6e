// What guesses tokens: the interface of sources, as edge_rt/runtime/speculation/source.py describes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace edge_rt::draft {

// Parent of the nodes that follow the last known token.
constexpr int32_t kRoot = -1;
// Most guesses that a source returns for one cursor; what is beyond is left out.
constexpr int kMaxGuesses = 64;
// Known tokens before a draft that sources receive with a step's outputs.
constexpr int kContextTokens = 4;

// A place in the text or the draft, as a source sees it. What the numbers mean is the source's own affair.
struct Cursor {
  int32_t part[4] = {0, 0, 0, 0};
};

struct Guess {
  int32_t token;
  int32_t kind;
  Cursor behind;
};

// What a step verified and computed. `parents[i]` is an earlier node or kRoot; rows are one more than nodes.
struct Step {
  int nodes;
  const int32_t* tokens;
  const int32_t* parents;
  // The last known tokens before the draft, at most kContextTokens.
  const int32_t* context;
  int context_size;
  // The most likely tokens of every row, `[nodes + 1, width]`, and `[nodes + 1]`; null: not computed.
  const int32_t* top_ids;
  const float* top_logits;
  const float* log_sum_exp;
  int width;
};

class Source {
 public:
  virtual ~Source() = default;

  // Starts a generation with these known tokens; what was learned from others is kept.
  virtual void begin(const int32_t* tokens, size_t count) = 0;
  // Adds emitted tokens.
  virtual void extend(const int32_t* tokens, size_t count) = 0;
  // Learns from a step, before its tokens are added.
  virtual void observe(const Step&) {}
  // The cursor at the end of the known tokens; false: nothing can be guessed there or behind it.
  virtual bool root(Cursor* cursor) const = 0;
  // The tokens that may follow, at most kMaxGuesses, the most promising first; they differ. Returns their number.
  virtual int children(const Cursor& cursor, Guess* guesses) const = 0;
  virtual size_t memory_bytes() const = 0;
};

// Bytes of a vector's memory.
template <typename T>
size_t bytes_of(const std::vector<T>& items) {
  return items.capacity() * sizeof(T);
}

// The same of a table that reserved its bound when it was made: pages that are not written take no memory.
template <typename T>
size_t used_bytes(const std::vector<T>& items) {
  return items.size() * sizeof(T);
}

// Makes room for `count` more items by a quarter at a time: doubling would leave half of a table unused.
template <typename T>
void make_room(std::vector<T>* items, size_t count = 1) {
  const size_t wanted = items->size() + count;
  if (wanted <= items->capacity()) return;
  const size_t grown = items->capacity() + items->capacity() / 4 + 16;
  items->reserve(wanted > grown ? wanted : grown);
}

}  // namespace edge_rt::draft
