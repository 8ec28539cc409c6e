// QuantEmbed on a GPU, as the provider has it.
#pragma once

#include "gpu/pass_stream.h"
#include "ops/quant_embed/quant_embed_op.h"

namespace edge_rt::gpu {

struct GpuQuantEmbed {
  static constexpr const char* kName = QuantEmbed::kName;
  static constexpr const auto& kInputs = QuantEmbed::kInputs;
  static constexpr const auto& kOutputs = QuantEmbed::kOutputs;
  static constexpr int kOnHost[] = {0};

  abi::Status* create(ort::Attributes& attributes) { return op_.create(attributes); }
  abi::Status* enqueue(ort::OpContext& context, PassStream& stream) const;

 private:
  QuantEmbed op_;
};

}  // namespace edge_rt::gpu
