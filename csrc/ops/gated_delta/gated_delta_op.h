// GatedDelta's face to ONNX Runtime.
#pragma once

#include <vector>

#include "ops/gated_delta/gated_delta.h"
#include "ort/op.h"

namespace edge_rt {

// y [S, value_heads * dv] of qkv [S, 2 keys + values] behind its convolution, of z, b and a (gated_delta.h says how).
// state [N, 2, floats], written in place, has the two slots of N sequences; how many transitions there is room for
// follows from its size. What changes from pass to pass, of every sequence of it:
//   sequence_rows [B]: its rows, 1 at least.
//   past_length [B]: rows before the pass. 0: the text begins, and no slot is read.
//   state_index [B]: which of the N states it has; all different.
//   slot [B]: which slot is read, 0 or 1. The other one is written.
//   advance [B, A]: numbers of the transitions that are applied first, rising, -1 behind the last: the drafts of the
//     pass that wrote the slot that belong to the text, counted from the first draft.
//   certain [B]: how many rows are text for certain. The others are drafts, and leave a transition each.
//   parents [S]: row before a row, counted from the sequence's first, or -1. Certain rows follow one another. A draft's
//     is the last certain row, or a draft; drafts come depth first: it is the row before it, or before that one in its
//     text.
// Everything is checked before anything is written.
struct GatedDelta {
  static constexpr const char* kName = "GatedDelta";
  static constexpr ort::Port kInputs[] = {
      {"qkv", abi::kFloat},         {"state", abi::kFloat},   {"past_length", abi::kInt32},
      {"state_index", abi::kInt32}, {"slot", abi::kInt32},    {"advance", abi::kInt32},
      {"certain", abi::kInt32},     {"parents", abi::kInt32}, {"sequence_rows", abi::kInt32},
      {"z", abi::kFloat},           {"b", abi::kFloat},       {"a", abi::kFloat},
      {"a_scale", abi::kFloat},     {"dt_bias", abi::kFloat}, {"norm", abi::kFloat}};
  static constexpr ort::Port kOutputs[] = {{"y", abi::kFloat}};

  abi::Status* create(ort::Attributes& attributes);
  abi::Status* compute(ort::OpContext& context) const;

 private:
  // The sequences of a run, and what their passes point to.
  struct Run {
    std::vector<DeltaPass> passes;
    std::vector<DeltaStep> steps;
    int64_t levels = 0;  // stripes of scratch memory that a task needs
  };

  abi::Status* check(ort::OpContext& context, Run* run) const;
  abi::Status* check_shapes(const ort::OpContext& context, DeltaPass* all) const;
  // `first`: the first of its rows in the run.
  static abi::Status* check_sequence(const ort::OpContext& context, int64_t sequence, int64_t first, DeltaPass* pass,
                                     Run* run);

  const GatedDeltaKernels* kernels_ = nullptr;
  int64_t key_heads_ = 0;
  bool is_tiled_ = false;
  float epsilon_ = 0.0f, key_epsilon_ = 0.0f;
};

}  // namespace edge_rt
