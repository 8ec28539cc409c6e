// SsmScan's face to ONNX Runtime.
#pragma once

#include <vector>

#include "ops/recurrent/recurrent_check.h"
#include "ops/ssm_scan/ssm_scan.h"
#include "ort/op.h"

namespace edge_rt {

// y [S, heads * P] of xbc [S, heads * P + 2 groups * N] behind its convolution, of z and t (ssm_scan.h says how). z are
// the first columns of z [S, at least heads * P], and t the last ones of t [S, at least heads]: the rows of a matrix
// that makes everything, [z | x | b | c | t], may be given for both. Without a norm [heads * P] there is a gate alone;
// norm_first: the gate is behind the norm. state, written in place, and what says how it is read and written:
// recurrent_check.h. Everything is checked before anything is written.
struct SsmScan {
  static constexpr const char* kName = "SsmScan";
  static constexpr ort::Port kFirst[] = {{"xbc", abi::kFloat}};
  static constexpr ort::Port kOwn[] = {{"z", abi::kFloat},       {"t", abi::kFloat},
                                       {"a_scale", abi::kFloat}, {"skip", abi::kFloat},
                                       {"dt_bias", abi::kFloat}, {"norm", abi::kFloat, abi::kOptional}};
  static constexpr auto kInputs = ort::join_ports(kFirst, kStatePorts, kOwn);
  static constexpr ort::Port kOutputs[] = {{"y", abi::kFloat}};

  abi::Status* create(ort::Attributes& attributes);
  abi::Status* compute(ort::OpContext& context) const;

  // Checks all inputs, makes the output, and describes the pass of every sequence; `run` must outlive them.
  abi::Status* check(ort::OpContext& context, StateRun* run, std::vector<SsmPass>* passes) const;

 private:
  abi::Status* check_shapes(const ort::OpContext& context, SsmPass* all) const;

  const SsmScanKernels* kernels_ = nullptr;
  int64_t head_dim_ = 0, groups_ = 0;
  bool norm_first_ = false;
  float epsilon_ = 0.0f;
};

}  // namespace edge_rt
