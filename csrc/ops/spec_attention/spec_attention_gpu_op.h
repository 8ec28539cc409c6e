// SpecAttention on a GPU, as the provider has it.
#pragma once

#include <iterator>
#include <vector>

#include "gpu/pass_stream.h"
#include "ops/spec_attention/spec_attention_op.h"

namespace edge_rt::gpu {

// Inputs of an operator that attends which the host checks before every pass: past_length, row_map, parents, kv_formats
// and, the last one, sequence_rows.
template <class Op>
inline constexpr int kAttentionOnHost[] = {2, 3, 4, 5, static_cast<int>(std::size(Op::kInputs)) - 1};

// The sequences of a pass as an operator that attends runs them on a GPU, one behind the other. `prepare` comes behind
// the operator's own checks, as it starts work already.
class GpuAttention {
 public:
  // Checks what kernels ask of checked passes beyond that.
  abi::Status* check(const ort::OpContext& context) const;

  // Scratch memory for any of them.
  static size_t scratch_bytes(const SpecAttention::Passes& passes);

  // Gives them the memory of the device that all layers of a pass share. From now on the pass is checked before every
  // replay, too. False: the stream has the error.
  bool prepare(const ort::OpContext& context, int64_t layer, PassStream& stream, SpecAttention::Passes* passes);

  // Starts them, whose qkv and y are device memory. False: the stream has the error.
  bool enqueue(PassStream& stream, const SpecAttention::Passes& passes, void* scratch) const;

 private:
  struct Place {
    const int32_t* past;
    const void* tree;
  };
  std::vector<Place> places_;
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
