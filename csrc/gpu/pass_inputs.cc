#include "gpu/pass_inputs.h"

#include <cstring>

#include "gpu/pass_stream.h"

namespace edge_rt::gpu {

const void* PassInputs::upload(const void* from, size_t bytes) {
  // The same address is not enough: ONNX Runtime may have used the memory of one value for another.
  for (const Copy& copy : copies_) {
    if (copy.from == from && copy.bytes.size() == bytes && std::memcmp(copy.bytes.data(), from, bytes) == 0) {
      return copy.memory;
    }
  }
  void* const memory = allocate(bytes);
  if (memory == nullptr || !stream_.upload(memory, from, bytes)) return nullptr;
  const auto* const begin = static_cast<const uint8_t*>(from);
  copies_.push_back({from, {begin, begin + bytes}, memory});
  return memory;
}

const void* PassInputs::derive(const std::vector<const void*>& of, size_t bytes, const Fill& fill) {
  for (const Derived& derived : derived_) {
    if (derived.of == of) return derived.memory;
  }
  void* const memory = allocate(bytes);
  if (memory == nullptr || !fill(memory)) return nullptr;
  derived_.push_back({of, memory});
  return memory;
}

void* PassInputs::allocate(size_t bytes) {
  memory_.reserve(memory_.size() + 1);
  void* const memory = stream_.memory().allocate(bytes);
  if (memory == nullptr) {
    const GpuError failure = stream_.device().failure();
    const std::string wanted = "no " + std::to_string(bytes) + " bytes for inputs of a pass";
    stream_.keep_error(failure ? failure : GpuError{Fault::kOutOfMemory, 0, wanted});
  } else {
    memory_.push_back(memory);
  }
  return memory;
}

void PassInputs::clear() {
  for (void* const memory : memory_) stream_.memory().free(memory);
  memory_.clear();
  copies_.clear();
  derived_.clear();
  named_.clear();
}

}  // namespace edge_rt::gpu
