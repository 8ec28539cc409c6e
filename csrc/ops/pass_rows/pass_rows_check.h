// What the host says of a pass that changes from one pass to the next: where its rows lie in the cache, and which
// follows which. It is checked before a pass, and again before a recorded one is replayed.
#pragma once

#include <string>
#include <vector>

#include "ops/pass_rows/pass_rows.h"
#include "ort/op.h"

namespace edge_rt {

// Larger caches do not occur, and products of numbers below it fit 64 bits.
constexpr int64_t kMaxCacheRows = int64_t{1} << 28;

// Inputs of operators with a cache:
//   sequence_rows [B]: how many rows each sequence of the pass has, 1 at least.
//   past_length [B]: how many of each are committed.
//   row_map [B, P]: row of the cache of every position of a sequence; row i of it is written to
//     row_map[past_length + i]. Sequences may have committed rows in common, but none writes a row that another reads
//     or writes. With a window, positions that are no longer seen may share their rows with later ones.
//   parents [S]: -1 for the last committed token, else an earlier row of the sequence, counted from its first; a row's
//     position is past_length + depth. With one sequence it may have more entries than the pass has rows: the first
//     ones are then nodes that earlier passes have appended behind the same past_length, which rows may follow. Row i
//     of N such nodes is written to row_map[past_length + N + i].
// These are the numbers of those inputs.
struct RowInputs {
  int past_length, row_map, parents, sequence_rows;
};

// Depths of all sequences' nodes, on the stack for few.
class Depths {
 public:
  int32_t* take(int64_t count) {
    if (count <= kFew) return few_;
    many_.resize(static_cast<size_t>(count));
    return many_.data();
  }

 private:
  static constexpr int64_t kFew = 64;
  int32_t few_[kFew];
  std::vector<int32_t> many_;
};

// How many sequences a pass has whose input 0 has `rows` rows; and whether sequence_rows, of that shape, share them
// out.
abi::Status* check_sequence_count(const ort::OpContext& context, int past_length, int64_t rows, int64_t* sequences);
abi::Status* check_sequence_rows(const ort::OpContext& context, int sequence_rows, int64_t sequences, int64_t rows);

// Checks the shapes of these inputs, for `all` that knows rows, capacity and window; fills in `done`, `row_map` and
// `parents`.
abi::Status* check_row_shapes(const ort::OpContext& context, const RowInputs& inputs, PassRows* all);

// Checks their values, and makes the rows of every sequence out of those of all. `depths` must outlive them.
//   positions: the deepest row must be at one of so many, which cos and sin have rows for.
abi::Status* check_sequences(const ort::OpContext& context, const RowInputs& inputs, const PassRows& all,
                             int64_t positions, std::vector<PassRows>* sequences, Depths* depths);

// What is wrong with the sequences of a pass as the host describes them now, whose rows are known, from the first of
// all on; empty: nothing. Fills in their past and depths, into memory for all nodes.
//   past_length, sequence_rows: an entry a sequence; mapped: entries of row_map of a sequence; positions: as above
std::string find_bad_sequences(const int32_t* past_length, const int32_t* sequence_rows, int64_t mapped,
                               int64_t positions, int32_t* depths, std::vector<PassRows>* passes);

// A message made like printf's.
[[gnu::format(printf, 1, 2)]] std::string printed(const char* format, ...);

// What is wrong with the rows of a pass, whose row_map has `mapped` entries; empty: nothing. Rows that will be written
// must exist, be different, and hold nothing that the pass reads: all that is committed, or what the first of its rows
// sees through the window.
std::string find_bad_rows(const PassRows& pass, int64_t mapped);

// Finds the depths of all nodes of a pass, into memory for as many, and whether they are a chain; or what is wrong with
// parents. The deepest must be at one of the `positions` that cos and sin have rows for.
std::string find_depths(int64_t positions, int32_t* depths, PassRows* pass);

}  // namespace edge_rt
