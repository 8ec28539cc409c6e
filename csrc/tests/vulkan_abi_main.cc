// gpu/vulkan/vulkan_abi.h against Vulkan's own header, where that is installed: sizes, offsets, numbers and arguments.
// Ends with 77 where it is not.
#include <cstddef>
#include <cstdio>

#include "gpu/vulkan/vulkan_abi.h"  // before macros of the other one

#if __has_include(<vulkan/vulkan_core.h>)
#include <vulkan/vulkan_core.h>

namespace {

namespace ours = edge_rt::gpu::vk;

int differences = 0;

void compare(const char* what, unsigned long long own, unsigned long long other) {
  if (own == other) return;
  std::fprintf(stderr, "%s is %llu, and %llu in Vulkan's header\n", what, own, other);
  ++differences;
}

// Of functions: how many arguments, and how many bytes each of them and the result has.
template <class Result>
constexpr size_t bytes_of = sizeof(Result);
template <>
constexpr size_t bytes_of<void> = 0;

template <class First, class Second>
struct Same;
template <class R, class... A, class S, class... B>
struct Same<R (*)(A...), S (*)(B...)> {
  static constexpr bool value() {
    if constexpr (sizeof...(A) != sizeof...(B)) {
      return false;
    } else {
      return bytes_of<R> == bytes_of<S> && (... && (sizeof(A) == sizeof(B)));
    }
  }
};

#define SIZE(name) compare("sizeof " #name, sizeof(ours::name), sizeof(::name));
#define OFFSET(name, field) compare(#name "::" #field, offsetof(ours::name, field), offsetof(::name, field));
#define NUMBER(name) \
  compare(#name, static_cast<unsigned long long>(ours::name), static_cast<unsigned long long>(::name));
#define OF_INSTANCE(name, result, arguments) \
  compare(#name, 1, Same<decltype(ours::InstanceFunctions::name), ::PFN_##name>::value());
#define OF_DEVICE(name, result, arguments) \
  compare(#name, 1, Same<decltype(ours::DeviceFunctions::name), ::PFN_##name>::value());

void compare_structs() {
  SIZE(VkApplicationInfo)
  OFFSET(VkApplicationInfo, sType)
  OFFSET(VkApplicationInfo, pNext)
  OFFSET(VkApplicationInfo, pApplicationName)
  OFFSET(VkApplicationInfo, applicationVersion)
  OFFSET(VkApplicationInfo, pEngineName)
  OFFSET(VkApplicationInfo, engineVersion)
  OFFSET(VkApplicationInfo, apiVersion)
  SIZE(VkInstanceCreateInfo)
  OFFSET(VkInstanceCreateInfo, sType)
  OFFSET(VkInstanceCreateInfo, pNext)
  OFFSET(VkInstanceCreateInfo, flags)
  OFFSET(VkInstanceCreateInfo, pApplicationInfo)
  OFFSET(VkInstanceCreateInfo, enabledLayerCount)
  OFFSET(VkInstanceCreateInfo, ppEnabledLayerNames)
  OFFSET(VkInstanceCreateInfo, enabledExtensionCount)
  OFFSET(VkInstanceCreateInfo, ppEnabledExtensionNames)
  SIZE(VkExtensionProperties)
  OFFSET(VkExtensionProperties, extensionName)
  OFFSET(VkExtensionProperties, specVersion)
  SIZE(VkPhysicalDeviceLimits)
  OFFSET(VkPhysicalDeviceLimits, maxPushConstantsSize)
  OFFSET(VkPhysicalDeviceLimits, maxMemoryAllocationCount)
  OFFSET(VkPhysicalDeviceLimits, maxComputeSharedMemorySize)
  OFFSET(VkPhysicalDeviceLimits, maxComputeWorkGroupCount)
  OFFSET(VkPhysicalDeviceLimits, maxComputeWorkGroupInvocations)
  SIZE(VkPhysicalDeviceProperties)
  OFFSET(VkPhysicalDeviceProperties, apiVersion)
  OFFSET(VkPhysicalDeviceProperties, driverVersion)
  OFFSET(VkPhysicalDeviceProperties, vendorID)
  OFFSET(VkPhysicalDeviceProperties, deviceID)
  OFFSET(VkPhysicalDeviceProperties, deviceType)
  OFFSET(VkPhysicalDeviceProperties, deviceName)
  OFFSET(VkPhysicalDeviceProperties, pipelineCacheUUID)
  OFFSET(VkPhysicalDeviceProperties, limits)
  OFFSET(VkPhysicalDeviceProperties, sparseProperties)
  SIZE(VkPhysicalDeviceProperties2)
  OFFSET(VkPhysicalDeviceProperties2, sType)
  OFFSET(VkPhysicalDeviceProperties2, pNext)
  OFFSET(VkPhysicalDeviceProperties2, properties)
  SIZE(VkPhysicalDeviceVulkan11Properties)
  OFFSET(VkPhysicalDeviceVulkan11Properties, sType)
  OFFSET(VkPhysicalDeviceVulkan11Properties, pNext)
  OFFSET(VkPhysicalDeviceVulkan11Properties, maxMemoryAllocationSize)
  SIZE(VkPhysicalDeviceVulkan12Properties)
  OFFSET(VkPhysicalDeviceVulkan12Properties, sType)
  OFFSET(VkPhysicalDeviceVulkan12Properties, pNext)
  OFFSET(VkPhysicalDeviceVulkan12Properties, driverID)
  OFFSET(VkPhysicalDeviceVulkan12Properties, driverName)
  OFFSET(VkPhysicalDeviceVulkan12Properties, driverInfo)
  OFFSET(VkPhysicalDeviceVulkan12Properties, conformanceVersion)
  OFFSET(VkPhysicalDeviceVulkan12Properties, denormBehaviorIndependence)
  OFFSET(VkPhysicalDeviceVulkan12Properties, roundingModeIndependence)
  OFFSET(VkPhysicalDeviceVulkan12Properties, shaderSignedZeroInfNanPreserveFloat16)
  OFFSET(VkPhysicalDeviceVulkan12Properties, shaderSignedZeroInfNanPreserveFloat32)
  OFFSET(VkPhysicalDeviceVulkan12Properties, shaderSignedZeroInfNanPreserveFloat64)
  OFFSET(VkPhysicalDeviceVulkan12Properties, shaderDenormPreserveFloat16)
  OFFSET(VkPhysicalDeviceVulkan12Properties, shaderDenormPreserveFloat32)
  OFFSET(VkPhysicalDeviceVulkan12Properties, shaderDenormPreserveFloat64)
  OFFSET(VkPhysicalDeviceVulkan12Properties, shaderDenormFlushToZeroFloat16)
  OFFSET(VkPhysicalDeviceVulkan12Properties, shaderDenormFlushToZeroFloat32)
  OFFSET(VkPhysicalDeviceVulkan12Properties, shaderDenormFlushToZeroFloat64)
  OFFSET(VkPhysicalDeviceVulkan12Properties, shaderRoundingModeRTEFloat16)
  OFFSET(VkPhysicalDeviceVulkan12Properties, shaderRoundingModeRTEFloat32)
  SIZE(VkPhysicalDeviceShaderIntegerDotProductProperties)
  OFFSET(VkPhysicalDeviceShaderIntegerDotProductProperties, sType)
  OFFSET(VkPhysicalDeviceShaderIntegerDotProductProperties, pNext)
  OFFSET(VkPhysicalDeviceShaderIntegerDotProductProperties, integerDotProduct4x8BitPackedSignedAccelerated)
  SIZE(VkPhysicalDeviceFeatures)
  SIZE(VkPhysicalDeviceFeatures2)
  OFFSET(VkPhysicalDeviceFeatures2, sType)
  OFFSET(VkPhysicalDeviceFeatures2, pNext)
  OFFSET(VkPhysicalDeviceFeatures2, features)
  SIZE(VkPhysicalDeviceVulkan11Features)
  OFFSET(VkPhysicalDeviceVulkan11Features, sType)
  OFFSET(VkPhysicalDeviceVulkan11Features, pNext)
  OFFSET(VkPhysicalDeviceVulkan11Features, storageBuffer16BitAccess)
  SIZE(VkPhysicalDeviceVulkan12Features)
  OFFSET(VkPhysicalDeviceVulkan12Features, sType)
  OFFSET(VkPhysicalDeviceVulkan12Features, pNext)
  OFFSET(VkPhysicalDeviceVulkan12Features, storageBuffer8BitAccess)
  OFFSET(VkPhysicalDeviceVulkan12Features, shaderInt8)
  OFFSET(VkPhysicalDeviceVulkan12Features, scalarBlockLayout)
  OFFSET(VkPhysicalDeviceVulkan12Features, bufferDeviceAddress)
  OFFSET(VkPhysicalDeviceVulkan12Features, vulkanMemoryModel)
  SIZE(VkPhysicalDeviceShaderIntegerDotProductFeatures)
  OFFSET(VkPhysicalDeviceShaderIntegerDotProductFeatures, sType)
  OFFSET(VkPhysicalDeviceShaderIntegerDotProductFeatures, pNext)
  OFFSET(VkPhysicalDeviceShaderIntegerDotProductFeatures, shaderIntegerDotProduct)
  SIZE(VkQueueFamilyProperties)
  OFFSET(VkQueueFamilyProperties, queueFlags)
  OFFSET(VkQueueFamilyProperties, queueCount)
  OFFSET(VkQueueFamilyProperties, timestampValidBits)
  OFFSET(VkQueueFamilyProperties, minImageTransferGranularity)
  SIZE(VkMemoryType)
  OFFSET(VkMemoryType, propertyFlags)
  OFFSET(VkMemoryType, heapIndex)
  SIZE(VkMemoryHeap)
  OFFSET(VkMemoryHeap, size)
  OFFSET(VkMemoryHeap, flags)
  SIZE(VkPhysicalDeviceMemoryProperties)
  OFFSET(VkPhysicalDeviceMemoryProperties, memoryTypeCount)
  OFFSET(VkPhysicalDeviceMemoryProperties, memoryTypes)
  OFFSET(VkPhysicalDeviceMemoryProperties, memoryHeapCount)
  OFFSET(VkPhysicalDeviceMemoryProperties, memoryHeaps)
  SIZE(VkPhysicalDeviceMemoryProperties2)
  OFFSET(VkPhysicalDeviceMemoryProperties2, sType)
  OFFSET(VkPhysicalDeviceMemoryProperties2, pNext)
  OFFSET(VkPhysicalDeviceMemoryProperties2, memoryProperties)
  SIZE(VkPhysicalDeviceMemoryBudgetPropertiesEXT)
  OFFSET(VkPhysicalDeviceMemoryBudgetPropertiesEXT, sType)
  OFFSET(VkPhysicalDeviceMemoryBudgetPropertiesEXT, pNext)
  OFFSET(VkPhysicalDeviceMemoryBudgetPropertiesEXT, heapBudget)
  OFFSET(VkPhysicalDeviceMemoryBudgetPropertiesEXT, heapUsage)
  SIZE(VkDeviceQueueCreateInfo)
  OFFSET(VkDeviceQueueCreateInfo, sType)
  OFFSET(VkDeviceQueueCreateInfo, pNext)
  OFFSET(VkDeviceQueueCreateInfo, flags)
  OFFSET(VkDeviceQueueCreateInfo, queueFamilyIndex)
  OFFSET(VkDeviceQueueCreateInfo, queueCount)
  OFFSET(VkDeviceQueueCreateInfo, pQueuePriorities)
  SIZE(VkDeviceCreateInfo)
  OFFSET(VkDeviceCreateInfo, sType)
  OFFSET(VkDeviceCreateInfo, pNext)
  OFFSET(VkDeviceCreateInfo, flags)
  OFFSET(VkDeviceCreateInfo, queueCreateInfoCount)
  OFFSET(VkDeviceCreateInfo, pQueueCreateInfos)
  OFFSET(VkDeviceCreateInfo, enabledLayerCount)
  OFFSET(VkDeviceCreateInfo, ppEnabledLayerNames)
  OFFSET(VkDeviceCreateInfo, enabledExtensionCount)
  OFFSET(VkDeviceCreateInfo, ppEnabledExtensionNames)
  OFFSET(VkDeviceCreateInfo, pEnabledFeatures)
  SIZE(VkBufferCreateInfo)
  OFFSET(VkBufferCreateInfo, sType)
  OFFSET(VkBufferCreateInfo, pNext)
  OFFSET(VkBufferCreateInfo, flags)
  OFFSET(VkBufferCreateInfo, size)
  OFFSET(VkBufferCreateInfo, usage)
  OFFSET(VkBufferCreateInfo, sharingMode)
  OFFSET(VkBufferCreateInfo, queueFamilyIndexCount)
  OFFSET(VkBufferCreateInfo, pQueueFamilyIndices)
  SIZE(VkMemoryRequirements)
  OFFSET(VkMemoryRequirements, size)
  OFFSET(VkMemoryRequirements, alignment)
  OFFSET(VkMemoryRequirements, memoryTypeBits)
  SIZE(VkMemoryAllocateFlagsInfo)
  OFFSET(VkMemoryAllocateFlagsInfo, sType)
  OFFSET(VkMemoryAllocateFlagsInfo, pNext)
  OFFSET(VkMemoryAllocateFlagsInfo, flags)
  OFFSET(VkMemoryAllocateFlagsInfo, deviceMask)
  SIZE(VkMemoryAllocateInfo)
  OFFSET(VkMemoryAllocateInfo, sType)
  OFFSET(VkMemoryAllocateInfo, pNext)
  OFFSET(VkMemoryAllocateInfo, allocationSize)
  OFFSET(VkMemoryAllocateInfo, memoryTypeIndex)
  SIZE(VkBufferDeviceAddressInfo)
  OFFSET(VkBufferDeviceAddressInfo, sType)
  OFFSET(VkBufferDeviceAddressInfo, pNext)
  OFFSET(VkBufferDeviceAddressInfo, buffer)
  SIZE(VkShaderModuleCreateInfo)
  OFFSET(VkShaderModuleCreateInfo, sType)
  OFFSET(VkShaderModuleCreateInfo, pNext)
  OFFSET(VkShaderModuleCreateInfo, flags)
  OFFSET(VkShaderModuleCreateInfo, codeSize)
  OFFSET(VkShaderModuleCreateInfo, pCode)
  SIZE(VkSpecializationMapEntry)
  OFFSET(VkSpecializationMapEntry, constantID)
  OFFSET(VkSpecializationMapEntry, offset)
  OFFSET(VkSpecializationMapEntry, size)
  SIZE(VkSpecializationInfo)
  OFFSET(VkSpecializationInfo, mapEntryCount)
  OFFSET(VkSpecializationInfo, pMapEntries)
  OFFSET(VkSpecializationInfo, dataSize)
  OFFSET(VkSpecializationInfo, pData)
  SIZE(VkPipelineShaderStageCreateInfo)
  OFFSET(VkPipelineShaderStageCreateInfo, sType)
  OFFSET(VkPipelineShaderStageCreateInfo, pNext)
  OFFSET(VkPipelineShaderStageCreateInfo, flags)
  OFFSET(VkPipelineShaderStageCreateInfo, stage)
  OFFSET(VkPipelineShaderStageCreateInfo, module)
  OFFSET(VkPipelineShaderStageCreateInfo, pName)
  OFFSET(VkPipelineShaderStageCreateInfo, pSpecializationInfo)
  SIZE(VkComputePipelineCreateInfo)
  OFFSET(VkComputePipelineCreateInfo, sType)
  OFFSET(VkComputePipelineCreateInfo, pNext)
  OFFSET(VkComputePipelineCreateInfo, flags)
  OFFSET(VkComputePipelineCreateInfo, stage)
  OFFSET(VkComputePipelineCreateInfo, layout)
  OFFSET(VkComputePipelineCreateInfo, basePipelineHandle)
  OFFSET(VkComputePipelineCreateInfo, basePipelineIndex)
  SIZE(VkPushConstantRange)
  OFFSET(VkPushConstantRange, stageFlags)
  OFFSET(VkPushConstantRange, offset)
  OFFSET(VkPushConstantRange, size)
  SIZE(VkPipelineLayoutCreateInfo)
  OFFSET(VkPipelineLayoutCreateInfo, sType)
  OFFSET(VkPipelineLayoutCreateInfo, pNext)
  OFFSET(VkPipelineLayoutCreateInfo, flags)
  OFFSET(VkPipelineLayoutCreateInfo, setLayoutCount)
  OFFSET(VkPipelineLayoutCreateInfo, pSetLayouts)
  OFFSET(VkPipelineLayoutCreateInfo, pushConstantRangeCount)
  OFFSET(VkPipelineLayoutCreateInfo, pPushConstantRanges)
  SIZE(VkCommandPoolCreateInfo)
  OFFSET(VkCommandPoolCreateInfo, sType)
  OFFSET(VkCommandPoolCreateInfo, pNext)
  OFFSET(VkCommandPoolCreateInfo, flags)
  OFFSET(VkCommandPoolCreateInfo, queueFamilyIndex)
  SIZE(VkCommandBufferAllocateInfo)
  OFFSET(VkCommandBufferAllocateInfo, sType)
  OFFSET(VkCommandBufferAllocateInfo, pNext)
  OFFSET(VkCommandBufferAllocateInfo, commandPool)
  OFFSET(VkCommandBufferAllocateInfo, level)
  OFFSET(VkCommandBufferAllocateInfo, commandBufferCount)
  SIZE(VkCommandBufferBeginInfo)
  OFFSET(VkCommandBufferBeginInfo, sType)
  OFFSET(VkCommandBufferBeginInfo, pNext)
  OFFSET(VkCommandBufferBeginInfo, flags)
  OFFSET(VkCommandBufferBeginInfo, pInheritanceInfo)
  SIZE(VkMemoryBarrier)
  OFFSET(VkMemoryBarrier, sType)
  OFFSET(VkMemoryBarrier, pNext)
  OFFSET(VkMemoryBarrier, srcAccessMask)
  OFFSET(VkMemoryBarrier, dstAccessMask)
  SIZE(VkBufferCopy)
  OFFSET(VkBufferCopy, srcOffset)
  OFFSET(VkBufferCopy, dstOffset)
  OFFSET(VkBufferCopy, size)
  SIZE(VkFenceCreateInfo)
  OFFSET(VkFenceCreateInfo, sType)
  OFFSET(VkFenceCreateInfo, pNext)
  OFFSET(VkFenceCreateInfo, flags)
  SIZE(VkSubmitInfo)
  OFFSET(VkSubmitInfo, sType)
  OFFSET(VkSubmitInfo, pNext)
  OFFSET(VkSubmitInfo, waitSemaphoreCount)
  OFFSET(VkSubmitInfo, pWaitSemaphores)
  OFFSET(VkSubmitInfo, pWaitDstStageMask)
  OFFSET(VkSubmitInfo, commandBufferCount)
  OFFSET(VkSubmitInfo, pCommandBuffers)
  OFFSET(VkSubmitInfo, signalSemaphoreCount)
  OFFSET(VkSubmitInfo, pSignalSemaphores)
  compare("shaderInt16", offsetof(ours::VkPhysicalDeviceFeatures, all) + ours::kShaderInt16 * sizeof(ours::VkBool32),
          offsetof(::VkPhysicalDeviceFeatures, shaderInt16));
}

void compare_numbers() {
  NUMBER(VK_SUCCESS)
  NUMBER(VK_TIMEOUT)
  NUMBER(VK_INCOMPLETE)
  NUMBER(VK_ERROR_OUT_OF_HOST_MEMORY)
  NUMBER(VK_ERROR_OUT_OF_DEVICE_MEMORY)
  NUMBER(VK_ERROR_INITIALIZATION_FAILED)
  NUMBER(VK_ERROR_DEVICE_LOST)
  NUMBER(VK_ERROR_INCOMPATIBLE_DRIVER)
  NUMBER(VK_ERROR_TOO_MANY_OBJECTS)
  NUMBER(VK_STRUCTURE_TYPE_APPLICATION_INFO)
  NUMBER(VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO)
  NUMBER(VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO)
  NUMBER(VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO)
  NUMBER(VK_STRUCTURE_TYPE_SUBMIT_INFO)
  NUMBER(VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO)
  NUMBER(VK_STRUCTURE_TYPE_FENCE_CREATE_INFO)
  NUMBER(VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO)
  NUMBER(VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO)
  NUMBER(VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO)
  NUMBER(VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO)
  NUMBER(VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO)
  NUMBER(VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO)
  NUMBER(VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO)
  NUMBER(VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO)
  NUMBER(VK_STRUCTURE_TYPE_MEMORY_BARRIER)
  NUMBER(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES)
  NUMBER(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES)
  NUMBER(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES)
  NUMBER(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_PROPERTIES)
  NUMBER(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES)
  NUMBER(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2)
  NUMBER(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2)
  NUMBER(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2)
  NUMBER(VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO)
  NUMBER(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT)
  NUMBER(VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO)
  NUMBER(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES)
  NUMBER(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_PROPERTIES)
  NUMBER(VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU)
  NUMBER(VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU)
  NUMBER(VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU)
  NUMBER(VK_PHYSICAL_DEVICE_TYPE_CPU)
  NUMBER(VK_QUEUE_GRAPHICS_BIT)
  NUMBER(VK_QUEUE_COMPUTE_BIT)
  NUMBER(VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT)
  NUMBER(VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT)
  NUMBER(VK_MEMORY_PROPERTY_HOST_COHERENT_BIT)
  NUMBER(VK_MEMORY_PROPERTY_HOST_CACHED_BIT)
  NUMBER(VK_MEMORY_HEAP_DEVICE_LOCAL_BIT)
  NUMBER(VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT)
  NUMBER(VK_BUFFER_USAGE_TRANSFER_SRC_BIT)
  NUMBER(VK_BUFFER_USAGE_TRANSFER_DST_BIT)
  NUMBER(VK_BUFFER_USAGE_STORAGE_BUFFER_BIT)
  NUMBER(VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT)
  NUMBER(VK_SHADER_STAGE_COMPUTE_BIT)
  NUMBER(VK_PIPELINE_CREATE_DISPATCH_BASE_BIT)
  NUMBER(VK_COMMAND_POOL_CREATE_TRANSIENT_BIT)
  NUMBER(VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT)
  NUMBER(VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT)
  NUMBER(VK_PIPELINE_STAGE_TRANSFER_BIT)
  NUMBER(VK_PIPELINE_STAGE_HOST_BIT)
  NUMBER(VK_ACCESS_SHADER_READ_BIT)
  NUMBER(VK_ACCESS_SHADER_WRITE_BIT)
  NUMBER(VK_ACCESS_TRANSFER_READ_BIT)
  NUMBER(VK_ACCESS_TRANSFER_WRITE_BIT)
  NUMBER(VK_ACCESS_HOST_READ_BIT)
  NUMBER(VK_ACCESS_HOST_WRITE_BIT)
  NUMBER(VK_PIPELINE_BIND_POINT_COMPUTE)
  compare("Vulkan 1.2", ours::kVulkan12, VK_API_VERSION_1_2);
  compare("Vulkan 1.3", ours::kVulkan13, VK_API_VERSION_1_3);
}

void compare_functions() {
  EDGE_RT_VULKAN_OF_INSTANCE(OF_INSTANCE)
  EDGE_RT_VULKAN_OF_DEVICE(OF_DEVICE)
}

}  // namespace

int main() {
  compare_structs();
  compare_numbers();
  compare_functions();
  return differences == 0 ? 0 : 1;
}

#else

int main() {
  std::puts("skipped: there is no header of Vulkan");
  return 77;
}

#endif
