// Memory of a Vulkan device. Kernels know it by its address (VkDeviceAddress), copies by buffer and offset; a map leads
// from one to the other.
#pragma once

#include <map>
#include <mutex>

#include "gpu/vulkan/vulkan_link.h"

namespace edge_rt::gpu {

constexpr size_t kAlignment = 256;  // of addresses

class VulkanMemory {
 public:
  explicit VulkanMemory(VulkanLink* link) : link_(*link) {}
  // Gives back what nobody has given back.
  ~VulkanMemory();
  VulkanMemory(const VulkanMemory&) = delete;
  VulkanMemory& operator=(const VulkanMemory&) = delete;

  // As of GpuDevice. What is given back is gone at once: nothing that was started may use it any more.
  void* allocate(size_t bytes, GpuError* error);
  void free(void* address);
  // The same once nothing that was started before a moment is under way any more, for which `drop_freed` is called.
  void free_later(void* address, uint64_t moment);
  // Gives back what was freed before a moment; whether there was anything.
  bool drop_freed(uint64_t before);
  static constexpr uint64_t kAll = ~uint64_t{0};
  void* allocate_host(size_t bytes, void** device, GpuError* error);
  // The address for kernels of host memory, which is then to be freed; nullptr: it is none.
  void* take_host(void* memory);
  ImportRules import_rules() const;
  void* import(void* host, size_t bytes, GpuError* error);
  GpuError failure() const;
  bool budget(MemoryBudget* out, GpuError* error);
  // Memory that the host writes and kernels read: that of the device, if the host can write it.
  void* allocate_pieces(size_t bytes, void** address, GpuError* error);

  // A stretch of a buffer.
  struct Place {
    vk::VkBuffer buffer = {};
    vk::VkDeviceSize offset = 0;
  };
  // Where so many bytes at an address lie; false: in no memory of this device.
  bool find(const void* address, size_t bytes, Place* out, GpuError* error) const;
  // The mapped place of an address, if its block is mapped; else nullptr.
  void* mapped(const void* address) const;

 private:
  struct Block {
    size_t bytes = 0;
    size_t skipped = 0;  // of the buffer, before them
    uint32_t type = 0;   // of memory
    vk::VkBuffer buffer = {};
    vk::VkDeviceMemory memory = {};
    void* mapped = nullptr;
  };
  void keep(uint64_t address, const Block& block);
  void drop(const Block& block);
  bool find_address(vk::VkBuffer buffer, uint64_t* address, GpuError* error);
  bool make_import(void* host, size_t bytes, Block* out, uint64_t* address, GpuError* error);
  bool make(size_t bytes, uint32_t type, bool is_mapped, Block* out, uint64_t* address, GpuError* error);
  bool make_buffer(size_t bytes, uint32_t type, bool is_mapped, Block* out, uint64_t* address, GpuError* error);
  void* take(size_t bytes, uint32_t type, bool is_mapped, Block* out, GpuError* error);

  VulkanLink& link_;
  mutable std::mutex lock_;
  std::map<uintptr_t, Block> blocks_;       // by the address that kernels see
  std::map<void*, uintptr_t> host_blocks_;  // mapped place -> that address
  std::multimap<uint64_t, Block> freed_;    // by the moment
  GpuError failure_;
};

}  // namespace edge_rt::gpu
