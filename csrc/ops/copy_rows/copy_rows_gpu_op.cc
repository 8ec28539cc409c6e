#include "ops/copy_rows/copy_rows_gpu_op.h"

#include <algorithm>
#include <string>
#include <utility>

#include "ops/copy_rows/copy_rows_gpu.h"

namespace edge_rt::gpu {
namespace {

// Numbers in dimensions [begin, end).
int64_t count_of(const int64_t* dims, int begin, int end) {
  int64_t count = 1;
  for (int i = begin; i < end; ++i) count *= dims[i];
  return count;
}

// An axis of so many, counted from the end where it is negative.
abi::Status* find_axis(const ort::OpContext& context, int64_t axis, int rank, int* out) {
  if (axis < -rank || axis >= rank) {
    return context.error("axis is %lld, must be %d to %d", static_cast<long long>(axis), -rank, rank - 1);
  }
  *out = static_cast<int>(axis < 0 ? axis + rank : axis);
  return nullptr;
}

// What is wrong with ids of rows; empty: nothing.
std::string find_bad_id(const int64_t* ids, int64_t count, int64_t length) {
  for (int64_t i = 0; i < count; ++i) {
    if (ids[i] >= -length && ids[i] < length) continue;
    return "indices[" + std::to_string(i) + "] is " + std::to_string(ids[i]) + ", must be " + std::to_string(-length) +
           " to " + std::to_string(length - 1);
  }
  return {};
}

}  // namespace

abi::Status* GpuGather::create(ort::Attributes& attributes) {
  axis_ = attributes.integer("axis", 0);
  return nullptr;
}

abi::Status* GpuGather::enqueue(ort::OpContext& context, PassStream& stream) const {
  const ort::TensorView &data = context.input(0), &indices = context.input(1);
  int axis = 0;
  if (abi::Status* bad = find_axis(context, axis_, data.rank, &axis)) return bad;
  const int64_t* const ids = indices.as<const int64_t>();
  const int64_t length = data.dims[axis], count = static_cast<int64_t>(indices.count);
  if (const std::string problem = find_bad_id(ids, count, length); !problem.empty()) {
    return context.error("%s", problem.c_str());
  }
  const int rank = data.rank - 1 + indices.rank;
  if (rank > ort::kMaxRank) return context.error("y has %d dimensions, must have at most %d", rank, ort::kMaxRank);
  int64_t dims[ort::kMaxRank];
  int64_t* const behind = std::copy_n(indices.dims, indices.rank, std::copy_n(data.dims, axis, dims));
  std::copy(data.dims + axis + 1, data.dims + data.rank, behind);
  ort::TensorView y;
  if (abi::Status* bad = context.output(0, dims, rank, &y)) return bad;
  if (y.count == 0) return nullptr;
  const int64_t rows = count_of(data.dims, 0, axis) * count, width = count_of(data.dims, axis + 1, data.rank);
  stream.check_replays(kName, [=] { return find_bad_id(ids, count, length); });
  // An error stays in the stream, where whoever runs the kernel finds it.
  const void* const on_device = stream.inputs().upload(ids, sizeof *ids * indices.count);
  if (on_device == nullptr) return nullptr;
  enqueue_copy_rows(&stream, {data.as<const float>(), static_cast<const int64_t*>(on_device), count, length, rows,
                              width, y.as<float>(), width});
  return nullptr;
}

abi::Status* GpuConcat::create(ort::Attributes& attributes) {
  axis_ = attributes.integer("axis");
  return nullptr;
}

abi::Status* GpuConcat::enqueue(ort::OpContext& context, PassStream& stream) const {
  const ort::TensorView& first = context.input(0);
  int axis = 0;
  if (abi::Status* bad = find_axis(context, axis_, first.rank, &axis)) return bad;
  int64_t dims[ort::kMaxRank];
  std::copy_n(first.dims, first.rank, dims);
  for (int i = 1; i < context.input_count(); ++i) {
    const ort::TensorView& more = context.input(i);
    bool fits = more.rank == first.rank;
    for (int j = 0; fits && j < first.rank; ++j) fits = j == axis || more.dims[j] == first.dims[j];
    if (!fits) return context.error("input %d has another shape than input 0", i);
    dims[axis] += more.dims[axis];
  }
  ort::TensorView y;
  if (abi::Status* bad = context.output(0, dims, first.rank, &y)) return bad;
  const int64_t rows = count_of(dims, 0, axis), stride = count_of(dims, axis, first.rank);
  float* to = y.as<float>();
  for (int i = 0; i < context.input_count(); ++i) {
    const ort::TensorView& part = context.input(i);
    const int64_t width = count_of(part.dims, axis, part.rank);
    if (!enqueue_copy_rows(&stream, {part.as<const float>(), nullptr, 0, 0, rows, width, to, stride})) return nullptr;
    to += width;
  }
  return nullptr;
}

abi::Status* GpuSplit::create(ort::Attributes& attributes) {
  axis_ = attributes.integer("axis", 0);
  parts_ = attributes.integer("num_outputs");
  if (parts_ < 1) return attributes.error("num_outputs is %lld, must be at least 1", static_cast<long long>(parts_));
  return nullptr;
}

abi::Status* GpuSplit::enqueue(ort::OpContext& context, PassStream& stream) const {
  const ort::TensorView& input = context.input(0);
  int axis = 0;
  if (abi::Status* bad = find_axis(context, axis_, input.rank, &axis)) return bad;
  const int64_t length = input.dims[axis];
  if (axis != input.rank - 1 || length % parts_ != 0) {
    return context.error("axis %d has %lld values, must be the last one, with a multiple of %lld", axis,
                         static_cast<long long>(length), static_cast<long long>(parts_));
  }
  int64_t dims[ort::kMaxRank];
  std::copy_n(input.dims, input.rank, dims);
  dims[axis] = length / parts_;
  SplitRows job{input.as<const float>(), length, count_of(input.dims, 0, axis), dims[axis], 0, {}};
  for (int64_t first = 0; first < parts_; first += job.parts, job.from += job.parts * job.width) {
    job.parts = std::min<int64_t>(parts_ - first, kSplitParts);
    for (int64_t i = 0; i < job.parts; ++i) {
      ort::TensorView part;
      if (abi::Status* bad = context.output(static_cast<int>(first + i), dims, input.rank, &part)) return bad;
      if (!part.present) return context.error("output %lld is not there", static_cast<long long>(first + i));
      job.to[i] = part.as<float>();
    }
    if (!enqueue_split_rows(&stream, job)) return nullptr;
  }
  return nullptr;
}

abi::Status* GpuMul::enqueue(ort::OpContext& context, PassStream& stream) const {
  const ort::TensorView &a = context.input(0), &b = context.input(1);
  if (b.count != 1 || b.rank > a.rank) {
    return context.error("B has %zu values in %d dimensions, must have 1 in at most %d", b.count, b.rank, a.rank);
  }
  ort::TensorView y;
  if (abi::Status* bad = context.output(0, a.dims, a.rank, &y)) return bad;
  const int64_t rows = a.rank == 0 ? 1 : count_of(a.dims, 0, a.rank - 1), width = a.rank == 0 ? 1 : a.dims[a.rank - 1];
  enqueue_scale_rows(&stream, {a.as<const float>(), b.as<const float>(), rows, width, y.as<float>()});
  return nullptr;
}

}  // namespace edge_rt::gpu
