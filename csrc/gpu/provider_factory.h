// What ONNX Runtime makes providers with: which GPUs there are, and a provider for a session on one of them.
#pragma once

#include <memory>
#include <vector>

#include "gpu/gpu_device.h"
#include "gpu/provider_api.h"
#include "gpu/provider_kernels.h"
#include "gpu/provider_memory.h"

namespace edge_rt::gpu {

class ProviderFactory : public abi::EpFactory {
 public:
  explicit ProviderFactory(const ProviderApi& api);
  ~ProviderFactory();
  ProviderFactory(const ProviderFactory&) = delete;
  ProviderFactory& operator=(const ProviderFactory&) = delete;

  template <class List>
  abi::Status* create(List ops) {
    return kernels_.create(ops);
  }

 private:
  struct Gpu {
    explicit Gpu(const ProviderApi& api) : memory(api) {}
    MemoryKind memory;
    abi::HardwareDevice* hardware = nullptr;
  };

  abi::Status* list_devices(abi::EpDevice** out, size_t most, size_t* count);
  abi::Status* add_device(int number, const GpuFacts& facts, abi::EpDevice** out);
  abi::Status* create_session(const abi::KeyValuePairs* metadata, const abi::SessionOptions* options, abi::Ep** out);

  const ProviderApi api_;
  KernelList kernels_;
  std::vector<std::unique_ptr<Gpu>> gpus_;  // by number
};

}  // namespace edge_rt::gpu
