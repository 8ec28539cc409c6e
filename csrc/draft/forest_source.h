// Guesses that somebody else made: a forest that is handed over before every draft.
#pragma once

#include <vector>

#include "draft/source.h"

namespace edge_rt::draft {

constexpr int kMostForestNodes = 256;

// A cursor is a node; kRoot at the end of the known tokens.
class ForestSource : public Source {
 public:
  explicit ForestSource(int num_kinds) : num_kinds_(num_kinds) {}

  // Replaces the forest. False, and an empty forest, where it is malformed: a parent that is not an earlier node or
  // kRoot, a negative token, a kind that does not exist, two siblings of the same token, or too many nodes.
  bool set(int count, const int32_t* tokens, const int32_t* parents, const int32_t* kinds) {
    nodes_.clear();
    if (count < 0 || count > kMostForestNodes) return false;
    for (int node = 0; node < count; ++node) {
      const int32_t parent = parents[node];
      bool is_good = parent >= kRoot && parent < node && tokens[node] >= 0 && kinds[node] >= 0 &&
                     kinds[node] < num_kinds_ && !has_child(parent, tokens[node]);
      if (!is_good) {
        nodes_.clear();
        return false;
      }
      nodes_.push_back(Node{parent, Guess{tokens[node], kinds[node], Cursor{{node, 0, 0, 0}}}});
    }
    return true;
  }

  void begin(const int32_t*, size_t) override { nodes_.clear(); }
  void extend(const int32_t*, size_t) override { nodes_.clear(); }
  bool root(Cursor* cursor) const override {
    *cursor = Cursor{{kRoot, 0, 0, 0}};
    return !nodes_.empty();
  }
  int children(const Cursor& cursor, Guess* guesses) const override {
    const int32_t parent = cursor.part[0], size = static_cast<int32_t>(nodes_.size());
    if (parent < kRoot || parent >= size) return 0;
    int count = 0;
    for (int32_t node = parent + 1; node < size && count < kMaxGuesses; ++node) {
      if (nodes_[node].parent == parent) guesses[count++] = nodes_[node].guess;
    }
    return count;
  }
  size_t memory_bytes() const override { return bytes_of(nodes_); }

 private:
  struct Node {
    int32_t parent;
    Guess guess;
  };

  bool has_child(int32_t parent, int32_t token) const {
    for (const Node& node : nodes_) {
      if (node.parent == parent && node.guess.token == token) return true;
    }
    return false;
  }

  int num_kinds_;
  std::vector<Node> nodes_;
};

}  // namespace edge_rt::draft
