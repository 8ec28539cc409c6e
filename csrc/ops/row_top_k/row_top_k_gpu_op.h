// RowTopK on a GPU, as the provider has it.
#pragma once

#include "gpu/pass_stream.h"
#include "ops/row_top_k/row_top_k_op.h"

namespace edge_rt::gpu {

struct GpuRowTopK {
  static constexpr const char* kName = RowTopK::kName;
  static constexpr const auto& kInputs = RowTopK::kInputs;
  static constexpr const auto& kOutputs = RowTopK::kOutputs;
  static constexpr int kOnHost[] = {-1};

  abi::Status* create(ort::Attributes& attributes) { return op_.create(attributes); }
  abi::Status* enqueue(ort::OpContext& context, PassStream& stream) const;

 private:
  RowTopK op_;
};

}  // namespace edge_rt::gpu
