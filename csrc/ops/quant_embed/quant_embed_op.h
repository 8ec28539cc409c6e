// QuantEmbed's face to ONNX Runtime.
#pragma once

#include <atomic>
#include <string>

#include "ops/quant_embed/quant_embed.h"
#include "ops/quant_linear/quant_linear_op.h"
#include "ort/op.h"

namespace edge_rt {

// y [rows, in_features] = `scale` (1 by default) times the matrix's rows `ids` [rows]; an id outside 0 ... out_features
// - 1 is an error. Attribute `stays_in_file` 1: the matrix is large and few of its rows are read. Where it is mapped
// from a file, pages are asked for before rows are read, and given back behind, so that it takes no memory in between.
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
  // Whether the pages of a matrix are to be given back.
  bool gives_back(const PackedWeight& weight) const;

  PackedMatrix matrix_;
  float scale_ = 1.0f;
  bool stays_in_file_ = false;
  mutable std::atomic<const uint8_t*> mapped_{nullptr};  // a matrix that is known to be mapped from a file
  const QuantEmbedKernels* kernels_ = nullptr;
};

}  // namespace edge_rt
