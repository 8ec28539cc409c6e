// ONNX Runtime's tables as the provider uses them, and its errors.
#pragma once

#include <string>

#include "gpu/ep_abi.h"
#include "gpu/gpu_device.h"
#include "ort/api.h"

namespace edge_rt::gpu {

// "edge_rt gpu: <what>: <error>", with "the device is lost: ", "the device does not answer: " or "the device failed: "
// in front of <what> where that is so. Device memory that ran out is told as ONNX Runtime tells it of its own.
std::string error_text(const std::string& what, const GpuError& error);

struct ProviderApi {
  ort::Api ort;
  const abi::Table* newest = nullptr;
  const abi::Table* ep = nullptr;

  // api.call<abi::GraphNodes>(graph, nodes, count): slots of any version, because the oldest release that will do has
  // them all.
  template <class S, class... Args>
  auto call(Args... args) const {
    return reinterpret_cast<typename S::Function>(newest->slots[S::kIndex])(args...);
  }
  // The same of the table for execution providers.
  template <class S, class... Args>
  auto ep_call(Args... args) const {
    return reinterpret_cast<typename S::Function>(ep->slots[S::kIndex])(args...);
  }

  // What `error_text` says.
  abi::Status* error(const std::string& what, const GpuError& error) const;
  abi::Status* error(const std::string& what) const;
};

// Fills `out`; otherwise gives a sentence in static memory, and out->newest if a status can be made of it.
const char* connect(const abi::ApiBase* base, ProviderApi* out);

// Runs what a callback does; no exception may reach ONNX Runtime.
template <class Body>
abi::Status* guarded(const ProviderApi& api, const char* what, Body body) {
  try {
    return body();
  } catch (...) {
    return api.error(std::string(what) + ": Failed to allocate memory");
  }
}

}  // namespace edge_rt::gpu
