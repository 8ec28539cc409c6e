// Structs of an instance, and of what its devices say of themselves; see vulkan_abi.h.
#pragma once

#include "gpu/vulkan/vulkan_types.h"

namespace edge_rt::gpu::vk {

struct VkApplicationInfo {
  VkStructureType sType = VK_STRUCTURE_TYPE_APPLICATION_INFO;
  const void* pNext = nullptr;
  const char* pApplicationName = nullptr;
  uint32_t applicationVersion = 0;
  const char* pEngineName = nullptr;
  uint32_t engineVersion = 0;
  uint32_t apiVersion = 0;
};
struct VkInstanceCreateInfo {
  VkStructureType sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO;
  const void* pNext = nullptr;
  VkFlags flags = 0;
  const VkApplicationInfo* pApplicationInfo = nullptr;
  uint32_t enabledLayerCount = 0;
  const char* const* ppEnabledLayerNames = nullptr;
  uint32_t enabledExtensionCount = 0;
  const char* const* ppEnabledExtensionNames = nullptr;
};
struct VkExtensionProperties {
  char extensionName[256];
  uint32_t specVersion;
};
struct VkPhysicalDeviceLimits {
  uint8_t before_push[32];
  uint32_t maxPushConstantsSize;
  uint32_t maxMemoryAllocationCount;
  uint8_t before_shared[176];
  uint32_t maxComputeSharedMemorySize;
  uint32_t maxComputeWorkGroupCount[3];
  uint32_t maxComputeWorkGroupInvocations;
  alignas(8) uint8_t rest[264];
};
struct VkPhysicalDeviceProperties {
  uint32_t apiVersion;
  uint32_t driverVersion;
  uint32_t vendorID;
  uint32_t deviceID;
  int32_t deviceType;
  char deviceName[256];
  uint8_t pipelineCacheUUID[16];
  VkPhysicalDeviceLimits limits;
  VkBool32 sparseProperties[5];
};
struct VkPhysicalDeviceProperties2 {
  VkStructureType sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2;
  void* pNext = nullptr;
  VkPhysicalDeviceProperties properties = {};
};
struct VkPhysicalDeviceVulkan11Properties {
  VkStructureType sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES;
  void* pNext = nullptr;
  uint8_t before[88] = {};
  VkDeviceSize maxMemoryAllocationSize = 0;
};
struct VkPhysicalDeviceVulkan12Properties {
  VkStructureType sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_PROPERTIES;
  void* pNext = nullptr;
  int32_t driverID = 0;
  char driverName[256] = {};
  char driverInfo[256] = {};
  uint8_t conformanceVersion[4] = {};
  int32_t denormBehaviorIndependence = 0;
  int32_t roundingModeIndependence = 0;
  VkBool32 shaderSignedZeroInfNanPreserveFloat16 = 0;
  VkBool32 shaderSignedZeroInfNanPreserveFloat32 = 0;
  VkBool32 shaderSignedZeroInfNanPreserveFloat64 = 0;
  VkBool32 shaderDenormPreserveFloat16 = 0;
  VkBool32 shaderDenormPreserveFloat32 = 0;
  VkBool32 shaderDenormPreserveFloat64 = 0;
  VkBool32 shaderDenormFlushToZeroFloat16 = 0;
  VkBool32 shaderDenormFlushToZeroFloat32 = 0;
  VkBool32 shaderDenormFlushToZeroFloat64 = 0;
  VkBool32 shaderRoundingModeRTEFloat16 = 0;
  VkBool32 shaderRoundingModeRTEFloat32 = 0;
  uint8_t rest[148] = {};
};
struct VkPhysicalDeviceShaderIntegerDotProductProperties {
  VkStructureType sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_PROPERTIES;
  void* pNext = nullptr;
  VkBool32 before[4] = {};
  VkBool32 integerDotProduct4x8BitPackedSignedAccelerated = 0;
  VkBool32 rest[25] = {};
};
struct VkPhysicalDeviceExternalMemoryHostPropertiesEXT {
  VkStructureType sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_MEMORY_HOST_PROPERTIES_EXT;
  void* pNext = nullptr;
  VkDeviceSize minImportedHostPointerAlignment = 0;
};
struct VkPhysicalDeviceMaintenance4Properties {
  VkStructureType sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_4_PROPERTIES;
  void* pNext = nullptr;
  VkDeviceSize maxBufferSize = 0;
};
struct VkPhysicalDeviceFeatures {
  VkBool32 all[55] = {};
};
struct VkPhysicalDeviceFeatures2 {
  VkStructureType sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
  void* pNext = nullptr;
  VkPhysicalDeviceFeatures features = {};
};
struct VkPhysicalDeviceVulkan11Features {
  VkStructureType sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES;
  void* pNext = nullptr;
  VkBool32 storageBuffer16BitAccess = 0;
  VkBool32 rest[11] = {};
};
struct VkPhysicalDeviceVulkan12Features {
  VkStructureType sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES;
  void* pNext = nullptr;
  VkBool32 before_scalar[31] = {};
  VkBool32 scalarBlockLayout = 0;
  VkBool32 before_address[6] = {};
  VkBool32 bufferDeviceAddress = 0;
  VkBool32 before_model[2] = {};
  VkBool32 vulkanMemoryModel = 0;
  VkBool32 rest[6] = {};
};
struct VkPhysicalDeviceShaderIntegerDotProductFeatures {
  VkStructureType sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES;
  void* pNext = nullptr;
  VkBool32 shaderIntegerDotProduct = 0;
};
struct VkPhysicalDeviceShaderFmaFeaturesKHR {
  VkStructureType sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_FMA_FEATURES_KHR;
  void* pNext = nullptr;
  VkBool32 shaderFmaFloat16 = 0;
  VkBool32 shaderFmaFloat32 = 0;
  VkBool32 shaderFmaFloat64 = 0;
};
struct VkQueueFamilyProperties {
  VkFlags queueFlags;
  uint32_t queueCount;
  uint32_t timestampValidBits;
  uint32_t minImageTransferGranularity[3];
};
struct VkMemoryType {
  VkFlags propertyFlags;
  uint32_t heapIndex;
};
struct VkMemoryHeap {
  VkDeviceSize size;
  VkFlags flags;
};
struct VkPhysicalDeviceMemoryProperties {
  uint32_t memoryTypeCount;
  VkMemoryType memoryTypes[32];
  uint32_t memoryHeapCount;
  VkMemoryHeap memoryHeaps[16];
};
struct VkPhysicalDeviceMemoryProperties2 {
  VkStructureType sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2;
  void* pNext = nullptr;
  VkPhysicalDeviceMemoryProperties memoryProperties = {};
};
struct VkPhysicalDeviceMemoryBudgetPropertiesEXT {
  VkStructureType sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT;
  void* pNext = nullptr;
  VkDeviceSize heapBudget[16] = {};
  VkDeviceSize heapUsage[16] = {};
};

}  // namespace edge_rt::gpu::vk
