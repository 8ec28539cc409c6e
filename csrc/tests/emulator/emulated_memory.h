// Device memory of the emulated driver: pages that nobody may touch but copies and kernels.
#pragma once

#include <cstddef>
#include <map>

#include "gpu/cuda/driver.h"

namespace edge_rt::gpu::emulated {

class DeviceMemory {
 public:
  ~DeviceMemory();

  // At a multiple of 256, as the driver's, and otherwise as close to a page that nobody has as that allows. 0: there
  // are no pages.
  CUdeviceptr allocate(size_t bytes);
  bool free(CUdeviceptr memory);
  // Whether all of it lies in one allocation.
  bool holds(CUdeviceptr memory, size_t bytes) const;
  size_t bytes() const { return bytes_; }
  size_t count() const { return blocks_.size(); }

  // Lets the pages be touched while it lives.
  class Open {
   public:
    explicit Open(DeviceMemory* memory) : memory_(memory) { memory_->protect(true); }
    ~Open() { memory_->protect(false); }
    Open(const Open&) = delete;
    Open& operator=(const Open&) = delete;

   private:
    DeviceMemory* memory_;
  };

 private:
  struct Block {
    char* pages;
    size_t page_bytes;  // of the pages that can be opened; one more lies behind them
    size_t bytes;
  };

  void protect(bool is_open) const;

  std::map<CUdeviceptr, Block> blocks_;
  size_t bytes_ = 0;
};

}  // namespace edge_rt::gpu::emulated
