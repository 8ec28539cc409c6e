// DraftHead's face to ONNX Runtime: inputs, attributes, checks.
#pragma once

#include <atomic>

#include "ops/draft_head/draft_head_run.h"
#include "ops/quant_linear/quant_linear_op.h"
#include "ort/op.h"

namespace edge_rt {

// A tree of guesses after a hidden state and the token behind it; draft_head.h says how it grows.
//   hidden [1, D], token [1]: where it begins
//   embedding: packed, [vocabulary, D]
//   fc: packed, [D, 2 D]; state_norm, token_norm, output_norm [D]
//   head, more_head: packed rows of the same format, [N, D] and [M, D]; they stand for tokens head_ids [N] and more_ids
//     [M]. N is at least 1, M may be 0, or both inputs of `more` left out. Ids ascend, and no id is in both lists.
//   limits [3]: most nodes, 1 to attribute `nodes`; guesses a step makes, 1 to kMaxHeadWidth; steps, 1 to kMaxHeadDepth
//   norm_i [D], gate_up_i and down_i, packed, of block i = 1 ... attribute `blocks` (1 ... kMaxHeadBlocks): gate_up has
//     2 `intermediate` rows, its tiles alternate gate and up rows (where it has two formats, its parts lie one behind
//     the other); down is [D, intermediate]
// Outputs have attribute `nodes` places; those behind `count` hold -1, -1, 0 and 0:
//   ids, parents (-1: the root), depths (from 1), log_probs (of a node given its parent), count [1]
// Attributes: hidden (D), intermediate, vocabulary, nodes (1 ... kMaxHeadNodes), blocks, epsilon of all norms, and
// embedding_format, fc_format, gate_up_format, down_format, head_format.
struct DraftHead {
  static constexpr const char* kName = "DraftHead";
  static constexpr ort::Port kInputs[] = {
      {"hidden", abi::kFloat},
      {"token", abi::kInt64},
      {"embedding", abi::kUint8},
      {"fc", abi::kUint8},
      {"state_norm", abi::kFloat},
      {"token_norm", abi::kFloat},
      {"output_norm", abi::kFloat},
      {"head", abi::kUint8},
      {"head_ids", abi::kInt32},
      {"more_head", abi::kUint8, abi::kOptional},
      {"more_ids", abi::kInt32, abi::kOptional},
      {"limits", abi::kInt32},
      {"norm_1", abi::kFloat},
      {"gate_up_1", abi::kUint8},
      {"down_1", abi::kUint8},
      {"norm_2", abi::kFloat, abi::kOptional},
      {"gate_up_2", abi::kUint8, abi::kOptional},
      {"down_2", abi::kUint8, abi::kOptional},
      {"norm_3", abi::kFloat, abi::kOptional},
      {"gate_up_3", abi::kUint8, abi::kOptional},
      {"down_3", abi::kUint8, abi::kOptional},
      {"norm_4", abi::kFloat, abi::kOptional},
      {"gate_up_4", abi::kUint8, abi::kOptional},
      {"down_4", abi::kUint8, abi::kOptional},
  };
  static constexpr ort::Port kOutputs[] = {{"ids", abi::kInt32},
                                           {"parents", abi::kInt32},
                                           {"depths", abi::kInt32},
                                           {"log_probs", abi::kFloat},
                                           {"count", abi::kInt32}};

  abi::Status* create(ort::Attributes& attributes);
  abi::Status* compute(ort::OpContext& context) const;

 private:
  abi::Status* check_weights(const ort::OpContext& context, DraftHeadJob* job) const;
  abi::Status* check_blocks(const ort::OpContext& context, DraftHeadJob* job) const;
  abi::Status* check_heads(const ort::OpContext& context, DraftHeadJob* job) const;
  abi::Status* check_ids(const ort::OpContext& context, int index, int64_t count) const;
  abi::Status* check_call(const ort::OpContext& context, DraftHeadJob* job) const;

  int64_t hidden_ = 0, intermediate_ = 0, nodes_ = 0, blocks_ = 1;
  float epsilon_ = 0.0f;
  PackedMatrix embedding_, fc_, gate_up_, down_, head_;
  Isa isa_ = {};
  mutable std::atomic<int> lanes_{2};  // threads that took part in the last run
};

}  // namespace edge_rt
