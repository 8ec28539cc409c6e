// Vulkan's loader, found where the process runs, and what its devices say of themselves.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gpu/gpu_device.h"
#include "gpu/vulkan/vulkan_abi.h"

namespace edge_rt::gpu {

// "vkAllocateMemory failed: VK_ERROR_OUT_OF_DEVICE_MEMORY (-2)", unless the call went well or `error` is one already.
// Returns whether it went well.
bool keep_result(vk::VkResult result, const char* function, GpuError* error);

// What kernels may rely on, and which of the device's ways they take.
struct VulkanFacts {
  uint32_t version = 0;  // of Vulkan, the lower one of loader and device
  int32_t type = 0;      // VK_PHYSICAL_DEVICE_TYPE_...
  uint32_t vendor = 0, device = 0;
  uint8_t cache_id[16] = {};  // what a driver makes of kernels is its own
  std::string name, driver;
  std::string refusal;
  size_t bytes = 0;     // of the heap that weights lie in
  uint32_t family = 0;  // of the queue
  bool is_unified = false;
  bool has_dots = false, has_fast_dots = false;  // packed products of 4 signed bytes
  bool has_fma = false;                          // an instruction that must fuse (VK_KHR_shader_fma)
  bool has_budget = false;                       // VK_EXT_memory_budget
  bool is_portable = false;                      // not all of Vulkan (VK_KHR_portability_subset), as on Metal
  bool keeps_denormals = false, keeps_signs = false, rounds_to_even = false;  // float modes that can be asked for
  uint32_t shared_bytes = 0, grid[2] = {};
  size_t largest = 0;  // that can be allocated at once
  // Of memory: for weights; for what the host writes and reads; for what it writes and kernels read.
  uint32_t device_type = 0, host_type = 0, piece_type = 0;
  bool is_cached = false;  // memory of the first type, for the host, which else reads it slowly
  bool is_mapped = false;  // memory of the first type can be written and read by the host
  // Of memory of the host that can be the device's as well, begin and size; 0: it cannot (VK_EXT_external_memory_host).
  size_t import_alignment = 0;
};

// Chooses types of memory for a device, whose type is known, among those that `usable` has a bit for. False: the host
// can write none.
bool lay_memory(const vk::VkPhysicalDeviceMemoryProperties& memory, uint32_t usable, VulkanFacts* facts);

class VulkanInstance {
 public:
  // The same one for all who ask while somebody holds it; nullptr on failure.
  static std::shared_ptr<VulkanInstance> open(GpuError* error);
  ~VulkanInstance();
  VulkanInstance(const VulkanInstance&) = delete;
  VulkanInstance& operator=(const VulkanInstance&) = delete;

  uint32_t version() const { return version_; }
  const std::vector<vk::VkPhysicalDevice>& devices() const { return devices_; }
  VulkanFacts facts(vk::VkPhysicalDevice device) const;

  vk::InstanceFunctions call;

 private:
  VulkanInstance() = default;
  bool make(GpuError* error);
  bool find_devices(GpuError* error);

  vk::VkInstance handle_ = nullptr;
  uint32_t version_ = 0;
  std::vector<vk::VkPhysicalDevice> devices_;
};

}  // namespace edge_rt::gpu
