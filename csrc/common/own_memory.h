// Memory that a thread keeps from work to work, in its core's caches. The planner counts it:
// edge_rt/memory/activations.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace edge_rt {

class OwnMemory {
 public:
  // At the start of a cache line; nullptr if there is none: an exception must not leave a helper.
  unsigned char* get(size_t bytes) {
    if (bytes + 64 > size_) {
      memory_.reset(new (std::nothrow) unsigned char[bytes + 64]);
      size_ = memory_ == nullptr ? 0 : bytes + 64;
    }
    if (memory_ == nullptr) return nullptr;
    const auto address = reinterpret_cast<uintptr_t>(memory_.get());
    return memory_.get() + (64 - address % 64) % 64;
  }

 private:
  std::unique_ptr<unsigned char[]> memory_;
  size_t size_ = 0;
};

// Memory of the calling thread, at the start of a cache line; nullptr if there is none. Every call may give the same
// memory: what one item of work writes there is gone in the next.
uint8_t* own_memory(size_t bytes);

}  // namespace edge_rt
