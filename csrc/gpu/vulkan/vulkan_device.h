// A GPU of Vulkan: its memory, its kernels and copies to and from it. Shared by all sessions on it.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "gpu/gpu_device.h"
#include "gpu/vulkan/vulkan_link.h"
#include "gpu/vulkan/vulkan_memory.h"
#include "gpu/vulkan/vulkan_pipelines.h"

namespace edge_rt::gpu {

struct VulkanLimits {
  std::chrono::nanoseconds submit = std::chrono::milliseconds(50);  // what is handed over at once takes at most this
  std::chrono::nanoseconds answer = std::chrono::seconds(60);       // a device that is silent for so long has hung
  // For tests: of the device's memory, whether the host writes and reads it where it can; else by way of its own.
  bool maps_memory = true, reads_memory = true;
};

class CommandBuffers;
class VulkanQueue;

class VulkanDevice : public GpuDevice, public std::enable_shared_from_this<VulkanDevice> {
 public:
  // `file`: see VulkanPipelines.
  static std::shared_ptr<VulkanDevice> open(int number, KernelCode kernels, const VulkanLimits& limits, GpuError* error,
                                            std::string file = "");
  ~VulkanDevice() override;
  VulkanDevice(const VulkanDevice&) = delete;
  VulkanDevice& operator=(const VulkanDevice&) = delete;

  int number() const override { return link_.number(); }
  Traits traits() const override;
  void* allocate(size_t bytes, GpuError* error) override;
  void free(void* memory) override;
  void* allocate_host(size_t bytes, void** device, GpuError* error) override;
  void free_host(void* memory) override;
  GpuError failure() const override;
  bool budget(MemoryBudget* out, GpuError* error) override;
  bool settle(GpuError* error) override;
  bool copy(Way way, void* to, const void* from, size_t bytes, GpuError* error) override;
  bool copy_pieces(const std::vector<Piece>& pieces, GpuError* error) override;
  std::unique_ptr<GpuQueue> open_queue(GpuError* error) override;
  ImportRules import_rules() const override;
  void* import(void* host, size_t bytes, GpuError* error) override;
  bool free_import(void* address) override;

  VulkanLink& link() { return link_; }
  VulkanMemory& memory() { return memory_; }
  VulkanPipelines& pipelines() { return pipelines_; }
  const VulkanLimits& limits() const { return limits_; }
  const SelfTest& self_test() const { return self_test_; }
  bool is_lost() const override;

  // Hands command buffers over, one submit each, and waits for all of them, not for ever. `fence` is left as it was.
  bool run(const std::vector<vk::VkCommandBuffer>& buffers, vk::VkFence fence, GpuError* error);
  // Around what uses memory of the device until it is done: what is freed meanwhile is given back behind it. The first
  // one tells what the second one is to be told.
  uint64_t begin_pass();
  void end_pass(uint64_t begun);
  // A queue that is closed: `settle` waits for those that are open. Waits for whoever settles this one.
  void forget(VulkanQueue* queue);

 private:
  VulkanDevice(std::shared_ptr<VulkanInstance> instance, KernelCode kernels, const VulkanLimits& limits,
               std::string file);
  bool try_arithmetic(GpuError* error);
  void* take(const std::function<void*(GpuError*)>& taken, GpuError* error);
  bool submit(const std::vector<vk::VkCommandBuffer>& buffers, vk::VkFence fence, size_t* sent, GpuError* error);
  bool copy_settled(Way way, void* to, const void* from, size_t bytes, GpuError* error);
  bool copy_staged(Way way, void* to, const void* from, size_t bytes, GpuError* error);

  const VulkanLimits limits_;
  VulkanLink link_;
  VulkanPipelines pipelines_;
  VulkanMemory memory_;
  SelfTest self_test_;
  std::mutex submit_lock_;
  std::mutex passes_lock_;
  std::set<uint64_t> passes_;        // that are under way, by the moment when they began
  std::atomic<uint64_t> moment_{1};  // passes and frees are counted
  std::mutex queues_lock_;
  std::condition_variable let_go_;
  std::map<VulkanQueue*, int> queues_;  // that are open, and how many threads settle each
  std::mutex copy_lock_;
  std::unique_ptr<CommandBuffers> copies_;
  void *staged_ = nullptr, *staged_address_ = nullptr;  // kStaged bytes of the host's
};

}  // namespace edge_rt::gpu
