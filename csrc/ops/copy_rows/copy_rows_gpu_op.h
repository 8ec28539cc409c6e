// Operators of ONNX that native packages have between those of their own, for floats; the CPU runs ONNX Runtime's.
#pragma once

#include "gpu/onnx_types.h"
#include "gpu/pass_stream.h"
#include "ops/copy_rows/copy_rows.h"
#include "ort/op.h"

namespace edge_rt::gpu {

// y: `data` with the axis of attribute `axis` (0 by default) replaced by the axes of `indices`.
struct GpuGather {
  static constexpr const char* kName = "Gather";
  static constexpr OnnxVersions kVersions{1, 13};
  static constexpr OnnxType kTypes[] = {{"T", abi::kFloat}, {"Tind", abi::kInt64}};
  static constexpr ort::Port kInputs[] = {{"data", abi::kFloat}, {"indices", abi::kInt64}};
  static constexpr ort::Port kOutputs[] = {{"y", abi::kFloat}};
  static constexpr int kOnHost[] = {1};

  abi::Status* create(ort::Attributes& attributes);
  abi::Status* enqueue(ort::OpContext& context, PassStream& stream) const;

 private:
  int64_t axis_ = 0;
};

// y: the inputs one behind the other along attribute `axis`.
struct GpuConcat {
  static constexpr const char* kName = "Concat";
  static constexpr OnnxVersions kVersions{4, 13};
  static constexpr OnnxType kTypes[] = {{"T", abi::kFloat}};
  static constexpr ort::Port kInputs[] = {{"inputs", abi::kFloat, abi::kVariadic}};
  static constexpr ort::Port kOutputs[] = {{"y", abi::kFloat}};
  static constexpr int kOnHost[] = {-1};

  abi::Status* create(ort::Attributes& attributes);
  abi::Status* enqueue(ort::OpContext& context, PassStream& stream) const;

 private:
  int64_t axis_ = 0;
};

// outputs: `num_outputs` parts of the input along its last axis, all of one size.
struct GpuSplit {
  static constexpr const char* kName = "Split";
  static constexpr OnnxVersions kVersions{18, 18};
  static constexpr OnnxType kTypes[] = {{"T", abi::kFloat}};
  static constexpr ort::Port kInputs[] = {{"input", abi::kFloat}};
  static constexpr ort::Port kOutputs[] = {{"outputs", abi::kFloat, abi::kVariadic}};
  static constexpr int kOnHost[] = {-1};

  abi::Status* create(ort::Attributes& attributes);
  abi::Status* enqueue(ort::OpContext& context, PassStream& stream) const;

 private:
  int64_t axis_ = 0, parts_ = 1;
};

// C: A times the one number in B.
struct GpuMul {
  static constexpr const char* kName = "Mul";
  static constexpr OnnxVersions kVersions{7, 14};
  static constexpr OnnxType kTypes[] = {{"T", abi::kFloat}};
  static constexpr ort::Port kInputs[] = {{"A", abi::kFloat}, {"B", abi::kFloat}};
  static constexpr ort::Port kOutputs[] = {{"C", abi::kFloat}};
  static constexpr int kOnHost[] = {-1};

  abi::Status* create(ort::Attributes&) { return nullptr; }
  abi::Status* enqueue(ort::OpContext& context, PassStream& stream) const;
};

}  // namespace edge_rt::gpu
