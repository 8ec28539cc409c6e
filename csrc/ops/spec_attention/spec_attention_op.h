// SpecAttention's face to ONNX Runtime: inputs, attributes, checks.
#pragma once

#include <vector>

#include "ops/pass_rows/pass_rows_check.h"
#include "ops/spec_attention/spec_attention.h"
#include "ort/op.h"

namespace edge_rt {

// What attention takes beside queries, keys and values, behind the first input of every op that attends.
inline constexpr ort::Port kAttentionPorts[] = {{"cache", abi::kUint8},
                                                {"past_length", abi::kInt32},
                                                {"row_map", abi::kInt32},
                                                {"parents", abi::kInt32},
                                                {"kv_formats", abi::kInt32},
                                                {"cos", abi::kFloat},
                                                {"sin", abi::kFloat},
                                                {"q_norm", abi::kFloat, abi::kOptional},
                                                {"k_norm", abi::kFloat, abi::kOptional},
                                                {"sinks", abi::kFloat, abi::kOptional}};

// Constants that keys of 4 bits are written with; the last inputs of those ops.
inline constexpr ort::Port kKeyConstantPorts[] = {{"key_centre", abi::kFloat, abi::kOptional},
                                                  {"key_balance", abi::kFloat, abi::kOptional},
                                                  {"key_feedback", abi::kFloat, abi::kOptional}};

// Of SpecAttention, behind them; other ops have it elsewhere.
inline constexpr ort::Port kQueryScalePorts[] = {{"query_scale", abi::kFloat, abi::kOptional}};
// The last input of every op that attends.
inline constexpr ort::Port kSequencePorts[] = {{"sequence_rows", abi::kInt32}};

// y [S, H * D] = attention of S rows over the cache, which the op appends to (`cache` is written in place). The rows
// are those of B sequences, one behind the other, which see nothing of each other.
//   sequence_rows, past_length, row_map, parents: which rows those are (pass_rows_check.h).
//   kv_formats: the format of every layer's cache, at index `layer` (spec_attention.h lists them).
//   key_centre, key_balance [KV, D], key_feedback [KV, D, D]: constants of every kv head for keys of 4 bits
//     (spec_attention.h says how they count); other formats do without. A centre moves all scores of a query alike,
//     which softmax does not see, but softcap and sinks would: it is refused beside them.
//   q_norm, k_norm: [D], one norm for each head; or [H * D] and [KV * D], one for all heads of the row together, with a
//     weight for every element. Attribute `norm_after_rotation` 1: behind the rotation, then [D] only.
//   gated: attribute; 1: a row of qkv has H heads of [query D | gate D] before keys and values, and y is multiplied by
//     the sigmoid of the gates. A norm is that of a head then.
//   clip: attribute; q, k and v are limited to plus and minus it, before the rotation; 0: not. A norm does not stand
//     behind the rotation then.
//   rotate: attribute; 0: this layer does not rotate, whatever cos and sin hold.
//   norms_values: attribute; 1: values are normed with `epsilon`, without weights.
//   values_are_keys: attribute; 1: qkv is [S, (H + KV) D], and a value is the key before its norm and rotation.
//   shares_cache: attribute; 1: qkv is [S, H D]. `cache` and `layer` are those of an earlier layer of the same pass,
//     which has appended the rows; this one appends nothing.
//   query_scale [P], as many as rows of cos: the query at a position is multiplied by it, behind `scale`.
// Everything is checked before anything is written.
struct SpecAttention {
  static constexpr const char* kName = "SpecAttention";
  static constexpr ort::Port kRows[] = {{"qkv", abi::kFloat}};
  static constexpr auto kInputs =
      ort::join_ports(kRows, kAttentionPorts, kKeyConstantPorts, kQueryScalePorts, kSequencePorts);
  static constexpr ort::Port kOutputs[] = {{"y", abi::kFloat}};

  abi::Status* create(ort::Attributes& attributes);
  abi::Status* compute(ort::OpContext& context) const;

  // Inputs that operators have at places of their own: the first of the constants of keys, and two more.
  struct Places {
    int key_constants, query_scale, sequence_rows;
  };

  // One for each sequence.
  using Passes = std::vector<AttentionPass>;

  // For operators that compute qkv themselves and have the other inputs at the same places, but for those of `places`:
  // reads and checks them for `rows` rows. `depths` must outlive the passes. What is left to fill in: qkv, y, and
  // scratch memory.
  abi::Status* check(const ort::OpContext& context, int64_t rows, const Places& places, Passes* passes,
                     Depths* depths) const;
  // The same of this operator's own inputs, with qkv and y, for whoever runs it elsewhere.
  abi::Status* check(ort::OpContext& context, Passes* passes, Depths* depths) const;
  // Points passes to their rows of qkv and y.
  void point_to_rows(const float* qkv, float* y, Passes* passes) const;
  int64_t qkv_features() const { return fixed_.row_features(); }
  // Of what qkv consists of: queries and their gates, and keys and values where it has them.
  std::vector<int64_t> qkv_parts() const;
  int64_t out_features() const { return fixed_.heads * int64_t{fixed_.head_dim}; }
  int64_t layer() const { return layer_; }
  const SpecAttentionKernels& kernels() const { return *kernels_; }

 private:
  abi::Status* read_values(ort::Attributes& attributes);
  abi::Status* check_shapes(const ort::OpContext& context, const Places& places, AttentionPass* pass) const;
  abi::Status* check_norms(const ort::OpContext& context, AttentionPass* pass) const;
  abi::Status* check_cache(const ort::OpContext& context, AttentionPass* pass) const;
  abi::Status* check_key_constants(const ort::OpContext& context, int first, AttentionPass* pass) const;
  AttentionPass fixed_{};  // what the attributes say
  int64_t layer_ = 0;
  bool rotates_ = true;
  const SpecAttentionKernels* kernels_ = nullptr;
};

}  // namespace edge_rt
