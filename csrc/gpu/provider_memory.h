// Device memory as ONNX Runtime asks for it, and copies between device and host.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "gpu/memory_pool.h"
#include "gpu/provider_api.h"

namespace edge_rt::gpu {

// Memory of a GPU, as ONNX Runtime describes it; released with the object.
class MemoryKind {
 public:
  explicit MemoryKind(const ProviderApi& api) : api_(api) {}
  ~MemoryKind();
  MemoryKind(const MemoryKind&) = delete;
  MemoryKind& operator=(const MemoryKind&) = delete;

  abi::Status* create(int number);
  const abi::MemoryInfo* info() const { return info_; }

 private:
  const ProviderApi& api_;
  abi::MemoryInfo* info_ = nullptr;
};

// Hands out device memory: of the pool of a session; or for whoever asks outside of one, straight from the driver, and
// then the GPU is opened with the first bytes.
class DeviceAllocator : public abi::AllocatorImpl {
 public:
  using Opener = std::function<std::shared_ptr<GpuDevice>(GpuError*)>;

  DeviceAllocator(const abi::MemoryInfo* info, MemoryPool* pool);
  DeviceAllocator(const abi::MemoryInfo* info, Opener open);

 private:
  DeviceAllocator(const abi::MemoryInfo* info);
  void* take(size_t bytes);
  void give_back(void* memory);
  void drop_unused();

  const abi::MemoryInfo* info_;
  MemoryPool* pool_ = nullptr;
  Opener open_;
  std::mutex lock_;
  // The last one is that of the open device, those before it of lost ones whose memory somebody still holds.
  std::vector<std::unique_ptr<MemoryPool>> own_;
};

class DeviceTransfer : public abi::DataTransfer {
 public:
  // Gives the opened GPU of a number, or nullptr and the error.
  using Opener = std::function<std::shared_ptr<GpuDevice>(int number, GpuError*)>;

  DeviceTransfer(const ProviderApi& api, Opener open);

 private:
  bool is_ours(const abi::MemoryDevice* device) const;
  abi::Status* copy_one(const abi::Value* from, abi::Value* to) const;

  const ProviderApi& api_;
  Opener open_;
};

}  // namespace edge_rt::gpu
