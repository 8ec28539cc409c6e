#include "gpu/memory_pool.h"

#include <algorithm>
#include <iterator>

namespace edge_rt::gpu {
namespace {

constexpr size_t kSmallest = 256;

// At most an eighth is lost, and passes of nearly the same size share their memory.
size_t rounded(size_t bytes) {
  size_t step = kSmallest;
  while (step * 16 <= bytes) step *= 2;
  return (std::max<size_t>(bytes, 1) + step - 1) / step * step;
}

}  // namespace

MemoryPool::~MemoryPool() {
  for (const auto& [bytes, idle] : idle_) device_->free(idle.memory);
  for (const auto& [memory, block] : used_) device_->free(memory);
}

void* MemoryPool::from_driver(size_t bytes, bool is_pooled) {
  GpuError error;
  void* memory = device_->allocate(bytes, &error);
  if (memory == nullptr && error.fault == Fault::kOutOfMemory && give_back_idle()) {
    memory = device_->allocate(bytes, &error);
  }
  if (memory != nullptr) used_[memory] = {bytes, is_pooled, use_ != Use::kOnce};
  return memory;
}

// Kernels that were started may still use what was given back.
bool MemoryPool::give_back_idle() {
  GpuError error;
  const auto is_free = [](const auto& entry) { return !entry.second.is_kept; };
  if (use_ == Use::kRecorded || std::none_of(idle_.begin(), idle_.end(), is_free)) return false;
  if (!device_->settle(&error)) return false;
  for (auto entry = idle_.begin(); entry != idle_.end();) {
    if (is_free(*entry)) device_->free(entry->second.memory);
    entry = is_free(*entry) ? idle_.erase(entry) : std::next(entry);
  }
  return true;
}

void* MemoryPool::allocate(size_t bytes) {
  const std::lock_guard<std::mutex> guard(lock_);
  const size_t wanted = rounded(bytes);
  const auto found = idle_.lower_bound(wanted);
  if (found != idle_.end() && (use_ == Use::kOnce || found->first <= wanted + wanted / 4)) {
    const auto [size, idle] = *found;
    used_[idle.memory] = {size, true, idle.is_kept || use_ != Use::kOnce};
    idle_.erase(found);
    return idle.memory;
  }
  if (use_ == Use::kOnce) give_back_idle();
  return from_driver(wanted, true);
}

void* MemoryPool::reserve(size_t bytes) {
  const std::lock_guard<std::mutex> guard(lock_);
  return from_driver(std::max<size_t>(bytes, 1), false);
}

bool MemoryPool::free(void* memory) {
  const std::lock_guard<std::mutex> guard(lock_);
  const auto found = used_.find(memory);
  if (found == used_.end()) return false;
  const Block block = found->second;
  used_.erase(found);
  if (block.is_pooled) {
    idle_.emplace(block.bytes, Idle{memory, block.is_kept});
  } else {
    device_->free(memory);
  }
  return true;
}

void MemoryPool::begin(Use use) {
  const std::lock_guard<std::mutex> guard(lock_);
  use_ = use;
}

size_t MemoryPool::bytes() const {
  const std::lock_guard<std::mutex> guard(lock_);
  size_t all = 0;
  for (const auto& [bytes, idle] : idle_) all += bytes;
  for (const auto& [memory, block] : used_) all += block.bytes;
  return all;
}

}  // namespace edge_rt::gpu
