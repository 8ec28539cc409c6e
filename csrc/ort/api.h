// ONNX Runtime's functions by name, taken out of its table once, when the library is registered.
#pragma once

#include "ort_abi.h"

namespace edge_rt::ort {

struct Api {
  const abi::Table* table = nullptr;
  abi::GetTypeAndShape::Function get_type_and_shape = nullptr;  // nullptr before ONNX Runtime 1.24

  // Calls the function of a slot that every table has: api.call<abi::GetInput>(context, 0, &value).
  template <class S, class... Args>
  auto call(Args... args) const {
    static_assert(S::kVersion == abi::kTableVersion, "older releases lack this slot");
    return reinterpret_cast<typename S::Function>(table->slots[S::kIndex])(args...);
  }
};

// Fills `out`. Returns nullptr, or a sentence (static memory) that says why this ONNX Runtime cannot be used, in which
// case out->table may still be set, so that the sentence can be made a Status.
const char* connect(const abi::ApiBase* base, Api* out);

}  // namespace edge_rt::ort
