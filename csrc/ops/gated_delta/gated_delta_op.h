// GatedDelta's face to ONNX Runtime.
#pragma once

#include <vector>

#include "ops/gated_delta/gated_delta.h"
#include "ops/recurrent/recurrent_check.h"
#include "ort/op.h"

namespace edge_rt {

// y [S, value_heads * dv] of qkv [S, 2 keys + values] behind its convolution, of z, b and a (gated_delta.h says how).
// state, written in place, and what says how it is read and written: recurrent_check.h. Everything is checked before
// anything is written.
struct GatedDelta {
  static constexpr const char* kName = "GatedDelta";
  static constexpr ort::Port kFirst[] = {{"qkv", abi::kFloat}};
  static constexpr ort::Port kOwn[] = {{"z", abi::kFloat},       {"b", abi::kFloat},       {"a", abi::kFloat},
                                       {"a_scale", abi::kFloat}, {"dt_bias", abi::kFloat}, {"norm", abi::kFloat}};
  static constexpr auto kInputs = ort::join_ports(kFirst, kStatePorts, kOwn);
  static constexpr ort::Port kOutputs[] = {{"y", abi::kFloat}};

  abi::Status* create(ort::Attributes& attributes);
  abi::Status* compute(ort::OpContext& context) const;

  // Checks all inputs, makes the output, and describes the pass of every sequence; `run` must outlive them.
  abi::Status* check(ort::OpContext& context, StateRun* run, std::vector<DeltaPass>* passes) const;

 private:
  abi::Status* check_shapes(const ort::OpContext& context, MatrixPass* all) const;

  const GatedDeltaKernels* kernels_ = nullptr;
  int64_t key_heads_ = 0;
  bool is_tiled_ = false;
  float epsilon_ = 0.0f, key_epsilon_ = 0.0f;
};

}  // namespace edge_rt
