// QuantLinear on a GPU, as the provider has it.
#pragma once

#include "gpu/pass_stream.h"
#include "ops/quant_linear/quant_linear_op.h"

namespace edge_rt::gpu {

struct GpuQuantLinear {
  static constexpr const char* kName = QuantLinear::kName;
  static constexpr const auto& kInputs = QuantLinear::kInputs;
  static constexpr const auto& kOutputs = QuantLinear::kOutputs;
  static constexpr int kOnHost[] = {-1};

  abi::Status* create(ort::Attributes& attributes) { return op_.create(attributes); }
  abi::Status* enqueue(ort::OpContext& context, PassStream& stream) const;

 private:
  QuantLinear op_;
};

}  // namespace edge_rt::gpu
