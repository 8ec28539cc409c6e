// QuantEmbed's face to ONNX Runtime.
#pragma once

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

 private:
  PackedMatrix matrix_;
  float scale_ = 1.0f;
  const QuantEmbedKernels* kernels_ = nullptr;
};

}  // namespace edge_rt
