// ShortConv on a GPU, as the provider has it.
#pragma once

#include "gpu/pass_stream.h"
#include "ops/short_conv/short_conv_op.h"

namespace edge_rt::gpu {

struct GpuShortConv {
  static constexpr const char* kName = ShortConv::kName;
  static constexpr const auto& kInputs = ShortConv::kInputs;
  static constexpr const auto& kOutputs = ShortConv::kOutputs;
  static constexpr int kOnHost[] = {2, 3, 4, 7};  // past_length, row_map, parents, sequence_rows

  abi::Status* create(ort::Attributes& attributes) { return op_.create(attributes); }
  abi::Status* enqueue(ort::OpContext& context, PassStream& stream) const;

 private:
  ShortConv op_;
};

}  // namespace edge_rt::gpu
