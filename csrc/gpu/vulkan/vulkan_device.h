// A GPU of Vulkan: its memory, its kernels and copies to and from it. Shared by all sessions on it.
//
// Kernels know memory by its address (VkDeviceAddress), copies by buffer and offset; a map leads from one to the other.
#pragma once

#include <atomic>
#include <chrono>
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

// A kernel with a set of choices, ready to run.
struct VulkanPipeline {
  vk::VkPipeline handle = {};
  std::atomic<double> nanoseconds_of_block{0};  // as measured; 0: it has not run yet
};

struct VulkanLimits {
  std::chrono::nanoseconds submit = std::chrono::milliseconds(50);  // what is handed over at once takes at most this
  std::chrono::nanoseconds answer = std::chrono::seconds(60);       // a device that is silent for so long has hung
  // For tests: of the device's memory, whether the host writes and reads it where it can; else by way of its own.
  bool maps_memory = true, reads_memory = true;
};

class CommandBuffers;
class HostPieces;
class VulkanQueue;

class VulkanDevice : public GpuDevice, public std::enable_shared_from_this<VulkanDevice> {
 public:
  static std::shared_ptr<VulkanDevice> open(int number, KernelCode kernels, const VulkanLimits& limits,
                                            GpuError* error);
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
  const VulkanLimits& limits() const { return limits_; }
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
  // The pipeline of a kernel, made when it is first asked for; nullptr: there is none.
  VulkanPipeline* find(const Kernel& kernel, GpuError* error);

  // Whether the device can still be used; if it cannot, `error` gets why.
  bool is_lost() const override;
  // Whether it is not lost; otherwise `error` gets why.
  bool is_well(GpuError* error) const;
  // Hands command buffers over, one submit each, and waits for all of them, not for ever. `fence` is left as it was.
  bool run(const std::vector<vk::VkCommandBuffer>& buffers, vk::VkFence fence, GpuError* error);
  // Memory for HostPieces: that of the device, if the host can write it. It is given back by its address for kernels,
  // when nothing that was started uses it any more.
  void* allocate_pieces(size_t bytes, void** address, GpuError* error);
  void drop_pieces(void* address);
  // A queue that is open: `settle` waits for it.
  void forget(VulkanQueue* queue);

  vk::DeviceFunctions call;

 private:
  struct Block {
    size_t bytes = 0;
    uint32_t type = 0;  // of memory
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
  void drop_pipelines();
  bool submit(const std::vector<vk::VkCommandBuffer>& buffers, vk::VkFence fence, size_t* sent, GpuError* error);
  bool keep(vk::VkResult result, const char* function, GpuError* error);
  // From now on every call fails with this error.
  void lose(const GpuError& error);
  bool copy_settled(Way way, void* to, const void* from, size_t bytes, GpuError* error);
  bool copy_staged(Way way, void* to, const void* from, size_t bytes, GpuError* error);
  // The mapped place of an address, if its block is mapped; else nullptr.
  void* mapped(const void* address) const;

  const std::shared_ptr<VulkanInstance> instance_;
  VulkanLimits limits_;
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
  std::map<std::pair<std::string, uint32_t>, std::unique_ptr<VulkanPipeline>> pipelines_;
  std::mutex submit_lock_;
  std::mutex queues_lock_;
  std::set<VulkanQueue*> queues_;
  std::mutex copy_lock_;
  std::unique_ptr<CommandBuffers> copies_;
  void *staged_ = nullptr, *staged_address_ = nullptr;  // kStaged bytes of the host's
};

}  // namespace edge_rt::gpu
