#include "tests/gpu_experts_run.h"

#include "ops/experts/experts_gpu_op.h"
#include "ort/registry.h"
#include "tests/check.h"
#include "tests/golden_inputs.h"

namespace edge_rt::golden {
namespace {

gpu::Launcher* launcher = nullptr;

struct LaunchedExperts {
  static constexpr const char* kName = Experts::kName;
  static constexpr const auto& kInputs = Experts::kInputs;
  static constexpr const auto& kOutputs = Experts::kOutputs;

  abi::Status* create(ort::Attributes& attributes) { return op.create(attributes); }
  abi::Status* compute(ort::OpContext& context) const {
    gpu::ExpertsJob job{};
    if (abi::Status* bad = gpu::describe_experts(op, context, &job)) return bad;
    // Not of the fake ONNX Runtime: GPUs have scratch memory at multiples of more bytes.
    Memory scratch(gpu::place_experts(nullptr, &job));
    gpu::place_experts(scratch.as<char>(), &job);
    CHECK(gpu::enqueue_experts(launcher, job));
    return nullptr;
  }

  Experts op;
};

}  // namespace

NodeRunner experts_of(gpu::Launcher* of_kernels) {
  launcher = of_kernels;
  static const ort::CustomOpBase<LaunchedExperts>* record = nullptr;
  if (record == nullptr) {
    ort::Api api;
    CHECK(ort::connect(fake::newest_release(), &api) == nullptr);
    record = new ort::CustomOpBase<LaunchedExperts>(api, Isa::kScalar);
  }
  return [](const auto& attributes, const auto& inputs, const auto& outputs, int threads) {
    return run_record(*record, attributes, inputs, outputs, threads);
  };
}

}  // namespace edge_rt::golden
