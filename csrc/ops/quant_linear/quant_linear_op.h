// QuantLinear's face to ONNX Runtime: inputs, attributes, checks.
#pragma once

#include <atomic>
#include <string>

#include "ops/quant_linear/quant_linear.h"
#include "ort/op.h"

namespace edge_rt {

// Attributes of every op that reads a packed matrix: format, out_features, in_features.
struct PackedMatrix {
  WeightFormat format = WeightFormat::kW4;
  int64_t out_features = 0;
  int64_t in_features = 0;

  abi::Status* create(ort::Attributes& attributes);
  // The same of an op with several matrices: the format from attribute "<prefix>format", the sizes as given.
  abi::Status* create(ort::Attributes& attributes, const std::string& prefix, int64_t outs, int64_t ins);
  // Checks the input that holds the matrix against the attributes.
  abi::Status* view(const ort::OpContext& context, int index, PackedWeight* out) const;
};

// y [rows, width] = residual + activation(norm(x) * weight^T + bias).
//   activation "none": width = out_features. "swiglu": with `gate` y = silu(gate) * value; without it tiles alternate
//   gate and up rows, width = out_features / 2.
//   `norm_weight` asks for RMSNorm of x with attribute `epsilon`.
struct QuantLinear {
  static constexpr const char* kName = "QuantLinear";
  static constexpr ort::Port kInputs[] = {{"x", abi::kFloat},
                                          {"weight", abi::kUint8},
                                          {"norm_weight", abi::kFloat, abi::kOptional},
                                          {"bias", abi::kFloat, abi::kOptional},
                                          {"residual", abi::kFloat, abi::kOptional},
                                          {"gate", abi::kFloat, abi::kOptional}};
  static constexpr ort::Port kOutputs[] = {{"y", abi::kFloat}};

  abi::Status* create(ort::Attributes& attributes);
  abi::Status* compute(ort::OpContext& context) const;

 private:
  abi::Status* run(ort::OpContext& context, int64_t rows, LinearRows& job) const;

  PackedMatrix matrix_;
  float epsilon_ = 0.0f;
  bool swiglu_ = false;
  const QuantLinearKernels* kernels_ = nullptr;
  mutable std::atomic<int> lanes_{2};  // threads that took part in the last run
};

}  // namespace edge_rt
