#include "gpu/provider_memory.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

namespace edge_rt::gpu {

MemoryKind::~MemoryKind() {
  if (info_ != nullptr) api_.call<abi::ReleaseMemoryInfo>(info_);
}

// No alignment is named, though addresses have one of 256: ONNX Runtime compares it, would take memory that was bound
// by its address for another device's, and copy.
abi::Status* MemoryKind::create(int number) {
  return api_.call<abi::CreateMemoryInfo>("EdgeRtGpu", static_cast<int>(abi::kDeviceGpu), kVendor,
                                          static_cast<int32_t>(number), static_cast<int>(abi::kDeviceDefault),
                                          size_t{0}, static_cast<int>(abi::kDeviceAllocator), &info_);
}

namespace {

// What `body` gives; nullptr where the host has no memory, as no exception may reach ONNX Runtime.
template <class Body>
void* or_none(Body body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

}  // namespace

DeviceAllocator::DeviceAllocator(const abi::MemoryInfo* memory_info) : abi::AllocatorImpl{}, info_(memory_info) {
  version = abi::kEpVersion;
  free = [](abi::AllocatorImpl* self, void* memory) { static_cast<DeviceAllocator*>(self)->give_back(memory); };
  info = [](const abi::AllocatorImpl* self) { return static_cast<const DeviceAllocator*>(self)->info_; };
  reserve = [](abi::AllocatorImpl* self, size_t bytes) {
    return or_none([&] { return static_cast<DeviceAllocator*>(self)->take(bytes); });
  };
  allocate = reserve;
}

DeviceAllocator::DeviceAllocator(const abi::MemoryInfo* memory_info, MemoryPool* pool) : DeviceAllocator(memory_info) {
  pool_ = pool;
  allocate = [](abi::AllocatorImpl* self, size_t bytes) {
    return or_none([&] { return static_cast<DeviceAllocator*>(self)->pool_->allocate(bytes); });
  };
}

DeviceAllocator::DeviceAllocator(const abi::MemoryInfo* memory_info, Opener open) : DeviceAllocator(memory_info) {
  open_ = std::move(open);
}

void* DeviceAllocator::take(size_t bytes) {
  if (pool_ != nullptr) return pool_->reserve(bytes);
  const std::lock_guard<std::mutex> guard(lock_);
  if (own_.empty() || own_.back()->device().is_lost()) {
    GpuError error;
    std::shared_ptr<GpuDevice> gpu = open_(&error);
    if (gpu == nullptr) return nullptr;
    own_.push_back(std::make_unique<MemoryPool>(std::move(gpu)));
  }
  void* const memory = own_.back()->reserve(bytes);
  drop_unused();
  return memory;
}

// Nobody can open a lost device anew as long as a pool holds it.
void DeviceAllocator::drop_unused() {
  const auto is_unused = [](const auto& pool) { return pool->bytes() == 0; };
  own_.erase(std::remove_if(own_.begin(), own_.end(), is_unused), own_.end());
}

void DeviceAllocator::give_back(void* memory) {
  if (pool_ != nullptr) {
    pool_->free(memory);
    return;
  }
  const std::lock_guard<std::mutex> guard(lock_);
  for (const auto& pool : own_) {
    if (pool->free(memory)) break;
  }
  drop_unused();
}

DeviceTransfer::DeviceTransfer(const ProviderApi& api, Opener open)
    : abi::DataTransfer{}, api_(api), open_(std::move(open)) {
  version = abi::kEpVersion;
  release = [](abi::DataTransfer* self) { delete static_cast<DeviceTransfer*>(self); };
  can_copy = [](const abi::DataTransfer* self, const abi::MemoryDevice* from, const abi::MemoryDevice* to) {
    const auto* own = static_cast<const DeviceTransfer*>(self);
    const auto is_host = [&](const abi::MemoryDevice* device) {
      return own->api_.ep_call<abi::MemoryDeviceType>(device) == abi::kDeviceCpu;
    };
    return (own->is_ours(from) && (own->is_ours(to) || is_host(to))) || (is_host(from) && own->is_ours(to));
  };
  copy = [](abi::DataTransfer* self, const abi::Value** from, abi::Value** to, void**, size_t count) -> abi::Status* {
    const auto* own = static_cast<const DeviceTransfer*>(self);
    return guarded(own->api_, "a copy", [&]() -> abi::Status* {
      for (size_t i = 0; i < count; ++i) {
        if (abi::Status* bad = own->copy_one(from[i], to[i])) return bad;
      }
      return nullptr;
    });
  };
}

bool DeviceTransfer::is_ours(const abi::MemoryDevice* device) const {
  return api_.ep_call<abi::MemoryDeviceType>(device) == abi::kDeviceGpu &&
         api_.ep_call<abi::MemoryDeviceVendor>(device) == kVendor;
}

abi::Status* DeviceTransfer::copy_one(const abi::Value* from, abi::Value* to) const {
  const abi::MemoryDevice* const source = api_.ep_call<abi::ValueDevice>(from);
  const abi::MemoryDevice* const target = api_.ep_call<abi::ValueDevice>(static_cast<const abi::Value*>(to));
  void *read = nullptr, *written = nullptr;
  size_t bytes = 0;
  abi::Status* bad = nullptr;
  if ((bad = api_.call<abi::GetTensorData>(const_cast<abi::Value*>(from), &read)) != nullptr ||
      (bad = api_.call<abi::GetTensorData>(to, &written)) != nullptr ||
      (bad = api_.call<abi::GetTensorBytes>(from, &bytes)) != nullptr) {
    return bad;
  }
  if (bytes == 0) return nullptr;
  const Way way = !is_ours(source) ? Way::kToDevice : is_ours(target) ? Way::kOnDevice : Way::kToHost;
  const abi::MemoryDevice* const ours = way == Way::kToDevice ? target : source;
  GpuError error;
  const std::shared_ptr<GpuDevice> gpu = open_(static_cast<int>(api_.ep_call<abi::MemoryDeviceNumber>(ours)), &error);
  // ONNX Runtime makes a tensor without memory where the allocator has given none.
  if (gpu != nullptr && (read == nullptr || written == nullptr)) {
    if ((error = gpu->failure())) return api_.error("a copy of " + std::to_string(bytes) + " bytes", error);
    return api_.error("Failed to allocate " + std::to_string(bytes) + " bytes of device memory");
  }
  if (gpu != nullptr && gpu->copy(way, written, read, bytes, &error)) return nullptr;
  return api_.error("a copy of " + std::to_string(bytes) + " bytes", error);
}

}  // namespace edge_rt::gpu
