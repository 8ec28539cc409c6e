// QuantLinear's face to ONNX Runtime: inputs, attributes, checks.
#pragma once

#include <atomic>
#include <initializer_list>
#include <string>
#include <vector>

#include "ops/quant_linear/quant_linear.h"
#include "ort/op.h"

namespace edge_rt {

// Attributes of every op that reads a packed matrix: format, out_features, in_features; where its parts have formats of
// their own part_rows, numbers with commas between them, as many as formats; and where blocks of its input are fine
// fine_blocks, their numbers, rising, with commas between them: whole units of all formats, in up to 16 stretches.
struct PackedMatrix {
  int64_t out_features = 0;
  int64_t in_features = 0;

  abi::Status* create(ort::Attributes& attributes);
  // The same of an op with several matrices: the format from attribute "<prefix>format", the sizes as given. A matrix
  // that consists of parts with `rows` rows each may have a format for each, with commas between them.
  abi::Status* create(ort::Attributes& attributes, const std::string& prefix, const std::vector<int64_t>& rows,
                      int64_t ins);
  // Behind create, of ops that take them: the fine blocks of the input.
  abi::Status* read_fine(ort::Attributes& attributes, const std::string& prefix);
  // Checks the input that holds the matrix against the attributes: uint8 [tiles, units, unit_bytes], or where parts
  // have formats of their own [bytes], one part behind the other.
  abi::Status* view(const ort::OpContext& context, int index, PackedParts* out) const;
  // The same of a matrix of one format whose number of rows, 0 or more, is not that of the attributes.
  abi::Status* view_rows(const ort::OpContext& context, int index, int64_t rows, PackedParts* out) const;
  int parts() const { return static_cast<int>(formats_.size()); }

 private:
  abi::Status* add_part(ort::Attributes& attributes, const char* prefix, const std::string& name, int64_t rows);
  abi::Status* view(const ort::OpContext& context, int index, const int64_t* rows, PackedParts* out) const;

  std::vector<WeightFormat> formats_;
  std::vector<int64_t> rows_;
  FineBlocks fine_;
};

// Attribute `activation`, one of `names`, the first by default.
abi::Status* read_activation(ort::Attributes& attributes, std::initializer_list<const char*> names, Activation* out);
abi::Status* read_residual_scale(ort::Attributes& attributes, float* out);
// Attribute `norm`: "rms" or "layer".
abi::Status* read_norm(ort::Attributes& attributes, bool* is_layer_norm);
// Checks the bias of a norm, [features]; it needs the norm's weight beside it.
abi::Status* check_norm_bias(const ort::OpContext& context, int weight, int bias, int64_t features);

// y [rows, width] = residual + residual_scale * post_norm(softcap(output_scale * activation(norm(x) * weight^T +
// bias)))
//   activation "none": width = out_features. "relu2": max(value, 0)^2. "swiglu", "geglu": with `gate`
//   silu(gate) * value or gelu(gate) * value, gelu by its tanh formula; without it tiles alternate gate and up rows,
//   and so do the numbers of `bias`: width = out_features / 2. "gelu_gate": gelu(value) * gate, which must be given.
//   `norm_weight` asks for a norm of x with attribute `epsilon`: RMSNorm, or LayerNorm where attribute `norm` is
//   "layer" or `norm_bias` is given. `post_norm` asks for RMSNorm of the finished row, with the same epsilon;
//   where it has fewer weights, of each group of so many features.
//   softcap(v) = softcap * tanh(v / softcap), or v with 0. `residual_scale` needs a residual.
struct QuantLinear {
  static constexpr const char* kName = "QuantLinear";
  static constexpr ort::Port kInputs[] = {{"x", abi::kFloat},
                                          {"weight", abi::kUint8},
                                          {"norm_weight", abi::kFloat, abi::kOptional},
                                          {"bias", abi::kFloat, abi::kOptional},
                                          {"residual", abi::kFloat, abi::kOptional},
                                          {"gate", abi::kFloat, abi::kOptional},
                                          {"post_norm", abi::kFloat, abi::kOptional},
                                          {"norm_bias", abi::kFloat, abi::kOptional}};
  static constexpr ort::Port kOutputs[] = {{"y", abi::kFloat}};

  abi::Status* create(ort::Attributes& attributes);
  abi::Status* compute(ort::OpContext& context) const;

  // For whoever runs it elsewhere: reads and checks the inputs and makes the output. What is left to fill in is memory
  // for rounded rows, which job.in has the number of; 0: there is nothing to do.
  abi::Status* check(ort::OpContext& context, LinearRows* job) const;
  // How the rows of a checked job are rounded, into its memory.
  RoundRows rounding(const ort::OpContext& context, const LinearRows& job) const;

 private:
  PackedMatrix matrix_;
  float epsilon_ = 0.0f;
  bool is_layer_norm_ = false;
  LinearSteps steps_;
  const QuantLinearKernels* kernels_ = nullptr;
  mutable std::atomic<int> lanes_{2};  // threads that took part in the last run
};

}  // namespace edge_rt
