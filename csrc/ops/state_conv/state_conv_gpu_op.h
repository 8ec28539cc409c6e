// StateConv on a GPU, as the provider has it.
#pragma once

#include "ops/state_conv/state_conv_op.h"
#include "ops/recurrent/recurrent_gpu_op.h"

namespace edge_rt::gpu {

struct GpuStateConv {
  static constexpr const char* kName = StateConv::kName;
  static constexpr const auto& kInputs = StateConv::kInputs;
  static constexpr const auto& kOutputs = StateConv::kOutputs;
  static constexpr const auto& kOnHost = kStatesOnHost;

  abi::Status* create(ort::Attributes& attributes) { return op_.create(attributes); }
  abi::Status* enqueue(ort::OpContext& context, PassStream& stream) const;

 private:
  StateConv op_;
};

}  // namespace edge_rt::gpu
