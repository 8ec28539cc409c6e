// DecoderLayer on a GPU, as the provider has it: the kernels of QuantLinear and SpecAttention, one behind the other.
#pragma once

#include "ops/decoder_layer/decoder_layer_op.h"
#include "ops/spec_attention/spec_attention_gpu_op.h"

namespace edge_rt::gpu {

struct GpuDecoderLayer {
  static constexpr const char* kName = DecoderLayer::kName;
  static constexpr const auto& kInputs = DecoderLayer::kInputs;
  static constexpr const auto& kOutputs = DecoderLayer::kOutputs;
  static constexpr const auto& kOnHost = kAttentionOnHost<DecoderLayer>;

  abi::Status* create(ort::Attributes& attributes) { return op_.create(attributes); }
  abi::Status* enqueue(ort::OpContext& context, PassStream& stream) const;

 private:
  DecoderLayer op_;
};

}  // namespace edge_rt::gpu
