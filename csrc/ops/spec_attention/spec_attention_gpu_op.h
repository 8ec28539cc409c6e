// SpecAttention on a GPU, as the provider has it.
#pragma once

#include <iterator>

#include "gpu/pass_stream.h"
#include "ops/spec_attention/spec_attention_op.h"

namespace edge_rt::gpu {

// Inputs of an operator that attends which the host checks before every pass: past_length, row_map, parents, kv_formats
// and, the last one, sequence_rows.
template <class Op>
inline constexpr int kAttentionOnHost[] = {2, 3, 4, 5, static_cast<int>(std::size(Op::kInputs)) - 1};

// A pass as an operator that attends runs it on a GPU. `prepare` comes behind the operator's own checks, as it starts
// work already.
class GpuAttention {
 public:
  // Checks what kernels ask of checked passes beyond that. One sequence has a pass here.
  abi::Status* check(const ort::OpContext& context, const SpecAttention::Passes& passes) const;

  // Gives the pass the memory of the device that all layers of a pass share. From now on the pass is checked before
  // every replay, too. False: the stream has the error.
  bool prepare(const ort::OpContext& context, int64_t layer, PassStream& stream, AttentionPass* pass);

  // Starts the pass, whose qkv and y are device memory. False: the stream has the error.
  bool enqueue(PassStream& stream, const AttentionPass& pass, void* scratch) const;

 private:
  const int32_t* past_ = nullptr;
  const void* tree_ = nullptr;
};

struct GpuSpecAttention {
  static constexpr const char* kName = SpecAttention::kName;
  static constexpr const auto& kInputs = SpecAttention::kInputs;
  static constexpr const auto& kOutputs = SpecAttention::kOutputs;
  static constexpr const auto& kOnHost = kAttentionOnHost<SpecAttention>;

  abi::Status* create(ort::Attributes& attributes) { return op_.create(attributes); }
  abi::Status* enqueue(ort::OpContext& context, PassStream& stream) const;

 private:
  SpecAttention op_;
};

}  // namespace edge_rt::gpu
