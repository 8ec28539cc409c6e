#include "gpu/vulkan/vulkan_link.h"

#include <string>
#include <vector>

#include "common/float_mode.h"

namespace edge_rt::gpu {

using namespace vk;  // NOLINT: names of Vulkan's own

VulkanLink::~VulkanLink() {
  if (handle_ == nullptr || call.vkDestroyDevice == nullptr) return;
  if (has_hung()) {
    new std::shared_ptr<VulkanInstance>(std::move(instance_));  // left on purpose, as the device is
    return;
  }
  if (layout_ != VkPipelineLayout{}) call.vkDestroyPipelineLayout(handle_, layout_, nullptr);
  call.vkDestroyDevice(handle_, nullptr);
}

bool VulkanLink::find(int number, GpuError* error) {
  const std::vector<VkPhysicalDevice>& devices = instance_->devices();
  if (number < 0 || static_cast<size_t>(number) >= devices.size()) {
    *error = {Fault::kRefused, 0,
              "there is no Vulkan device " + std::to_string(number) + " of " + std::to_string(devices.size())};
    return false;
  }
  number_ = number;
  physical_ = devices[static_cast<size_t>(number)];
  facts_ = instance_->facts(physical_);
  if (facts_.refusal.empty()) return true;
  *error = {Fault::kRefused, 0, facts_.name + ": " + facts_.refusal};
  return false;
}

void VulkanLink::limit(bool maps_memory, bool reads_memory) {
  facts_.is_mapped = facts_.is_mapped && maps_memory;
  facts_.is_cached = facts_.is_cached && reads_memory;
}

bool VulkanLink::open(GpuError* error) {
  // Threads of a software device compute in the mode of the thread that makes them.
  const DefaultFloatMode mode;
  const float priority = 1.0f;
  VkDeviceQueueCreateInfo queue;
  queue.queueFamilyIndex = facts_.family;
  queue.pQueuePriorities = &priority;
  VkPhysicalDeviceShaderIntegerDotProductFeatures dots;
  dots.shaderIntegerDotProduct = 1;
  VkPhysicalDeviceVulkan12Features features12;
  VkPhysicalDeviceShaderFmaFeaturesKHR fma;
  fma.shaderFmaFloat32 = 1;
  dots.pNext = facts_.has_fma ? &fma : nullptr;
  features12.pNext = facts_.has_dots ? &dots : dots.pNext;
  features12.storageBuffer8BitAccess = features12.shaderInt8 = features12.scalarBlockLayout = 1;
  features12.bufferDeviceAddress = 1;
  VkPhysicalDeviceVulkan11Features features11;
  features11.pNext = &features12;
  features11.storageBuffer16BitAccess = 1;
  VkPhysicalDeviceFeatures2 features;
  features.pNext = &features11;
  features.features.all[kShaderInt16] = facts_.has_int16;
  std::vector<const char*> extensions;
  if (facts_.has_budget) extensions.push_back("VK_EXT_memory_budget");
  if (facts_.has_fma) extensions.push_back("VK_KHR_shader_fma");
  if (facts_.import_alignment != 0) extensions.push_back("VK_EXT_external_memory_host");
  VkDeviceCreateInfo info;
  info.pNext = &features;
  info.pQueueCreateInfos = &queue;
  info.enabledExtensionCount = static_cast<uint32_t>(extensions.size());
  info.ppEnabledExtensionNames = extensions.data();
  if (!keep_result(instance_->call.vkCreateDevice(physical_, &info, nullptr, &handle_), "vkCreateDevice", error)) {
    return false;
  }
  const char* missing = nullptr;
#define EDGE_RT_FIND(function, result, arguments)                                                                 \
  call.function = reinterpret_cast<result(*) arguments>(instance_->call.vkGetDeviceProcAddr(handle_, #function)); \
  if (call.function == nullptr) missing = #function;
  EDGE_RT_VULKAN_OF_DEVICE(EDGE_RT_FIND)
#undef EDGE_RT_FIND
  if (missing != nullptr) {
    *error = {Fault::kOther, 0, "the driver of " + facts_.name + " has no " + missing};
    return false;
  }
  host_pointer = reinterpret_cast<GetHostPointerProperties>(
      instance_->call.vkGetDeviceProcAddr(handle_, "vkGetMemoryHostPointerPropertiesEXT"));
  call.vkGetDeviceQueue(handle_, facts_.family, 0, &queue_);
  const VkPushConstantRange pushed{VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof(VkDeviceAddress)};
  VkPipelineLayoutCreateInfo layout;
  layout.pushConstantRangeCount = 1;
  layout.pPushConstantRanges = &pushed;
  return keep_result(call.vkCreatePipelineLayout(handle_, &layout, nullptr, &layout_), "vkCreatePipelineLayout", error);
}

bool VulkanLink::keep(VkResult result, const char* function, GpuError* error) {
  GpuError failed;
  if (keep_result(result, function, &failed)) return true;
  if (failed.fault == Fault::kLost || failed.fault == Fault::kHung) lose(failed);
  if (!*error) *error = failed;
  return false;
}

void VulkanLink::lose(const GpuError& error) {
  const std::lock_guard<std::mutex> guard(lost_lock_);
  if (!lost_) lost_ = error;
}

bool VulkanLink::has_hung() const {
  const std::lock_guard<std::mutex> guard(lost_lock_);
  return lost_.fault == Fault::kHung;
}

bool VulkanLink::is_well(GpuError* error) const {
  const std::lock_guard<std::mutex> guard(lost_lock_);
  if (!lost_) return true;
  if (!*error) *error = lost_;
  return false;
}

}  // namespace edge_rt::gpu
