#include "gpu/provider_api.h"

#include <cstdlib>

#include "ort/op.h"

namespace edge_rt::gpu {
namespace {

// "1.28.0" and later.
bool is_new_enough(const char* version) {
  char* rest = nullptr;
  const long major = std::strtol(version, &rest, 10);
  if (*rest != '.') return false;
  const long minor = std::strtol(rest + 1, nullptr, 10);
  return major > 1 || (major == 1 && minor >= static_cast<long>(abi::kEpVersion));
}

const char* in_front(Fault fault) {
  switch (fault) {
    case Fault::kLost: return "the device is lost: ";
    case Fault::kHung: return "the device does not answer: ";
    case Fault::kOther: return "the device failed: ";
    default: return "";
  }
}

}  // namespace

std::string error_text(const std::string& what, const GpuError& error) {
  if (error.fault == Fault::kOutOfMemory) {
    return "edge_rt gpu: " + what + ": Failed to allocate device memory, " + error.sentence;
  }
  return "edge_rt gpu: " + (in_front(error.fault) + what) + ": " + error.sentence;
}

abi::Status* ProviderApi::error(const std::string& what, const GpuError& error) const {
  const std::string text = error_text(what, error);
  if (error.fault == Fault::kOutOfMemory) return ort::make_status(ort, "%s", text.c_str());
  return call<abi::CreateStatus>(static_cast<int>(abi::kProviderFailed), text.c_str());
}

abi::Status* ProviderApi::error(const std::string& what) const {
  return ort::make_status(ort, "edge_rt gpu: %s", what.c_str());
}

const char* connect(const abi::ApiBase* base, ProviderApi* out) {
  if (const char* why = ort::connect(base, &out->ort)) return why;
  if (!is_new_enough(base->version_string())) {
    return "edge_rt gpu: ONNX Runtime is too old to run edge-rt's operators on a GPU; 1.28 or newer is needed.";
  }
  out->newest = base->table(abi::kNewestTableVersion);
  if (out->newest != nullptr) out->ep = out->call<abi::GetEpApi>();
  return out->ep != nullptr ? nullptr : "edge_rt gpu: ONNX Runtime has no interface for execution providers.";
}

}  // namespace edge_rt::gpu
