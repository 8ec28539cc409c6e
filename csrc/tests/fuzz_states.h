// What calls of operators with states have in common: texts that begin and go on, with certain rows and trees of
// drafts.
#pragma once

#include "ops/recurrent/recurrent_check.h"
#include "tests/fuzz_case.h"

namespace edge_rt::fuzz {

int32_t number_in(const Case& call, int input, int64_t at);
void set_number(Case& call, int input, int64_t at, int64_t value);

// What a slot holds, and what a row of the output does. A transition begins with decays, from 0 to 1.
struct SlotSizes {
  int64_t state, transition, decays, outputs;

  SlotSizes(int64_t state_floats, int64_t transition_floats, int64_t columns)
      : state(state_floats), transition(transition_floats), decays(0), outputs(columns) {}
  SlotSizes(const MatrixShape& shape)  // NOLINT(google-explicit-constructor): the usual case
      : state(shape.state_floats()), transition(shape.transition_floats()), decays(shape.value_heads),
        outputs(shape.values()) {}
};

// A call of `op` with `inputs` inputs, of which this adds those that such operators have in common but rows; what it
// writes, and what it is about. Returns its rows.
int64_t add_states(Case& call, Random& random, const SlotSizes& sizes, int inputs);

// Mistakes in those inputs, and inputs of rows beside `kRowsIn`; `sizes_of`: of a good call.
struct StateOp {
  const char* name;
  std::function<Case(Random&)> make;
  std::vector<int> of_rows;
  std::function<SlotSizes(const Case&)> sizes_of;
};
Subject state_subject(const StateOp& op);

// Gives an input another size; the message must hold `word`.
void resize_input(Case& call, int input, size_t axis, int64_t size, const char* word);
// Gives `state` a size that slots do not have.
void resize_slots(Case& call, Random& random);

}  // namespace edge_rt::fuzz
