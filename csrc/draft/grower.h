// One draft tree from the guesses of several sources, the best node first, as large as pays; what came of it; and the
// speeds that each way of drafting would have reached. Equals TreeGrower, best_size and Ledger of
// tests/reference.
#pragma once

#include <vector>

#include "draft/acceptance.h"
#include "draft/source.h"

namespace edge_rt::draft {

constexpr int kMaxNodes = 1024;
constexpr int kMaxArms = 64;

struct Tree {
  struct Evidence {
    // The sources that guessed a node, their kinds, and its cell in the acceptance model.
    uint32_t mask;
    int32_t kinds[kMaxSources];
    int cell;
  };

  std::vector<int32_t> tokens, parents;
  std::vector<double> values;
  std::vector<Evidence> evidence;

  int size() const { return static_cast<int>(tokens.size()); }
  void first(int count);
};

// A tree that shares a pass with others. Its first `known` rows are computed in any case.
struct Share {
  // Of the nodes, the most valuable first.
  const double* values;
  int nodes;
  int known;
  // What attention of 1, 2, ... rows takes at the depth of this sequence, beyond that of `costs`; null: nothing.
  const double* attention;
};

// Divides the rows of a pass among trees: sets `sizes` to the numbers of first nodes that maximise expected tokens over
// cost. As no node is worth more than its parent, the most valuable nodes of all trees are trees as well: of these m,
// as many as pay, at least `least` if there are so many, at most `most`. `tokens`: what the pass gives without drafts.
// `costs[n]`: of a pass over n + 1 rows. Returns m.
int divide(const Share* shares, int count, const double* costs, int least, int most, double tokens, double drafting,
           int32_t* sizes);

class Grower {
 public:
  // The sources belong to the caller and outlive the grower; `priors` and `joint` as of AcceptanceModel. `arms`: of
  // every way of drafting the set of its sources; the first drafts nothing. `chain`: only the best guess of every
  // position.
  Grower(std::vector<Source*> sources, std::vector<std::vector<double>> priors, const std::vector<Line>& joint,
         std::vector<uint32_t> arms, bool chain);

  const std::vector<Source*>& sources() const { return sources_; }
  const std::vector<uint32_t>& arms() const { return arms_; }
  AcceptanceModel& model() { return model_; }
  const Tree& tree() const { return tree_; }

  // Grows the best tree of at most `limit` nodes from an arm's sources; nodes of less value than `least` are left out.
  const Tree& grow(int limit, int arm, double least);
  // Cuts the tree to the nodes that maximise expected tokens over cost; `costs[n]`: of a pass over n + 1 rows, one more
  // than there are nodes.
  const Tree& cut(const double* costs, double drafting);
  // Keeps the first nodes of the tree.
  void keep(int count) { tree_.first(count); }
  // Learns which nodes of the tree were right. `path`: the accepted nodes; `tokens`: the emitted ones, one more.
  // Returns how many nodes were tested: those whose parent was reached.
  int learn(const int32_t* tokens, const int32_t* path, int accepted);
  // Adds a step to the ledger; `drafting`: milliseconds of drafting, by arm.
  void add_step(int played, const int32_t* path, int accepted, const double* costs, const double* drafting);

  const std::vector<int64_t>& arm_tokens() const { return arm_tokens_; }
  const std::vector<double>& arm_ms() const { return arm_ms_; }
  void clear_ledger();
  // Bytes of everything but the sources.
  size_t memory_bytes() const;

 private:
  struct Candidate {
    double value;
    int32_t parent, token;
    Tree::Evidence evidence;
    // Where the sources that guessed it stand behind the token.
    Cursor cursors[kMaxSources];
  };
  // Orders a heap: of equal values the candidate that was found first is better.
  struct Worse {
    const std::vector<Candidate>& candidates;
    bool operator()(int32_t one, int32_t other) const {
      const double first = candidates[one].value, second = candidates[other].value;
      return first != second ? first < second : one > other;
    }
  };
  struct Found {
    int32_t token;
    double odds;
    uint32_t mask;
    int32_t kinds[kMaxSources];
    Cursor cursors[kMaxSources];
  };

  void expand(int32_t parent, double value, uint32_t open, const Cursor* cursors, double least);

  std::vector<Source*> sources_;
  AcceptanceModel model_;
  std::vector<uint32_t> arms_;
  bool chain_;
  Tree tree_;
  // A heap of indices into `candidates_`, which is in the order in which they were found.
  std::vector<Candidate> candidates_;
  std::vector<int32_t> heap_;
  std::vector<Found> found_;
  // Work space of what is learned: for every node (the root first) the token that followed, if it was reached.
  std::vector<int32_t> following_;
  std::vector<uint32_t> masks_;
  std::vector<int64_t> arm_tokens_;
  std::vector<double> arm_ms_;
};

}  // namespace edge_rt::draft
