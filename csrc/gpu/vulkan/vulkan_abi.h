// The part of Vulkan's C interface that edge-rt uses, declared here so that no Vulkan header is needed. A test compares
// sizes, offsets and numbers with the official header where that is installed.
//
// Names are Vulkan's own. Large structs of which little is read have the rest as bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace edge_rt::gpu::vk {

using VkFlags = uint32_t;
using VkBool32 = uint32_t;
using VkDeviceSize = uint64_t;
using VkDeviceAddress = uint64_t;
using VkResult = int32_t;
using VkStructureType = int32_t;

using VkInstance = struct VkInstance_T*;
using VkPhysicalDevice = struct VkPhysicalDevice_T*;
using VkDevice = struct VkDevice_T*;
using VkQueue = struct VkQueue_T*;
using VkCommandBuffer = struct VkCommandBuffer_T*;
#if UINTPTR_MAX == UINT64_MAX
#define EDGE_RT_VULKAN_HANDLE(name) using name = struct name##_T*
#else
#define EDGE_RT_VULKAN_HANDLE(name) using name = uint64_t
#endif
EDGE_RT_VULKAN_HANDLE(VkBuffer);
EDGE_RT_VULKAN_HANDLE(VkDeviceMemory);
EDGE_RT_VULKAN_HANDLE(VkFence);
EDGE_RT_VULKAN_HANDLE(VkCommandPool);
EDGE_RT_VULKAN_HANDLE(VkShaderModule);
EDGE_RT_VULKAN_HANDLE(VkPipeline);
EDGE_RT_VULKAN_HANDLE(VkPipelineLayout);
EDGE_RT_VULKAN_HANDLE(VkPipelineCache);
EDGE_RT_VULKAN_HANDLE(VkDescriptorSetLayout);
EDGE_RT_VULKAN_HANDLE(VkSemaphore);
#undef EDGE_RT_VULKAN_HANDLE

// Results that are told apart.
constexpr VkResult VK_SUCCESS = 0, VK_TIMEOUT = 2, VK_INCOMPLETE = 5, VK_ERROR_OUT_OF_HOST_MEMORY = -1,
                   VK_ERROR_OUT_OF_DEVICE_MEMORY = -2, VK_ERROR_INITIALIZATION_FAILED = -3, VK_ERROR_DEVICE_LOST = -4,
                   VK_ERROR_INCOMPATIBLE_DRIVER = -9, VK_ERROR_TOO_MANY_OBJECTS = -10;

constexpr uint32_t kVulkan12 = (1u << 22) | (2u << 12), kVulkan13 = (1u << 22) | (3u << 12);
constexpr uint32_t version_major(uint32_t version) { return version >> 22 & 0x7f; }
constexpr uint32_t version_minor(uint32_t version) { return version >> 12 & 0x3ff; }

constexpr VkStructureType VK_STRUCTURE_TYPE_APPLICATION_INFO = 0, VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO = 1,
                          VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO = 2, VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO = 3,
                          VK_STRUCTURE_TYPE_SUBMIT_INFO = 4, VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO = 5,
                          VK_STRUCTURE_TYPE_FENCE_CREATE_INFO = 8, VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO = 12,
                          VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO = 16,
                          VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO = 18,
                          VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO = 29,
                          VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO = 30,
                          VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO = 39,
                          VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO = 40,
                          VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO = 42, VK_STRUCTURE_TYPE_MEMORY_BARRIER = 46,
                          VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES = 49,
                          VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES = 50,
                          VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES = 51,
                          VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_PROPERTIES = 52,
                          VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES = 53,
                          VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2 = 1000059000,
                          VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2 = 1000059001,
                          VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2 = 1000059006,
                          VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO = 1000060000,
                          VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO = 1000072000,
                          VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT = 1000178000,
                          VK_STRUCTURE_TYPE_MEMORY_HOST_POINTER_PROPERTIES_EXT = 1000178001,
                          VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_MEMORY_HOST_PROPERTIES_EXT = 1000178002,
                          VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT = 1000237000,
                          VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO = 1000244001,
                          VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES = 1000280000,
                          VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_PROPERTIES = 1000280001,
                          VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_FMA_FEATURES_KHR = 1000579000;

constexpr int32_t VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU = 1, VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU = 2,
                  VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU = 3, VK_PHYSICAL_DEVICE_TYPE_CPU = 4;
constexpr VkFlags VK_QUEUE_GRAPHICS_BIT = 1, VK_QUEUE_COMPUTE_BIT = 2;
constexpr VkFlags VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT = 1, VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT = 2,
                  VK_MEMORY_PROPERTY_HOST_COHERENT_BIT = 4, VK_MEMORY_PROPERTY_HOST_CACHED_BIT = 8;
constexpr VkFlags VK_MEMORY_HEAP_DEVICE_LOCAL_BIT = 1;
constexpr VkFlags VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT = 2;
constexpr VkFlags VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT = 0x80;
constexpr VkFlags VK_BUFFER_USAGE_TRANSFER_SRC_BIT = 1, VK_BUFFER_USAGE_TRANSFER_DST_BIT = 2,
                  VK_BUFFER_USAGE_STORAGE_BUFFER_BIT = 0x20, VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT = 0x20000;
constexpr VkFlags VK_SHADER_STAGE_COMPUTE_BIT = 0x20;
constexpr VkFlags VK_PIPELINE_CREATE_DISPATCH_BASE_BIT = 0x10;
constexpr VkFlags VK_COMMAND_POOL_CREATE_TRANSIENT_BIT = 1;
constexpr VkFlags VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT = 1;
constexpr VkFlags VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT = 0x800, VK_PIPELINE_STAGE_TRANSFER_BIT = 0x1000,
                  VK_PIPELINE_STAGE_HOST_BIT = 0x4000;
constexpr VkFlags VK_ACCESS_SHADER_READ_BIT = 0x20, VK_ACCESS_SHADER_WRITE_BIT = 0x40,
                  VK_ACCESS_TRANSFER_READ_BIT = 0x800, VK_ACCESS_TRANSFER_WRITE_BIT = 0x1000,
                  VK_ACCESS_HOST_READ_BIT = 0x2000, VK_ACCESS_HOST_WRITE_BIT = 0x4000;
constexpr int32_t VK_PIPELINE_BIND_POINT_COMPUTE = 1;

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
struct VkPhysicalDeviceFeatures {
  VkBool32 all[55] = {};
};
struct VkPhysicalDeviceFeatures2 {
  VkStructureType sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
  void* pNext = nullptr;
  VkPhysicalDeviceFeatures features = {};
};
constexpr int kShaderInt16 = 41;  // of VkPhysicalDeviceFeatures::all
struct VkPhysicalDeviceVulkan11Features {
  VkStructureType sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES;
  void* pNext = nullptr;
  VkBool32 storageBuffer16BitAccess = 0;
  VkBool32 rest[11] = {};
};
struct VkPhysicalDeviceVulkan12Features {
  VkStructureType sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES;
  void* pNext = nullptr;
  VkBool32 before_8bit[2] = {};
  VkBool32 storageBuffer8BitAccess = 0;
  VkBool32 before_int8[5] = {};
  VkBool32 shaderInt8 = 0;
  VkBool32 before_scalar[22] = {};
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

using VkVoidFunction = void (*)();
using GetInstanceProcAddr = VkVoidFunction (*)(VkInstance instance, const char* name);
// Of a device with VK_EXT_external_memory_host: which types memory of the host can be imported as.
using GetHostPointerProperties = VkResult (*)(VkDevice device, VkFlags handle_type, const void* pointer,
                                              VkMemoryHostPointerPropertiesEXT* out);

// Name, result, arguments; found without an instance,
#define EDGE_RT_VULKAN_GLOBAL(F)                               \
  F(vkEnumerateInstanceVersion, VkResult, (uint32_t* version)) \
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
