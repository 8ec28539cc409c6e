// DecoderLayer: a whole layer of a decoder, out of the parts of QuantLinear and SpecAttention.
//
// y = a + s * post(down(silu(gate(norm(a))) * up(norm(a)))),  a = x + s * post(output(attention(qkv(norm(x)))))
//
// The scale s of what is added is 1 by default, norms and biases are there where their weights are given, and the
// activation may be another one.
//
// The bits are those of the five operators one after the other. Together they fork and join once, and their outputs
// stay in scratch memory: a node of its own costs about 4 microseconds for a fork, a join and what ONNX Runtime does
// between, while a 1-row product takes 8 to 30.
#pragma once

#include <atomic>

#include "common/pieces.h"
#include "ops/quant_linear/quant_linear_op.h"
#include "ops/spec_attention/spec_attention_op.h"
#include "ort/op.h"

namespace edge_rt {

// Inputs 1 to 10, the constants of keys and the attributes they need are SpecAttention's. qkv, output, gate_up and down
// are packed matrices of attributes <name>_format and, where blocks of their input are fine, <name>_fine_blocks;
// gate_up alternates tiles of gate and up rows. qkv may have as many formats as parts and gate_up two, one for each of
// its parts, which then lie one behind the other. `hidden` is the length of a row of x, `intermediate` of the gate.
// `epsilon` belongs to all norms. Behind the constants of keys:
//   qkv_bias, output_bias, gate_up_bias, down_bias: one number for each row of the matrix, in the order of its tiles,
//   so
//     that those of gate_up alternate as its tiles do
//   attention_post_norm, mlp_post_norm [hidden]: RMSNorm of what the sub-layer adds
//   query_scale: of SpecAttention
//   attention_norm_bias, mlp_norm_bias [hidden]: ask for LayerNorm, as attribute `norm` "layer" does for both
//   sequence_rows: of SpecAttention
// Without attention_norm or mlp_norm the input of that sub-layer is not normed.
// Attribute `activation`: "swiglu", "geglu", or "relu2", with which gate_up has up rows only. `residual_scale`: s
// above. A post-norm needs whole rows, which is a phase more; nothing else costs layers that do without.
struct DecoderLayer {
  static constexpr const char* kName = "DecoderLayer";
  static constexpr ort::Port kRows[] = {{"x", abi::kFloat}};
  static constexpr ort::Port kWeights[] = {
      {"attention_norm", abi::kFloat, abi::kOptional}, {"qkv", abi::kUint8},     {"output", abi::kUint8},
      {"mlp_norm", abi::kFloat, abi::kOptional},       {"gate_up", abi::kUint8}, {"down", abi::kUint8}};
  static constexpr ort::Port kMore[] = {{"qkv_bias", abi::kFloat, abi::kOptional},
                                        {"output_bias", abi::kFloat, abi::kOptional},
                                        {"gate_up_bias", abi::kFloat, abi::kOptional},
                                        {"down_bias", abi::kFloat, abi::kOptional},
                                        {"attention_post_norm", abi::kFloat, abi::kOptional},
                                        {"mlp_post_norm", abi::kFloat, abi::kOptional},
                                        {"query_scale", abi::kFloat, abi::kOptional},
                                        {"attention_norm_bias", abi::kFloat, abi::kOptional},
                                        {"mlp_norm_bias", abi::kFloat, abi::kOptional}};
  static constexpr auto kInputs =
      ort::join_ports(kRows, kAttentionPorts, kWeights, kKeyConstantPorts, kMore, kSequencePorts);
  static constexpr ort::Port kOutputs[] = {{"y", abi::kFloat}};

  abi::Status* create(ort::Attributes& attributes);
  abi::Status* compute(ort::OpContext& context) const;

  enum Matrix : int { kQkv, kOutput, kGateUp, kDown, kMatrixCount };

  // One run, checked. What a matrix makes is the input of what follows: qkv of attention, that of output, output of
  // gate_up, and that of down.
  struct Pass {
    int64_t rows;
    PackedParts weights[kMatrixCount];
    SpecAttention::Passes attention;
    Depths depths;
    const float* x;
    float *qkv, *attended, *sum, *hidden;  // scratch memory
    float* y;
  };

  // For whoever runs it elsewhere: reads and checks the inputs and makes the output. What is left to fill in: scratch
  // memory, of attention too, and attention's rows.
  abi::Status* check(ort::OpContext& context, Pass* pass) const;
  // Takes the pass's own scratch memory.
  void take_floats(Pieces* pieces, Pass* pass) const;
  // How a matrix's input is rounded, into memory for Activations, and multiplied.
  RoundRows rounding(const ort::OpContext& context, const Pass& pass, Matrix which, const Activations& to) const;
  LinearRows product(const ort::OpContext& context, const Pass& pass, Matrix which, const Activations& in) const;
  // The input that a matrix is.
  static int input_of(Matrix which);
  const SpecAttention& attention() const { return attention_; }

 private:
  abi::Status* check_weights(const ort::OpContext& context, Pass* pass) const;

  SpecAttention attention_;
  PackedMatrix matrices_[kMatrixCount];
  float epsilon_ = 0.0f;
  Activation activation_ = Activation::kSwiglu;
  float residual_scale_ = 1.0f;
  bool is_layer_norm_ = false;
  const QuantLinearKernels* kernels_ = nullptr;
  mutable std::atomic<int> lanes_{2};  // threads that took part in the last run
};

}  // namespace edge_rt
