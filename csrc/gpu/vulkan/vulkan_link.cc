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
  features12.scalarBlockLayout = features12.bufferDeviceAddress = 1;
  VkPhysicalDeviceVulkan11Features features11;
  features11.pNext = &features12;
  features11.storageBuffer16BitAccess = 1;
  VkPhysicalDeviceFeatures2 features;
  features.pNext = &features11;
  std::vector<const char*> extensions;
  if (facts_.has_budget) extensions.push_back("VK_EXT_memory_budget");
  if (facts_.has_fma) extensions.push_back("VK_KHR_shader_fma");
  if (facts_.is_portable) extensions.push_back("VK_KHR_portability_subset");  // must be, where it is
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
  return keep_result(call.vkCreatePipelineLayout(handle_, &layout, nullptr, &layout_), "vkCreatePipelineLayout",
                     error) &&
         lay_buffers(error);
}

// Of several types of memory with the same properties drivers may take some for images alone.
bool VulkanLink::lay_buffers(GpuError* error) {
  VkBufferCreateInfo info;
  info.size = 1 << 16;
  info.usage = kBufferUsage;
  VkBuffer buffer = {};
  if (!keep_result(call.vkCreateBuffer(handle_, &info, nullptr, &buffer), "vkCreateBuffer", error)) return false;
  VkMemoryRequirements needs{};
  call.vkGetBufferMemoryRequirements(handle_, buffer, &needs);
  call.vkDestroyBuffer(handle_, buffer, nullptr);
  VkPhysicalDeviceMemoryProperties2 memory;
  instance_->call.vkGetPhysicalDeviceMemoryProperties2(physical_, &memory);
  if (lay_memory(memory.memoryProperties, needs.memoryTypeBits, &facts_)) return true;
  *error = {Fault::kRefused, 0, facts_.name + ": it has no memory for buffers that the host can write"};
  return false;
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
