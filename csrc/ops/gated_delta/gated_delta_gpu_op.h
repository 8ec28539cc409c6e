// GatedDelta on a GPU, as the provider has it.
#pragma once

#include "ops/gated_delta/gated_delta_op.h"
#include "ops/recurrent/recurrent_gpu_op.h"

namespace edge_rt::gpu {

struct GpuGatedDelta {
  static constexpr const char* kName = GatedDelta::kName;
  static constexpr const auto& kInputs = GatedDelta::kInputs;
  static constexpr const auto& kOutputs = GatedDelta::kOutputs;
  static constexpr const auto& kOnHost = kStatesOnHost;

  abi::Status* create(ort::Attributes& attributes) { return op_.create(attributes); }
  abi::Status* enqueue(ort::OpContext& context, PassStream& stream) const;

 private:
  GatedDelta op_;
};

}  // namespace edge_rt::gpu
