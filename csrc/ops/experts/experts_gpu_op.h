// Experts on a GPU, as the provider has it: all of them lie there.
#pragma once

#include "gpu/pass_stream.h"
#include "ops/experts/experts_gpu.h"
#include "ops/experts/experts_op.h"

namespace edge_rt::gpu {

// Checks the inputs of a node, makes its output, and describes what is to be computed, without scratch memory.
abi::Status* describe_experts(const Experts& op, ort::OpContext& context, ExpertsJob* job);

struct GpuExperts {
  static constexpr const char* kName = Experts::kName;
  static constexpr const auto& kInputs = Experts::kInputs;
  static constexpr const auto& kOutputs = Experts::kOutputs;
  static constexpr int kOnHost[] = {-1};

  abi::Status* create(ort::Attributes& attributes) { return op_.create(attributes); }
  abi::Status* enqueue(ort::OpContext& context, PassStream& stream) const;

 private:
  Experts op_;
};

}  // namespace edge_rt::gpu
