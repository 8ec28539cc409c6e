// StateConv's face to ONNX Runtime.
#pragma once

#include <vector>

#include "ops/recurrent/recurrent_check.h"
#include "ops/state_conv/state_conv.h"

namespace edge_rt {

// y [S, C] of C columns of x, from `first` on (state_conv.h says how), with a weight [taps, C] and maybe a bias [C].
// state, and what changes from pass to pass: recurrent_check.h. Everything is checked before anything is written.
struct StateConv {
  static constexpr const char* kName = "StateConv";
  static constexpr ort::Port kInputs[] = {{"x", abi::kFloat},
                                          {"state", abi::kFloat},
                                          {"past_length", abi::kInt32},
                                          {"state_index", abi::kInt32},
                                          {"slot", abi::kInt32},
                                          {"advance", abi::kInt32},
                                          {"certain", abi::kInt32},
                                          {"parents", abi::kInt32},
                                          {"sequence_rows", abi::kInt32},
                                          {"weight", abi::kFloat},
                                          {"bias", abi::kFloat, abi::kOptional}};
  static constexpr ort::Port kOutputs[] = {{"y", abi::kFloat}};

  abi::Status* create(ort::Attributes& attributes);
  abi::Status* compute(ort::OpContext& context) const;

  // Checks all inputs, makes the output, and describes the pass of every sequence; `run` must outlive them.
  abi::Status* check(ort::OpContext& context, StateRun* run, std::vector<StateConvPass>* passes) const;

 private:
  const StateConvKernels* kernels_ = nullptr;
  int64_t first_ = 0;
};

}  // namespace edge_rt
