// Device memory of a session. What kernels gave back is kept for those that come later on the same stream: the driver
// would wait for all work at every call, and recorded graphs go on using its addresses.
//
// A pass that is not recorded takes the smallest block that is large enough, and lets others go where it needs a larger
// one, so that passes of growing size do not add up. Blocks of recorded passes stay, and are about as large as asked
// for.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>

#include "gpu/gpu_device.h"

namespace edge_rt::gpu {

class MemoryPool {
 public:
  // What a pass does with its blocks.
  enum class Use {
    kOnce,
    kKept,      // it will be recorded, with the same blocks
    kRecorded,  // it is being recorded: nothing may wait for the device now
  };

  explicit MemoryPool(std::shared_ptr<GpuDevice> device) : device_(std::move(device)) {}
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  // nullptr: there is none. At least one byte is given.
  void* allocate(size_t bytes);
  // Of exactly this size, for as long as the session lives.
  void* reserve(size_t bytes);
  // False: the memory is not of this pool.
  bool free(void* memory);

  // Says how the next blocks are used.
  void begin(Use use);
  // What it has from the driver.
  size_t bytes() const;
  const GpuDevice& device() const { return *device_; }

 private:
  struct Block {
    size_t bytes;
    bool is_pooled;
    bool is_kept;  // a recorded graph may use it
  };
  struct Idle {
    void* memory;
    bool is_kept;
  };

  void* from_driver(size_t bytes, bool is_pooled);
  // Whether anything was: blocks that no graph uses.
  bool give_back_idle();

  const std::shared_ptr<GpuDevice> device_;
  mutable std::mutex lock_;
  std::map<void*, Block> used_;
  std::multimap<size_t, Idle> idle_;
  Use use_ = Use::kOnce;
};

}  // namespace edge_rt::gpu
