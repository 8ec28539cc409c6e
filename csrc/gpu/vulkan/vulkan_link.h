// A device of Vulkan that was opened: its functions, what is known of it, and whether it can still be used.
#pragma once

#include <memory>
#include <mutex>

#include "gpu/gpu_device.h"
#include "gpu/vulkan/vulkan_instance.h"

namespace edge_rt::gpu {

// Of all buffers.
constexpr vk::VkFlags kBufferUsage = vk::VK_BUFFER_USAGE_TRANSFER_SRC_BIT | vk::VK_BUFFER_USAGE_TRANSFER_DST_BIT |
                                     vk::VK_BUFFER_USAGE_STORAGE_BUFFER_BIT |
                                     vk::VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT;

class VulkanLink {
 public:
  explicit VulkanLink(std::shared_ptr<VulkanInstance> instance) : instance_(std::move(instance)) {}
  // What was made of the device is gone by now.
  ~VulkanLink();
  VulkanLink(const VulkanLink&) = delete;
  VulkanLink& operator=(const VulkanLink&) = delete;

  // Reads what is known of a device of the instance; one that will not do is refused.
  bool find(int number, GpuError* error);
  bool open(GpuError* error);

  int number() const { return number_; }
  const VulkanInstance& instance() const { return *instance_; }
  vk::VkPhysicalDevice physical() const { return physical_; }
  const VulkanFacts& facts() const { return facts_; }
  vk::VkDevice handle() const { return handle_; }
  vk::VkQueue queue() const { return queue_; }
  vk::VkPipelineLayout layout() const { return layout_; }

  // As keep_result; a device that was lost, or hangs, is so for ever.
  bool keep(vk::VkResult result, const char* function, GpuError* error);
  // From now on every call fails with this error.
  void lose(const GpuError& error);
  // Whether the device can still be used; if it cannot, `error` gets why.
  bool is_well(GpuError* error) const;
  // Whether it has not answered: nothing of it can be given back, as work may be under way for ever.
  bool has_hung() const;

  vk::DeviceFunctions call;
  vk::GetHostPointerProperties host_pointer = nullptr;  // of devices that take memory of the host
  // Changed once it is open: whether the host writes and reads the device's memory where it can.
  void limit(bool maps_memory, bool reads_memory);

 private:
  bool lay_buffers(GpuError* error);

  std::shared_ptr<VulkanInstance> instance_;
  int number_ = 0;
  vk::VkPhysicalDevice physical_ = nullptr;
  VulkanFacts facts_;
  vk::VkDevice handle_ = nullptr;
  vk::VkQueue queue_ = nullptr;
  vk::VkPipelineLayout layout_ = {};
  mutable std::mutex lost_lock_;
  GpuError lost_;  // what every later call says
};

}  // namespace edge_rt::gpu
