// Device memory of a session: of passes out of their arena, and of all else, such as weights, from the driver, of
// exactly the size that is asked for.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "gpu/gpu_device.h"
#include "gpu/pass_arena.h"

namespace edge_rt::gpu {

class MemoryPool {
 public:
  // Without an arena nothing of it is of a pass.
  explicit MemoryPool(std::shared_ptr<GpuDevice> device, std::shared_ptr<PassArena> arena = nullptr)
      : device_(std::move(device)), arena_(std::move(arena)) {}
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  // nullptr: there is none. At least one byte is given.
  void* allocate(size_t bytes);
  // Not of a pass, whenever it is asked for.
  void* reserve(size_t bytes);
  // False: the memory is not of this pool.
  bool free(void* memory);

  // What is asked for until `end_pass` is of a pass.
  void begin_pass();
  void end_pass();
  // Recordings of passes are void once this is another number.
  int generation() const { return arena_ == nullptr ? 0 : arena_->generation(); }
  // What it has from the driver, the arena included.
  size_t bytes() const;
  const GpuDevice& device() const { return *device_; }

 private:
  const std::shared_ptr<GpuDevice> device_;
  const std::shared_ptr<PassArena> arena_;
  mutable std::mutex lock_;
  std::map<void*, size_t> reserved_;
  bool is_in_pass_ = false;
};

}  // namespace edge_rt::gpu
