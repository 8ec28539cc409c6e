// RowTopK's face to ONNX Runtime.
#pragma once

#include "ops/row_top_k/row_top_k.h"
#include "ort/op.h"

namespace edge_rt {

// ids [rows, k] and values [rows, k], descending, equal values by id; log_sum_exp [rows]. Attribute k: 1 ... kMaxTopK.
// A logit that is not a number is left out, and makes log_sum_exp meaningless; places that nothing fills hold id -1 and
// minus infinity.
struct RowTopK {
  static constexpr const char* kName = "RowTopK";
  static constexpr ort::Port kInputs[] = {{"logits", abi::kFloat}};
  static constexpr ort::Port kOutputs[] = {{"ids", abi::kInt32}, {"values", abi::kFloat}, {"log_sum_exp", abi::kFloat}};

  abi::Status* create(ort::Attributes& attributes);
  abi::Status* compute(ort::OpContext& context) const;

  // For whoever runs it elsewhere: checks the input and makes the outputs. What is left to fill in: `parts`.
  abi::Status* check(ort::OpContext& context, TopKRows* job) const;

 private:
  int64_t k_ = 1;
  const RowTopKKernels* kernels_ = nullptr;
};

}  // namespace edge_rt
