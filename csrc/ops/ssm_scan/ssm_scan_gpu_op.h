// SsmScan on a GPU, as the provider has it.
#pragma once

#include "ops/ssm_scan/ssm_scan_op.h"
#include "ops/recurrent/recurrent_gpu_op.h"

namespace edge_rt::gpu {

struct GpuSsmScan {
  static constexpr const char* kName = SsmScan::kName;
  static constexpr const auto& kInputs = SsmScan::kInputs;
  static constexpr const auto& kOutputs = SsmScan::kOutputs;
  static constexpr const auto& kOnHost = kStatesOnHost;

  abi::Status* create(ort::Attributes& attributes) { return op_.create(attributes); }
  abi::Status* enqueue(ort::OpContext& context, PassStream& stream) const;

 private:
  SsmScan op_;
};

}  // namespace edge_rt::gpu
