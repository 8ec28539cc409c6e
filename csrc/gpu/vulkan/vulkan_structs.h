// Structs of what is made of a device and given to it; see vulkan_abi.h.
#pragma once

#include "gpu/vulkan/vulkan_types.h"

namespace edge_rt::gpu::vk {

struct VkDeviceQueueCreateInfo {
  VkStructureType sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO;
  const void* pNext = nullptr;
  VkFlags flags = 0;
  uint32_t queueFamilyIndex = 0;
  uint32_t queueCount = 1;
  const float* pQueuePriorities = nullptr;
};
struct VkDeviceCreateInfo {
  VkStructureType sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO;
  const void* pNext = nullptr;
  VkFlags flags = 0;
  uint32_t queueCreateInfoCount = 1;
  const VkDeviceQueueCreateInfo* pQueueCreateInfos = nullptr;
  uint32_t enabledLayerCount = 0;
  const char* const* ppEnabledLayerNames = nullptr;
  uint32_t enabledExtensionCount = 0;
  const char* const* ppEnabledExtensionNames = nullptr;
  const VkPhysicalDeviceFeatures* pEnabledFeatures = nullptr;
};
struct VkBufferCreateInfo {
  VkStructureType sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO;
  const void* pNext = nullptr;
  VkFlags flags = 0;
  VkDeviceSize size = 0;
  VkFlags usage = 0;
  int32_t sharingMode = 0;
  uint32_t queueFamilyIndexCount = 0;
  const uint32_t* pQueueFamilyIndices = nullptr;
};
struct VkMemoryRequirements {
  VkDeviceSize size;
  VkDeviceSize alignment;
  uint32_t memoryTypeBits;
};
struct VkMemoryAllocateFlagsInfo {
  VkStructureType sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO;
  const void* pNext = nullptr;
  VkFlags flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT;
  uint32_t deviceMask = 0;
};
struct VkExternalMemoryBufferCreateInfo {
  VkStructureType sType = VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO;
  const void* pNext = nullptr;
  VkFlags handleTypes = VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT;
};
struct VkImportMemoryHostPointerInfoEXT {
  VkStructureType sType = VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT;
  const void* pNext = nullptr;
  VkFlags handleType = VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT;
  void* pHostPointer = nullptr;
};
struct VkMemoryHostPointerPropertiesEXT {
  VkStructureType sType = VK_STRUCTURE_TYPE_MEMORY_HOST_POINTER_PROPERTIES_EXT;
  void* pNext = nullptr;
  uint32_t memoryTypeBits = 0;
};
struct VkMemoryAllocateInfo {
  VkStructureType sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO;
  const void* pNext = nullptr;
  VkDeviceSize allocationSize = 0;
  uint32_t memoryTypeIndex = 0;
};
struct VkBufferDeviceAddressInfo {
  VkStructureType sType = VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO;
  const void* pNext = nullptr;
  VkBuffer buffer = {};
};
struct VkShaderModuleCreateInfo {
  VkStructureType sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO;
  const void* pNext = nullptr;
  VkFlags flags = 0;
  size_t codeSize = 0;
  const uint32_t* pCode = nullptr;
};
struct VkSpecializationMapEntry {
  uint32_t constantID;
  uint32_t offset;
  size_t size;
};
struct VkSpecializationInfo {
  uint32_t mapEntryCount;
  const VkSpecializationMapEntry* pMapEntries;
  size_t dataSize;
  const void* pData;
};
struct VkPipelineShaderStageCreateInfo {
  VkStructureType sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO;
  const void* pNext = nullptr;
  VkFlags flags = 0;
  VkFlags stage = VK_SHADER_STAGE_COMPUTE_BIT;
  VkShaderModule module = {};
  const char* pName = "main";
  const VkSpecializationInfo* pSpecializationInfo = nullptr;
};
struct VkComputePipelineCreateInfo {
  VkStructureType sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO;
  const void* pNext = nullptr;
  VkFlags flags = VK_PIPELINE_CREATE_DISPATCH_BASE_BIT;
  VkPipelineShaderStageCreateInfo stage;
  VkPipelineLayout layout = {};
  VkPipeline basePipelineHandle = {};
  int32_t basePipelineIndex = -1;
};
struct VkPushConstantRange {
  VkFlags stageFlags;
  uint32_t offset;
  uint32_t size;
};
struct VkPipelineCacheCreateInfo {
  int32_t sType = 17;
  const void* pNext = nullptr;
  VkFlags flags = 0;
  size_t initialDataSize = 0;
  const void* pInitialData = nullptr;
};
struct VkPipelineLayoutCreateInfo {
  VkStructureType sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO;
  const void* pNext = nullptr;
  VkFlags flags = 0;
  uint32_t setLayoutCount = 0;
  const VkDescriptorSetLayout* pSetLayouts = nullptr;
  uint32_t pushConstantRangeCount = 0;
  const VkPushConstantRange* pPushConstantRanges = nullptr;
};
struct VkCommandPoolCreateInfo {
  VkStructureType sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO;
  const void* pNext = nullptr;
  VkFlags flags = 0;
  uint32_t queueFamilyIndex = 0;
};
struct VkCommandBufferAllocateInfo {
  VkStructureType sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO;
  const void* pNext = nullptr;
  VkCommandPool commandPool = {};
  int32_t level = 0;
  uint32_t commandBufferCount = 1;
};
struct VkCommandBufferBeginInfo {
  VkStructureType sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO;
  const void* pNext = nullptr;
  VkFlags flags = 0;
  const void* pInheritanceInfo = nullptr;
};
struct VkMemoryBarrier {
  VkStructureType sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER;
  const void* pNext = nullptr;
  VkFlags srcAccessMask = 0;
  VkFlags dstAccessMask = 0;
};
struct VkBufferCopy {
  VkDeviceSize srcOffset;
  VkDeviceSize dstOffset;
  VkDeviceSize size;
};
struct VkFenceCreateInfo {
  VkStructureType sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO;
  const void* pNext = nullptr;
  VkFlags flags = 0;
};
struct VkSubmitInfo {
  VkStructureType sType = VK_STRUCTURE_TYPE_SUBMIT_INFO;
  const void* pNext = nullptr;
  uint32_t waitSemaphoreCount = 0;
  const VkSemaphore* pWaitSemaphores = nullptr;
  const VkFlags* pWaitDstStageMask = nullptr;
  uint32_t commandBufferCount = 1;
  const VkCommandBuffer* pCommandBuffers = nullptr;
  uint32_t signalSemaphoreCount = 0;
  const VkSemaphore* pSignalSemaphores = nullptr;
};

}  // namespace edge_rt::gpu::vk
