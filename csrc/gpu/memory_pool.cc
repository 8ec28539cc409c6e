#include "gpu/memory_pool.h"

#include <algorithm>

namespace edge_rt::gpu {

MemoryPool::~MemoryPool() {
  for (const auto& [memory, bytes] : reserved_) device_->free(memory);
}

void* MemoryPool::allocate(size_t bytes) {
  {
    const std::lock_guard<std::mutex> guard(lock_);
    if (is_in_pass_) return arena_->allocate(bytes);
  }
  return reserve(bytes);
}

void* MemoryPool::reserve(size_t bytes) {
  GpuError error;
  const size_t wanted = std::max<size_t>(bytes, 1);
  void* const memory = device_->allocate(wanted, &error);
  const std::lock_guard<std::mutex> guard(lock_);
  if (memory != nullptr) reserved_[memory] = wanted;
  return memory;
}

bool MemoryPool::free(void* memory) {
  {
    const std::lock_guard<std::mutex> guard(lock_);
    const auto found = reserved_.find(memory);
    if (found == reserved_.end()) return arena_ != nullptr && arena_->free(memory);
    reserved_.erase(found);
  }
  device_->free(memory);
  return true;
}

void MemoryPool::begin_pass() {
  const std::lock_guard<std::mutex> guard(lock_);
  arena_->join();
  is_in_pass_ = true;
}

void MemoryPool::end_pass() {
  const std::lock_guard<std::mutex> guard(lock_);
  is_in_pass_ = false;
}

size_t MemoryPool::bytes() const {
  const std::lock_guard<std::mutex> guard(lock_);
  size_t all = arena_ == nullptr ? 0 : arena_->bytes();
  for (const auto& [memory, bytes] : reserved_) all += bytes;
  return all;
}

}  // namespace edge_rt::gpu
