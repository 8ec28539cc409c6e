// The part of Vulkan's C interface that edge-rt uses, declared here so that no Vulkan header is needed. A test compares
// sizes, offsets and numbers with the official header where that is installed.
//
// Names are Vulkan's own. Large structs of which little is read have the rest as bytes.
#pragma once

#include "gpu/vulkan/vulkan_properties.h"
#include "gpu/vulkan/vulkan_structs.h"
#include "gpu/vulkan/vulkan_types.h"

namespace edge_rt::gpu::vk {

using VkVoidFunction = void (*)();
using GetInstanceProcAddr = VkVoidFunction (*)(VkInstance instance, const char* name);
// Of a device with VK_EXT_external_memory_host: which types memory of the host can be imported as.
using GetHostPointerProperties = VkResult (*)(VkDevice device, VkFlags handle_type, const void* pointer,
                                              VkMemoryHostPointerPropertiesEXT* out);

// Name, result, arguments; found without an instance,
#define EDGE_RT_VULKAN_GLOBAL(F)                                      \
  F(vkEnumerateInstanceVersion, VkResult, (uint32_t* version))        \
  F(vkEnumerateInstanceExtensionProperties, VkResult,                 \
    (const char* layer, uint32_t* count, VkExtensionProperties* out)) \
  F(vkCreateInstance, VkResult, (const VkInstanceCreateInfo* info, const void* allocator, VkInstance* out))

// of an instance,
#define EDGE_RT_VULKAN_OF_INSTANCE(F)                                                                               \
  F(vkDestroyInstance, void, (VkInstance instance, const void* allocator))                                          \
  F(vkEnumeratePhysicalDevices, VkResult, (VkInstance instance, uint32_t* count, VkPhysicalDevice* out))            \
  F(vkGetPhysicalDeviceProperties2, void, (VkPhysicalDevice device, VkPhysicalDeviceProperties2 * out))             \
  F(vkGetPhysicalDeviceFeatures2, void, (VkPhysicalDevice device, VkPhysicalDeviceFeatures2 * out))                 \
  F(vkGetPhysicalDeviceMemoryProperties2, void, (VkPhysicalDevice device, VkPhysicalDeviceMemoryProperties2 * out)) \
  F(vkGetPhysicalDeviceQueueFamilyProperties, void,                                                                 \
    (VkPhysicalDevice device, uint32_t* count, VkQueueFamilyProperties* out))                                       \
  F(vkEnumerateDeviceExtensionProperties, VkResult,                                                                 \
    (VkPhysicalDevice device, const char* layer, uint32_t* count, VkExtensionProperties* out))                      \
  F(vkCreateDevice, VkResult,                                                                                       \
    (VkPhysicalDevice device, const VkDeviceCreateInfo* info, const void* allocator, VkDevice* out))                \
  F(vkGetDeviceProcAddr, VkVoidFunction, (VkDevice device, const char* name))

// and of a device.
#define EDGE_RT_VULKAN_OF_DEVICE(F)                                                                                    \
  F(vkDestroyDevice, void, (VkDevice device, const void* allocator))                                                   \
  F(vkGetDeviceQueue, void, (VkDevice device, uint32_t family, uint32_t index, VkQueue* out))                          \
  F(vkCreateBuffer, VkResult, (VkDevice device, const VkBufferCreateInfo* info, const void* allocator, VkBuffer* out)) \
  F(vkDestroyBuffer, void, (VkDevice device, VkBuffer buffer, const void* allocator))                                  \
  F(vkGetBufferMemoryRequirements, void, (VkDevice device, VkBuffer buffer, VkMemoryRequirements * out))               \
  F(vkAllocateMemory, VkResult,                                                                                        \
    (VkDevice device, const VkMemoryAllocateInfo* info, const void* allocator, VkDeviceMemory* out))                   \
  F(vkFreeMemory, void, (VkDevice device, VkDeviceMemory memory, const void* allocator))                               \
  F(vkBindBufferMemory, VkResult, (VkDevice device, VkBuffer buffer, VkDeviceMemory memory, VkDeviceSize offset))      \
  F(vkMapMemory, VkResult,                                                                                             \
    (VkDevice device, VkDeviceMemory memory, VkDeviceSize offset, VkDeviceSize size, VkFlags flags, void** out))       \
  F(vkGetBufferDeviceAddress, VkDeviceAddress, (VkDevice device, const VkBufferDeviceAddressInfo* info))               \
  F(vkCreateShaderModule, VkResult,                                                                                    \
    (VkDevice device, const VkShaderModuleCreateInfo* info, const void* allocator, VkShaderModule* out))               \
  F(vkDestroyShaderModule, void, (VkDevice device, VkShaderModule module, const void* allocator))                      \
  F(vkCreatePipelineLayout, VkResult,                                                                                  \
    (VkDevice device, const VkPipelineLayoutCreateInfo* info, const void* allocator, VkPipelineLayout* out))           \
  F(vkDestroyPipelineLayout, void, (VkDevice device, VkPipelineLayout layout, const void* allocator))                  \
  F(vkCreatePipelineCache, VkResult,                                                                                   \
    (VkDevice device, const VkPipelineCacheCreateInfo* info, const void* allocator, VkPipelineCache* out))             \
  F(vkDestroyPipelineCache, void, (VkDevice device, VkPipelineCache cache, const void* allocator))                     \
  F(vkGetPipelineCacheData, VkResult, (VkDevice device, VkPipelineCache cache, size_t* bytes, void* data))             \
  F(vkCreateComputePipelines, VkResult,                                                                                \
    (VkDevice device, VkPipelineCache cache, uint32_t count, const VkComputePipelineCreateInfo* infos,                 \
     const void* allocator, VkPipeline* out))                                                                          \
  F(vkDestroyPipeline, void, (VkDevice device, VkPipeline pipeline, const void* allocator))                            \
  F(vkCreateCommandPool, VkResult,                                                                                     \
    (VkDevice device, const VkCommandPoolCreateInfo* info, const void* allocator, VkCommandPool* out))                 \
  F(vkDestroyCommandPool, void, (VkDevice device, VkCommandPool pool, const void* allocator))                          \
  F(vkResetCommandPool, VkResult, (VkDevice device, VkCommandPool pool, VkFlags flags))                                \
  F(vkAllocateCommandBuffers, VkResult,                                                                                \
    (VkDevice device, const VkCommandBufferAllocateInfo* info, VkCommandBuffer* out))                                  \
  F(vkBeginCommandBuffer, VkResult, (VkCommandBuffer buffer, const VkCommandBufferBeginInfo* info))                    \
  F(vkEndCommandBuffer, VkResult, (VkCommandBuffer buffer))                                                            \
  F(vkCmdBindPipeline, void, (VkCommandBuffer buffer, int32_t point, VkPipeline pipeline))                             \
  F(vkCmdPushConstants, void,                                                                                          \
    (VkCommandBuffer buffer, VkPipelineLayout layout, VkFlags stages, uint32_t offset, uint32_t size,                  \
     const void* values))                                                                                              \
  F(vkCmdDispatchBase, void,                                                                                           \
    (VkCommandBuffer buffer, uint32_t base_x, uint32_t base_y, uint32_t base_z, uint32_t x, uint32_t y, uint32_t z))   \
  F(vkCmdPipelineBarrier, void,                                                                                        \
    (VkCommandBuffer buffer, VkFlags before, VkFlags behind, VkFlags flags, uint32_t memory_count,                     \
     const VkMemoryBarrier* memory, uint32_t buffer_count, const void* buffers, uint32_t image_count,                  \
     const void* images))                                                                                              \
  F(vkCmdCopyBuffer, void,                                                                                             \
    (VkCommandBuffer buffer, VkBuffer from, VkBuffer to, uint32_t count, const VkBufferCopy* regions))                 \
  F(vkCreateFence, VkResult, (VkDevice device, const VkFenceCreateInfo* info, const void* allocator, VkFence* out))    \
  F(vkDestroyFence, void, (VkDevice device, VkFence fence, const void* allocator))                                     \
  F(vkResetFences, VkResult, (VkDevice device, uint32_t count, const VkFence* fences))                                 \
  F(vkWaitForFences, VkResult,                                                                                         \
    (VkDevice device, uint32_t count, const VkFence* fences, VkBool32 all, uint64_t nanoseconds))                      \
  F(vkQueueSubmit, VkResult, (VkQueue queue, uint32_t count, const VkSubmitInfo* submits, VkFence fence))

#define EDGE_RT_FIELD(name, result, arguments) result(*name) arguments = nullptr;
struct InstanceFunctions {
  EDGE_RT_VULKAN_OF_INSTANCE(EDGE_RT_FIELD)
};
struct DeviceFunctions {
  EDGE_RT_VULKAN_OF_DEVICE(EDGE_RT_FIELD)
};
#undef EDGE_RT_FIELD

}  // namespace edge_rt::gpu::vk
