// DecoderLayer: a whole layer of a llama-like decoder, out of the parts of QuantLinear and SpecAttention.
//
// y = a + down(silu(gate(norm(a))) * up(norm(a))),  a = x + output(attention(qkv(norm(x))))
//
// The bits are those of the five operators one after the other. Together they fork and join once, and their outputs
// stay in scratch memory: a node of its own costs about 4 microseconds for a fork, a join and what ONNX Runtime does
// between, while a 1-row product takes 8 to 30.
#pragma once

#include <atomic>

#include "ops/quant_linear/quant_linear_op.h"
#include "ops/quant_linear/quant_linear_run.h"
#include "ops/spec_attention/spec_attention_op.h"
#include "ort/op.h"

namespace edge_rt {

// Inputs 1 to 10, the constants of keys and the attributes they need are SpecAttention's. qkv, output, gate_up and down
// are packed matrices of attributes <name>_format; gate_up alternates tiles of gate and up rows. qkv may have three
// formats and gate_up two, one for each of its parts, which then lie one behind the other. `hidden` is the length of a
// row of x, `intermediate` of the gate. `epsilon` belongs to all norms.
struct DecoderLayer {
  static constexpr const char* kName = "DecoderLayer";
  static constexpr ort::Port kRows[] = {{"x", abi::kFloat}};
  static constexpr ort::Port kWeights[] = {{"attention_norm", abi::kFloat}, {"qkv", abi::kUint8},
                                           {"output", abi::kUint8},         {"mlp_norm", abi::kFloat},
                                           {"gate_up", abi::kUint8},        {"down", abi::kUint8}};
  static constexpr auto kInputs = ort::join_ports(kRows, kAttentionPorts, kWeights, kKeyConstantPorts);
  static constexpr ort::Port kOutputs[] = {{"y", abi::kFloat}};

  abi::Status* create(ort::Attributes& attributes);
  abi::Status* compute(ort::OpContext& context) const;

 private:
  enum Matrix : int { kQkv, kOutput, kGateUp, kDown, kMatrixCount };

  abi::Status* check(const ort::OpContext& context, int64_t rows, PackedParts* weights) const;

  SpecAttention attention_;
  PackedMatrix matrices_[kMatrixCount];
  float epsilon_ = 0.0f;
  const QuantLinearKernels* kernels_ = nullptr;
  mutable std::atomic<int> lanes_{2};  // threads that took part in the last run
};

}  // namespace edge_rt
