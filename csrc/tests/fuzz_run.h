// Runs a made-up call on the fake ONNX Runtime, and says what is wrong with what came of it.
#pragma once

#include <string>
#include <vector>

#include "tests/fuzz_case.h"

namespace edge_rt::fuzz {

// How a call is run; none of it may change its results.
struct Conditions {
  int threads = 1;
  uint8_t rubbish = 0;                     // what uninitialised memory is full of
  fake::Place place = fake::Place::kHeap;  // of inputs and outputs
  bool trims = false;                      // absent inputs at the end are left out of the list
  int runs = 1;                            // of the same kernel, on the same memory
  int fault = -1;                          // the number of the call of the table that fails; -1: none does

  static Conditions any(Random& random);
};

struct Outcome {
  std::string message;  // of the refusal; "": the call worked
  Outputs outputs;
  std::vector<uint8_t> in_place;  // what became of the input that is written
  int calls = 0;                  // of the table, such as can fail
  bool met_fault = false;         // one of them did
};

// Runs the call. *problem becomes a sentence if the op did something that it must not, whatever the call.
Outcome run(const Case& call, const abi::OpRecord& record, const Conditions& conditions, std::string* problem);

// What is wrong with the outcome of a call that was run without a fault; "" if nothing.
std::string judge(const Case& call, const Outcome& outcome);

}  // namespace edge_rt::fuzz
