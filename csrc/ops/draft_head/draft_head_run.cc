#include "ops/draft_head/draft_head_run.h"

#include <algorithm>
#include <optional>

#include "ops/quant_linear/quant_linear_run.h"

namespace edge_rt {
namespace {

size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

int64_t parts_of(int64_t columns) { return (columns + kTopKPart - 1) / kTopKPart; }

// The two reduced heads, read as one matrix.
PackedParts joined_heads(const DraftHeadJob& job) {
  PackedParts out = one_part(job.head);
  if (job.more_rows > 0) {
    out.parts[1] = job.more_head;
    out.sums[1] = out.sums[0];
    out.count = 2;
  }
  return out;
}

// A guess: `from` is the row, of all steps, that made it.
struct Guess {
  int32_t id, parent, depth, from;
  float log_prob, total;
};

// What lies where in scratch memory.
struct Places {
  int64_t rows;     // of a step, at most
  int64_t steps;    // rows of all steps, at most
  int64_t columns;  // of a row of logits
  size_t input, states, inner, logits, fed, parts, ids, log_probs, counts, guesses, best, places, bytes;

  explicit Places(const DraftHeadJob& job) : rows(job.depth > 1 ? std::min(kFrontier, job.nodes) : 1) {
    steps = 1 + (job.depth - 1) * rows;
    columns = kTileRows * (job.head.tiles + job.more_head.tiles);
    size_t fed_bytes = 0;
    for (int i = 0; i < job.blocks; ++i) fed_bytes = std::max(fed_bytes, activation_bytes(job.block[i].down, rows));
    const int64_t found = rows * job.width;
    bytes = 0;
    input = add(rows * 2 * job.hidden * 4);
    states = add(steps * job.hidden * 4);
    inner = add(rows * job.intermediate * 4);
    logits = add(rows * columns * 4);
    fed = add(static_cast<int64_t>(fed_bytes));
    parts = add(rows * (parts_of(job.head_rows) + parts_of(job.more_rows)) * static_cast<int64_t>(sizeof(TopKPart)));
    ids = add(found * 4);
    log_probs = add(found * 4);
    counts = add(rows * 4);
    guesses = add(steps * job.width * static_cast<int64_t>(sizeof(Guess)));
    best = add(job.nodes * 4);
    places = add(steps * job.width * 4);
  }

 private:
  size_t add(int64_t size) {
    const size_t at = bytes;
    bytes += aligned(static_cast<size_t>(size));
    return at;
  }
};

class Growth {
 public:
  Growth(DraftHeadRun& run, const DraftHeadJob& job, void* scratch)
      : run_(run), job_(job), at_(job), heads_(joined_heads(job)), memory_(static_cast<char*>(scratch)),
        guesses_(place<Guess>(at_.guesses)), best_(place<int32_t>(at_.best)), head_parts_(parts_of(job.head_rows)),
        parts_(head_parts_ + parts_of(job.more_rows)) {}

  bool grow() {
    rows_ = 1;
    parents_[0] = -1;
    for (int depth = 1;; ++depth) {
      if (!step()) return false;
      add_guesses(depth);
      first_row_ += rows_;
      if (depth == job_.depth) return true;
      rows_ = choose_frontier(depth);
      if (rows_ == 0) return true;
    }
  }

  void write(DraftTree* tree) const {
    auto* places = place<int32_t>(at_.places);
    for (int i = 0; i < best_count_; ++i) {
      const Guess& guess = guesses_[best_[i]];
      places[best_[i]] = i;
      tree->ids[i] = guess.id;
      tree->parents[i] = guess.parent < 0 ? -1 : places[guess.parent];
      tree->depths[i] = guess.depth;
      tree->log_probs[i] = guess.log_prob;
    }
    tree->count = best_count_;
  }

 private:
  template <class T>
  T* place(size_t at) const {
    return reinterpret_cast<T*>(memory_ + at);
  }
  // Of the step's rows.
  float* states() const { return place<float>(at_.states) + first_row_ * job_.hidden; }

  // What a row of the step starts from: the state and the embedding of its token, both normed.
  void gather(int64_t row, int) {
    const int32_t parent = parents_[row];
    const float* from = job_.state;
    int64_t token = job_.token;
    if (parent >= 0) {
      from = place<float>(at_.states) + guesses_[parent].from * job_.hidden;
      token = guesses_[parent].id;
    }
    float* u = place<float>(at_.input) + row * 2 * job_.hidden;
    run_.head.norm(from, job_.state_norm, job_.hidden, job_.epsilon, u);
    run_.embed.row(job_.embedding, token, job_.hidden, 1.0f, u + job_.hidden);
    run_.head.norm(u + job_.hidden, job_.token_norm, job_.hidden, job_.epsilon, u + job_.hidden);
  }

  void find_top(int64_t item, int) {
    const int64_t row = item / parts_, part = item % parts_;
    const bool is_head = part < head_parts_;
    const float* logits = place<float>(at_.logits) + row * at_.columns;
    if (!is_head) logits += kTileRows * job_.head.tiles;
    const int64_t begin = (is_head ? part : part - head_parts_) * kTopKPart;
    const int64_t end = std::min(begin + kTopKPart, is_head ? job_.head_rows : job_.more_rows);
    run_.top_k.part(logits, begin, end, job_.width, place<TopKPart>(at_.parts) + item);
  }

  void join(int64_t row, int) {
    place<int32_t>(at_.counts)[row] = run_.head.join(
        place<TopKPart>(at_.parts) + row * parts_, parts_, head_parts_, job_.head_ids, job_.more_ids, job_.width,
        place<int32_t>(at_.ids) + row * job_.width, place<float>(at_.log_probs) + row * job_.width);
  }

  RoundRows rounding(const PackedParts& weight, const float* x, int64_t features, const float* norm) const {
    return {
        x, features, norm, job_.epsilon, weight.rounds(), weight.kinds, {rows_, weight.blocks(), nullptr, nullptr, {}}};
  }

  LinearRows product(const PackedParts& weight, const RoundRows& rounded, int64_t out_features, float* y) const {
    LinearRows out{};
    out.weight = weight;
    out.in = rounded.out;
    out.out_features = out_features;
    out.width = out_features;
    out.y = y;
    return out;
  }

  // One product; `from` and `to` have rows_ rows.
  void add(PhaseList* phases, const PackedParts& weight, const float* from, int64_t ins, const float* norm,
           int64_t outs, float* to) {
    const RoundRows rounded = rounding(weight, from, ins, norm);
    steps_[step_count_++]
        .emplace(run_.linear, rounded, product(weight, rounded, outs, to), run_.lanes)
        .add_phases(phases);
  }

  void add_block(PhaseList* phases, const HeadBlock& block) {
    auto* inner = place<float>(at_.inner);
    RoundRows rounded = rounding(block.gate_up, states(), job_.hidden, block.norm);
    LinearRows job = product(block.gate_up, rounded, 2 * job_.intermediate, inner);
    job.paired = true;
    job.width = job_.intermediate;
    job.steps.activation = Activation::kSwiglu;
    LinearStep& gate_up = steps_[step_count_++].emplace(run_.linear, rounded, job, run_.lanes);
    rounded = rounding(block.down, inner, job_.intermediate, nullptr);
    rounded.out = place_activations(block.down, rows_, memory_ + at_.fed);
    // In place: a number is read where it is written, by the same thread, and nowhere else.
    job = product(block.down, rounded, job_.hidden, states());
    job.residual = states();
    LinearStep& down = steps_[step_count_++].emplace(run_.linear, rounded, job, run_.lanes);
    gate_up.feed(&down);
    gate_up.add_phases(phases);
    down.add_phases(phases);
  }

  // Runs rows_ rows, one for each of parents_; false if a thread had no memory.
  bool step() {
    step_count_ = 0;
    PhaseList phases;
    phases.add(make_phase_of<&Growth::gather>(rows_, this));
    add(&phases, job_.fc, place<float>(at_.input), 2 * job_.hidden, nullptr, job_.hidden, states());
    for (int i = 0; i < job_.blocks; ++i) add_block(&phases, job_.block[i]);
    add(&phases, heads_, states(), job_.hidden, job_.output_norm, at_.columns, place<float>(at_.logits));
    phases.add(make_phase_of<&Growth::find_top>(rows_ * parts_, this));
    phases.add(make_phase_of<&Growth::join>(rows_, this));
    run_phases(run_.crew, phases);
    bool failed = false;
    for (int i = 0; i < step_count_; ++i) {
      failed = failed || steps_[i]->failed();
      run_.workers = steps_[i]->workers();
    }
    return !failed;
  }

  void add_guesses(int depth) {
    for (int row = 0; row < rows_; ++row) {
      const float above = parents_[row] < 0 ? 0.0f : guesses_[parents_[row]].total;
      const auto* ids = place<int32_t>(at_.ids) + row * job_.width;
      const auto* log_probs = place<float>(at_.log_probs) + row * job_.width;
      for (int i = 0; i < place<int32_t>(at_.counts)[row]; ++i) {
        guesses_[guess_count_] = {ids[i],       parents_[row],       depth, static_cast<int32_t>(first_row_) + row,
                                  log_probs[i], above + log_probs[i]};
        rank(guess_count_++);
      }
    }
  }

  // Puts a guess behind all that are as good.
  void rank(int32_t guess) {
    const auto is_worse = [&](int place) { return guesses_[best_[place]].total < guesses_[guess].total; };
    if (best_count_ == job_.nodes && !is_worse(best_count_ - 1)) return;
    int place = best_count_ < job_.nodes ? best_count_++ : best_count_ - 1;
    for (; place > 0 && is_worse(place - 1); --place) best_[place] = best_[place - 1];
    best_[place] = guess;
  }

  int choose_frontier(int depth) {
    int count = 0;
    for (int i = 0; i < best_count_ && count < kFrontier; ++i) {
      if (guesses_[best_[i]].depth == depth) parents_[count++] = best_[i];
    }
    return count;
  }

  DraftHeadRun& run_;
  const DraftHeadJob& job_;
  Places at_;
  PackedParts heads_;
  char* memory_;
  Guess* guesses_;
  int32_t* best_;  // the best guesses so far, in the order of nodes
  int64_t head_parts_, parts_;
  int guess_count_ = 0, best_count_ = 0;
  int64_t first_row_ = 0;       // of the step, among those of all steps
  int rows_ = 0;                // of the step
  int32_t parents_[kFrontier];  // the guesses that they follow, -1: the sequence
  std::optional<LinearStep> steps_[2 + 2 * kMaxHeadBlocks];
  int step_count_ = 0;
};

}  // namespace

size_t draft_head_scratch_bytes(const DraftHeadJob& job) { return Places(job).bytes; }

bool run_draft_head(DraftHeadRun& run, const DraftHeadJob& job, void* scratch, DraftTree* tree) {
  Growth growth(run, job, scratch);
  if (!growth.grow()) return false;
  growth.write(tree);
  return true;
}

}  // namespace edge_rt
