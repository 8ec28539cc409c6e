// Two of the toy operators (toy_ops.h) for the GPU, so that tests can drive the provider through ONNX Runtime.
#pragma once

#include "gpu/pass_stream.h"
#include "ort/registry.h"
#include "tests/gpu_toy.h"
#include "tests/toy_ops.h"

namespace edge_rt::gpu {

struct GpuAffine {
  static constexpr const char* kName = Affine::kName;
  static constexpr const auto& kInputs = Affine::kInputs;
  static constexpr const auto& kOutputs = Affine::kOutputs;
  static constexpr int kOnHost[] = {-1};

  abi::Status* create(ort::Attributes& attributes) {
    factor_ = attributes.real("factor");
    return nullptr;
  }

  abi::Status* enqueue(ort::OpContext& context, PassStream& stream) const {
    const ort::TensorView& x = context.input(0);
    if (abi::Status* bad = context.check_shape(0, {-1, 2})) return bad;
    if (abi::Status* bad = context.check_shape(1, {x.dims[0], 2})) return bad;
    ort::TensorView y;
    if (abi::Status* bad = context.output(0, x.dims, x.rank, &y)) return bad;
    const AffineArgs args{x.as<const float>(), context.input(1).as<const float>(), y.as<float>(), factor_,
                          static_cast<int64_t>(x.count)};
    stream.launch("toy_affine", static_cast<int>((args.count + 63) / 64), 1, args);
    return nullptr;
  }

  float factor_ = 0;
};

struct GpuAppend {
  static constexpr const char* kName = Append::kName;
  static constexpr const auto& kInputs = Append::kInputs;
  static constexpr const auto& kOutputs = Append::kOutputs;
  static constexpr int kOnHost[] = {2};

  abi::Status* create(ort::Attributes&) { return nullptr; }

  abi::Status* enqueue(ort::OpContext& context, PassStream& stream) const {
    const ort::TensorView& cache = context.input(0);
    const int64_t rows = cache.dims[0], width = cache.dims[1];
    const int64_t* const at = context.input(2).as<const int64_t>();
    if (abi::Status* bad = context.check_shape(1, {width})) return bad;
    if (*at < 0 || *at >= rows) {
      return context.error("at is %lld, must be below %lld", static_cast<long long>(*at), static_cast<long long>(rows));
    }
    ort::TensorView sum;
    ort::Scratch scratch;
    if (abi::Status* bad = context.output(0, {width}, &sum)) return bad;
    if (abi::Status* bad = context.scratch(sizeof *at, &scratch)) return bad;
    const AppendArgs args{cache.as<float>(), context.input(1).as<const float>(), scratch.as<const int64_t>(),
                          sum.as<float>(), width};
    if (stream.upload(scratch.data(), at, sizeof *at)) stream.launch("toy_append", 1, 1, args);
    stream.check_replays("Append", [=]() -> std::string {
      if (*at >= 0 && *at < rows) return "";
      return "at is " + std::to_string(*at) + ", must be below " + std::to_string(rows);
    });
    return nullptr;
  }
};

using GpuOps = ort::OpList<GpuAffine, GpuAppend>;

}  // namespace edge_rt::gpu
