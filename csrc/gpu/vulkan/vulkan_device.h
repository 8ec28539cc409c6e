// A GPU of Vulkan: its memory, its kernels and copies to and from it. Shared by all sessions on it.
//
// Kernels know memory by its address (VkDeviceAddress), copies by buffer and offset; a map leads from one to the other.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gpu/gpu_device.h"
#include "gpu/vulkan/vulkan_instance.h"

namespace edge_rt::gpu {

// SPIR-V by the name of its kernel; with the suffix ".dots" the one that wants packed products of signed bytes.
using KernelCode = std::map<std::string, std::vector<uint32_t>>;

class Commands;
class VulkanQueue;

class VulkanDevice : public GpuDevice, public std::enable_shared_from_this<VulkanDevice> {
 public:
  static std::shared_ptr<VulkanDevice> open(int number, KernelCode kernels, GpuError* error);
  ~VulkanDevice() override;
  VulkanDevice(const VulkanDevice&) = delete;
  VulkanDevice& operator=(const VulkanDevice&) = delete;

  int number() const override { return number_; }
  Traits traits() const override;
  void* allocate(size_t bytes, GpuError* error) override;
  void free(void* memory) override;
  void* allocate_host(size_t bytes, void** device, GpuError* error) override;
  void free_host(void* memory) override;
  GpuError failure() const override;
  bool budget(MemoryBudget* out, GpuError* error) override;
  bool settle(GpuError* error) override;
  bool copy(Way way, void* to, const void* from, size_t bytes, GpuError* error) override;
  std::unique_ptr<GpuQueue> open_queue(GpuError* error) override;

  const VulkanFacts& facts() const { return facts_; }
  const SelfTest& self_test() const { return self_test_; }
  vk::VkDevice handle() const { return handle_; }
  vk::VkPipelineLayout layout() const { return layout_; }

  // A stretch of a buffer.
  struct Place {
    vk::VkBuffer buffer = {};
    vk::VkDeviceSize offset = 0;
  };
  // Where so many bytes at an address lie; false: in no memory of this device.
  bool find(const void* address, size_t bytes, Place* out, GpuError* error) const;
  // The pipeline of a kernel, made when it is first asked for.
  bool find(const Kernel& kernel, vk::VkPipeline* out, GpuError* error);

  // Sends command buffers off, one submit each; `fence` tells of all of them.
  bool submit(const std::vector<vk::VkCommandBuffer>& buffers, vk::VkFence fence, GpuError* error);
  // Waits for the fence of so many command buffers, not for ever.
  bool wait(vk::VkFence fence, size_t buffers, GpuError* error);
  // A queue that is open: `settle` waits for it.
  void forget(VulkanQueue* queue);

  vk::DeviceFunctions call;

 private:
  struct Block {
    size_t bytes = 0;
    vk::VkBuffer buffer = {};
    vk::VkDeviceMemory memory = {};
    void* mapped = nullptr;
  };

  explicit VulkanDevice(std::shared_ptr<VulkanInstance> instance);
  bool make(int number, GpuError* error);
  bool connect(GpuError* error);
  bool try_arithmetic(GpuError* error);
  bool make_block(size_t bytes, uint32_t type, bool is_mapped, Block* out, uint64_t* address, GpuError* error);
  void drop_block(const Block& block);
  void* keep_block(size_t bytes, uint32_t type, bool is_mapped, Block* out, GpuError* error);
  bool make_pipeline(const std::vector<uint32_t>& code, uint32_t choices, vk::VkPipeline* out, GpuError* error);
  bool keep(vk::VkResult result, const char* function, GpuError* error);
  bool is_well(GpuError* error) const;
  bool copy_settled(Way way, void* to, const void* from, size_t bytes, GpuError* error);
  bool copy_staged(Way way, void* to, const void* from, size_t bytes, GpuError* error);
  // The mapped place of an address, if its block is mapped; else nullptr.
  void* mapped(const void* address) const;

  const std::shared_ptr<VulkanInstance> instance_;
  KernelCode kernels_;
  int number_ = 0;
  vk::VkPhysicalDevice physical_ = nullptr;
  VulkanFacts facts_;
  SelfTest self_test_;
  uint32_t mended_ = 0;
  vk::VkDevice handle_ = nullptr;
  vk::VkQueue queue_ = nullptr;
  vk::VkPipelineLayout layout_ = {};

  mutable std::mutex memory_lock_;
  std::map<uintptr_t, Block> blocks_;       // by the address that kernels see
  std::map<void*, uintptr_t> host_blocks_;  // mapped place -> that address
  GpuError failure_;
  mutable std::mutex lost_lock_;
  GpuError lost_;  // what every later call says
  std::mutex pipelines_lock_;
  std::map<std::pair<std::string, uint32_t>, vk::VkPipeline> pipelines_;
  std::mutex submit_lock_;
  std::mutex queues_lock_;
  std::set<VulkanQueue*> queues_;
  std::mutex copy_lock_;
  std::unique_ptr<Commands> copies_;
};

}  // namespace edge_rt::gpu
