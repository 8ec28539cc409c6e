#include <algorithm>
#include <cstdio>

#include "ort/op.h"

namespace edge_rt::ort {
namespace {

constexpr size_t kAlignment = 64;

// Writes "[3, *, 8]".
void write_dims(const int64_t* dims, size_t rank, char* out, size_t size) {
  size_t used = static_cast<size_t>(std::snprintf(out, size, "["));
  for (size_t i = 0; i < rank && used < size; ++i) {
    const char* separator = i == 0 ? "" : ", ";
    const int written =
        dims[i] < 0 ? std::snprintf(out + used, size - used, "%s*", separator)
                    : std::snprintf(out + used, size - used, "%s%lld", separator, static_cast<long long>(dims[i]));
    used += static_cast<size_t>(written);
  }
  if (used < size) std::snprintf(out + used, size - used, "]");
}

}  // namespace

const char* type_name(int elem_type) {
  constexpr const char* kNames[] = {"nothing", "float", "uint8",  "int8", "uint16", "int16",
                                    "int32",   "int64", "string", "bool", "float16"};
  constexpr int kCount = sizeof kNames / sizeof kNames[0];
  return elem_type >= 0 && elem_type < kCount ? kNames[elem_type] : "another type";
}

const char* OpContext::input_name(int index) const {
  // A variadic input is the last one declared and gives its name to all that follow.
  return shape_.inputs[index < shape_.input_count ? index : shape_.input_count - 1].name;
}

abi::Status* OpContext::read_inputs() {
  size_t count = 0;
  if (abi::Status* bad = api_.call<abi::GetInputCount>(context_, &count)) return bad;
  if (count > kMaxPorts) return error("the node has %zu inputs, must be at most %d", count, kMaxPorts);
  input_count_ = static_cast<int>(count);
  // Optional inputs at the end of a node's list may be left out of it altogether.
  for (int i = 0; i < input_count_ || i < shape_.input_count; ++i) {
    inputs_[i].present = false;
    inputs_[i].data = nullptr;
    inputs_[i].count = 0;
    inputs_[i].rank = 0;
    inputs_[i].elem_type = abi::kUndefined;
    const abi::Value* value = nullptr;
    if (i < input_count_) {
      if (abi::Status* bad = api_.call<abi::GetInput>(context_, static_cast<size_t>(i), &value)) return bad;
    }
    const Port& port = shape_.inputs[i < shape_.input_count ? i : shape_.input_count - 1];
    if (value == nullptr) {
      if (port.arity == abi::kRequired) return error("%s is missing", port.name);
      continue;
    }
    if (abi::Status* bad = read_tensor(value, i, &inputs_[i])) return bad;
    if (port.type != abi::kUndefined && inputs_[i].elem_type != port.type) {
      return error("%s is %s, must be %s", port.name, type_name(inputs_[i].elem_type), type_name(port.type));
    }
  }
  return nullptr;
}

abi::Status* OpContext::too_many_dimensions(int index, size_t rank) const {
  return error("%s has %zu dimensions, must have at most %d", input_name(index), rank, kMaxRank);
}

abi::Status* OpContext::read_type_and_shape(const abi::Value* value, int index, TensorView* out) const {
  if (api_.get_type_and_shape != nullptr) {
    const int64_t* dims = nullptr;
    size_t rank = 0;
    if (abi::Status* bad = api_.get_type_and_shape(value, &out->elem_type, &dims, &rank)) return bad;
    if (rank > kMaxRank) return too_many_dimensions(index, rank);
    out->rank = static_cast<int>(rank);
    for (size_t i = 0; i < rank; ++i) out->dims[i] = dims[i];
    return nullptr;
  }
  abi::TensorInfo* info = nullptr;
  if (abi::Status* bad = api_.call<abi::GetTensorInfo>(value, &info)) return bad;
  size_t rank = 0;
  abi::Status* bad = api_.call<abi::GetElementType>(static_cast<const abi::TensorInfo*>(info), &out->elem_type);
  if (bad == nullptr) bad = api_.call<abi::GetDimensionsCount>(static_cast<const abi::TensorInfo*>(info), &rank);
  if (bad == nullptr && rank > kMaxRank) bad = too_many_dimensions(index, rank);
  if (bad == nullptr) {
    out->rank = static_cast<int>(rank);
    bad = api_.call<abi::GetDimensions>(static_cast<const abi::TensorInfo*>(info), &out->dims[0], rank);
  }
  api_.call<abi::ReleaseTensorInfo>(info);
  return bad;
}

abi::Status* OpContext::read_tensor(const abi::Value* value, int index, TensorView* out) const {
  if (abi::Status* bad = read_type_and_shape(value, index, out)) return bad;
  out->count = 1;
  for (int i = 0; i < out->rank; ++i) out->count *= static_cast<size_t>(out->dims[i]);
  out->present = true;
  return api_.call<abi::GetTensorData>(const_cast<abi::Value*>(value), &out->data);
}

abi::Status* OpContext::output(int index, std::initializer_list<int64_t> dims, TensorView* out) {
  return output(index, dims.begin(), static_cast<int>(dims.size()), out);
}

abi::Status* OpContext::output(int index, const int64_t* dims, int rank, TensorView* out) {
  *out = TensorView{};
  if (rank > kMaxRank) return error("output %d has %d dimensions, must have at most %d", index, rank, kMaxRank);
  size_t count = 0;
  if (abi::Status* bad = api_.call<abi::GetOutputCount>(static_cast<const abi::KernelContext*>(context_), &count)) {
    return bad;
  }
  abi::Value* value = nullptr;
  if (static_cast<size_t>(index) < count) {
    if (abi::Status* bad =
            api_.call<abi::GetOutput>(context_, static_cast<size_t>(index), dims, static_cast<size_t>(rank), &value)) {
      return bad;
    }
  }
  if (value == nullptr) return nullptr;
  out->elem_type = shape_.outputs[std::min(index, shape_.output_count - 1)].type;  // more if the last is variadic
  out->rank = rank;
  out->count = 1;
  for (int i = 0; i < rank; ++i) {
    out->dims[i] = dims[i];
    out->count *= static_cast<size_t>(dims[i]);
  }
  out->present = true;
  if (abi::Status* bad = api_.call<abi::GetTensorData>(value, &out->data)) return bad;
  // ONNX Runtime makes a tensor without memory where the allocator of a device has none left.
  if (out->data == nullptr && out->count > 0) return error("Failed to allocate output %d", index);
  return nullptr;
}

Scratch::~Scratch() {
  if (memory_ == nullptr) return;
  if (abi::Status* failed = api_->call<abi::AllocatorFree>(allocator_, memory_)) {
    api_->call<abi::ReleaseStatus>(failed);
  }
}

abi::Status* OpContext::scratch(size_t bytes, Scratch* out) {
  if (out->memory_ != nullptr) return error("a scratch buffer was asked for twice");
  const size_t padded = (bytes == 0 ? 1 : bytes) + kAlignment - 1;
  void* memory = nullptr;
  abi::Status* failed = api_.call<abi::AllocatorAlloc>(allocator_, padded, &memory);
  if (failed != nullptr || memory == nullptr) {
    if (failed != nullptr) api_.call<abi::ReleaseStatus>(failed);
    return error("Failed to allocate %zu bytes of scratch memory", padded);
  }
  out->api_ = &api_;
  out->allocator_ = allocator_;
  out->memory_ = memory;
  const uintptr_t address = reinterpret_cast<uintptr_t>(memory);
  out->aligned_ = reinterpret_cast<void*>((address + kAlignment - 1) / kAlignment * kAlignment);
  return nullptr;
}

abi::Status* OpContext::check_shape(int index, std::initializer_list<int64_t> dims) const {
  const TensorView& tensor = inputs_[index];
  if (!tensor.present) return nullptr;
  bool fits = static_cast<size_t>(tensor.rank) == dims.size();
  for (int i = 0; fits && i < tensor.rank; ++i) {
    const int64_t wanted = dims.begin()[i];
    fits = wanted < 0 || wanted == tensor.dims[i];
  }
  if (fits) return nullptr;
  char is[192], must_be[192];
  write_dims(tensor.dims, static_cast<size_t>(tensor.rank), is, sizeof is);
  write_dims(dims.begin(), dims.size(), must_be, sizeof must_be);
  return error("%s is %s, must be %s", input_name(index), is, must_be);
}

abi::Status* OpContext::check_type(int index, std::initializer_list<int> types) const {
  if (!inputs_[index].present) return nullptr;
  std::string names;
  for (const int type : types) {
    if (inputs_[index].elem_type == type) return nullptr;
    if (!names.empty()) names += " or ";
    names += type_name(type);
  }
  return error("%s is %s, must be %s", input_name(index), type_name(inputs_[index].elem_type), names.c_str());
}

}  // namespace edge_rt::ort
