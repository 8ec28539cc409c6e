// QuantEmbed's face to ONNX Runtime.
#pragma once

#include <string>

#include "ops/quant_embed/quant_embed.h"
#include "ops/quant_linear/quant_linear_op.h"
#include "ort/op.h"

namespace edge_rt {

// y [rows, in_features] = `scale` (1 by default) times the matrix's rows `ids` [rows]; an id outside 0 ... out_features
// - 1 is an error.
struct QuantEmbed {
  static constexpr const char* kName = "QuantEmbed";
  static constexpr ort::Port kInputs[] = {{"ids", abi::kInt64}, {"weight", abi::kUint8}};
  static constexpr ort::Port kOutputs[] = {{"y", abi::kFloat}};

  abi::Status* create(ort::Attributes& attributes);
  abi::Status* compute(ort::OpContext& context) const;

  // For whoever runs it elsewhere: reads and checks the inputs, which the host must be able to read but for the
  // matrix, and makes the output.
  abi::Status* check(ort::OpContext& context, EmbedRows* job) const;
  // What is wrong with the ids of a job; empty: nothing.
  static std::string find_bad_id(const EmbedRows& job);

 private:
  PackedMatrix matrix_;
  float scale_ = 1.0f;
  const QuantEmbedKernels* kernels_ = nullptr;
};

}  // namespace edge_rt
