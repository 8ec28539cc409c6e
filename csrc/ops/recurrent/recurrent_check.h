// What the host says of a pass over states, which changes from one pass to the next; checked before anything is
// written.
#pragma once

#include <string>
#include <vector>

#include "ops/recurrent/recurrent.h"
#include "ort/op.h"

namespace edge_rt {

// Numbers of the inputs that all such operators have. state [N, 2, floats], written in place, has the two slots of N
// sequences; how many transitions there is room for follows from its size. Of every sequence of a pass:
//   past_length [B]: rows before the pass. 0: the text begins, and no slot is read.
//   state_index [B]: which of the N states it has; all different.
//   slot [B]: which slot is read, 0 or 1. The other one is written.
//   advance [B, A]: numbers of the transitions that are applied first, rising, -1 behind the last: the drafts of the
//     pass that wrote the slot that belong to the text, counted from the first draft.
//   certain [B]: how many rows are text for certain. The others are drafts, and leave a transition each.
//   parents [S]: row before a row, counted from the sequence's first, or -1. Certain rows follow one another. A draft's
//     is the last certain row, or a draft; drafts come depth first: it is the row before it, or before that one in its
//     text.
//   sequence_rows [B]: its rows, 1 at least.
enum StateInput : int {
  kRowsIn,  // the operator's first, with a row for each of the pass
  kState,
  kPast,
  kStateIndex,
  kSlot,
  kAdvance,
  kCertain,
  kParents,
  kSequenceRows,
  kOwnInputs
};

constexpr ort::Port kStatePorts[] = {{"state", abi::kFloat},       {"past_length", abi::kInt32},
                                     {"state_index", abi::kInt32}, {"slot", abi::kInt32},
                                     {"advance", abi::kInt32},     {"certain", abi::kInt32},
                                     {"parents", abi::kInt32},     {"sequence_rows", abi::kInt32}};

// These inputs, but state itself, as they are now: the host writes them before every pass.
struct StateNumbers {
  const int32_t *past, *index, *slot, *advance, *certain, *parents, *sequence_rows;
  int64_t most;    // entries of advance of a sequence
  int64_t states;  // in state
  int64_t room;    // transitions of a slot
};

// The sequences of a run, and what their passes point to.
struct StateRun {
  std::vector<StatePass> passes;
  std::vector<StateStep> steps;
  int64_t levels = 0;  // states of drafts that live at the same time, at most
};

// Checks these inputs, for `all` that knows its rows and how many floats states and transitions have, and makes the
// passes of every sequence out of it.
abi::Status* check_states(const ort::OpContext& context, const StatePass& all, StateRun* run);

// The inputs of a node, whose shapes are checked.
StateNumbers state_numbers(const ort::OpContext& context, const StatePass& all);

// What is wrong with the numbers of a sequence, whose pass knows its rows; empty: nothing. Fills in what they say, and
// its steps, into memory for its rows. `first`: the first of its rows in the run.
std::string find_bad_state(const StateNumbers& numbers, int64_t sequence, int64_t first, StatePass* pass,
                           StateStep* steps, int64_t* levels);

}  // namespace edge_rt
