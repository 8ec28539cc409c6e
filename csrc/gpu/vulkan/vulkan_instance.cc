#include "gpu/vulkan/vulkan_instance.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "common/float_mode.h"

namespace edge_rt::gpu {
namespace {

using namespace vk;  // NOLINT: names of Vulkan's own

constexpr const char* kLoader = "libvulkan.so.1";
constexpr uint32_t kSharedBytes = 16 << 10, kThreads = 128, kPushBytes = 8;

const char* name_of(VkResult result) {
  switch (result) {
    case VK_TIMEOUT: return "VK_TIMEOUT";
    case VK_ERROR_OUT_OF_HOST_MEMORY: return "VK_ERROR_OUT_OF_HOST_MEMORY";
    case VK_ERROR_OUT_OF_DEVICE_MEMORY: return "VK_ERROR_OUT_OF_DEVICE_MEMORY";
    case VK_ERROR_INITIALIZATION_FAILED: return "VK_ERROR_INITIALIZATION_FAILED";
    case VK_ERROR_DEVICE_LOST: return "VK_ERROR_DEVICE_LOST";
    case VK_ERROR_MEMORY_MAP_FAILED: return "VK_ERROR_MEMORY_MAP_FAILED";
    case VK_ERROR_EXTENSION_NOT_PRESENT: return "VK_ERROR_EXTENSION_NOT_PRESENT";
    case VK_ERROR_FEATURE_NOT_PRESENT: return "VK_ERROR_FEATURE_NOT_PRESENT";
    case VK_ERROR_INCOMPATIBLE_DRIVER: return "VK_ERROR_INCOMPATIBLE_DRIVER";
    case VK_ERROR_TOO_MANY_OBJECTS: return "VK_ERROR_TOO_MANY_OBJECTS";
    case VK_ERROR_UNKNOWN: return "VK_ERROR_UNKNOWN";
    default: return "an error without a name";
  }
}

Fault fault_of(VkResult result) {
  switch (result) {
    case VK_ERROR_OUT_OF_HOST_MEMORY:
    case VK_ERROR_OUT_OF_DEVICE_MEMORY:
    case VK_ERROR_MEMORY_MAP_FAILED:  // the window on a card's memory is full
    case VK_ERROR_TOO_MANY_OBJECTS: return Fault::kOutOfMemory;
    case VK_ERROR_DEVICE_LOST: return Fault::kLost;
    case VK_TIMEOUT: return Fault::kHung;
    default: return Fault::kOther;
  }
}

// The loader stays open for good: drivers keep threads of their own.
GetInstanceProcAddr find_loader(GpuError* error) {
  static std::mutex lock;
  static GetInstanceProcAddr found = nullptr;
  const std::lock_guard<std::mutex> guard(lock);
  if (found != nullptr) return found;
  void* const library = dlopen(kLoader, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = dlerror();
    *error = {Fault::kOther, 0, std::string("dlopen: ") + (why != nullptr ? why : kLoader)};
    return nullptr;
  }
  found = reinterpret_cast<GetInstanceProcAddr>(dlsym(library, "vkGetInstanceProcAddr"));
  if (found == nullptr) *error = {Fault::kOther, 0, std::string("dlsym: ") + kLoader + " has no vkGetInstanceProcAddr"};
  return found;
}

bool is_missing(VkVoidFunction function, const char* name, GpuError* error) {
  if (function != nullptr) return false;
  *error = {Fault::kOther, 0, std::string("dlsym: the Vulkan loader has no ") + name};
  return true;
}

std::string text_of(const char* text, size_t most) { return std::string(text, strnlen(text, most)); }

bool has(const std::vector<VkExtensionProperties>& extensions, const char* name) {
  return std::any_of(extensions.begin(), extensions.end(), [&](const VkExtensionProperties& extension) {
    return std::strcmp(extension.extensionName, name) == 0;
  });
}

constexpr VkFlags kMapped = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;

// Types of memory, of which one is to be chosen.
class MemoryTypes {
 public:
  MemoryTypes(const VkPhysicalDeviceMemoryProperties& memory, uint32_t usable) : memory_(memory), usable_(usable) {}

  // That whose flags hold all of `wanted`, with the most of `liked` and the largest heap, or first of the largest heap;
  // -1: none.
  int choose(VkFlags wanted, VkFlags liked, VkFlags disliked, bool by_heap = false) const {
    int best = -1;
    const auto value = [&](uint32_t type) {
      const VkFlags flags = memory_.memoryTypes[type].propertyFlags;
      const int64_t likes = __builtin_popcount(flags & liked) - __builtin_popcount(flags & disliked);
      const auto heap = static_cast<int64_t>(memory_.memoryHeaps[memory_.memoryTypes[type].heapIndex].size);
      return by_heap ? std::make_pair(heap, likes) : std::make_pair(likes, heap);
    };
    // Types with further properties are protected, or not cached by the device.
    constexpr VkFlags kPlain = kMapped | VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT | VK_MEMORY_PROPERTY_HOST_CACHED_BIT;
    for (uint32_t type = 0; type < memory_.memoryTypeCount; ++type) {
      const VkFlags flags = memory_.memoryTypes[type].propertyFlags;
      if ((usable_ >> type & 1) == 0 || (flags & wanted) != wanted || (flags & ~kPlain) != 0) continue;
      if (best < 0 || value(type) > value(static_cast<uint32_t>(best))) best = static_cast<int>(type);
    }
    return best;
  }

 private:
  const VkPhysicalDeviceMemoryProperties& memory_;
  const uint32_t usable_;
};

}  // namespace

bool lay_memory(const VkPhysicalDeviceMemoryProperties& memory, uint32_t usable, VulkanFacts* facts) {
  const MemoryTypes types(memory, usable);
  const int host = types.choose(kMapped, VK_MEMORY_PROPERTY_HOST_CACHED_BIT, VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT);
  if (host < 0) return false;
  facts->host_type = static_cast<uint32_t>(host);
  facts->piece_type = static_cast<uint32_t>(types.choose(kMapped, VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT, 0));
  facts->is_unified =
      facts->type == VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU || facts->type == VK_PHYSICAL_DEVICE_TYPE_CPU;
  int device = -1;
  // Where host and device share their memory, weights are written where they lie, and the part of it that firmware has
  // set aside as the device's own may be small. Of equal types drivers name those first that the device reads fastest,
  // which the host often reads without a cache.
  if (facts->is_unified) device = types.choose(kMapped, VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT, 0, true);
  // Elsewhere the host reads it slowly.
  if (device < 0) {
    device = types.choose(VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT, 0, VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT);
  }
  if (device < 0) device = host;
  facts->device_type = static_cast<uint32_t>(device);
  const VkMemoryType& chosen = memory.memoryTypes[device];
  facts->is_mapped = (chosen.propertyFlags & kMapped) == kMapped;
  facts->is_cached = (chosen.propertyFlags & VK_MEMORY_PROPERTY_HOST_CACHED_BIT) != 0;
  facts->bytes = static_cast<size_t>(memory.memoryHeaps[chosen.heapIndex].size);
  return true;
}

bool keep_result(VkResult result, const char* function, GpuError* error) {
  if (result >= 0 && result != VK_TIMEOUT) return true;
  if (!*error) {
    *error = {fault_of(result), result,
              std::string(function) + " failed: " + name_of(result) + " (" + std::to_string(result) + ")"};
  }
  return false;
}

std::shared_ptr<VulkanInstance> VulkanInstance::open(GpuError* error) {
  static std::mutex lock;
  static auto* const known = new std::weak_ptr<VulkanInstance>;  // devices may outlive static objects
  const std::lock_guard<std::mutex> guard(lock);
  if (std::shared_ptr<VulkanInstance> found = known->lock()) return found;
  std::shared_ptr<VulkanInstance> made(new VulkanInstance);
  if (!made->make(error)) return nullptr;
  *known = made;
  return made;
}

VulkanInstance::~VulkanInstance() {
  if (handle_ != nullptr && call.vkDestroyInstance != nullptr) call.vkDestroyInstance(handle_, nullptr);
}

bool VulkanInstance::make(GpuError* error) {
  const GetInstanceProcAddr find = find_loader(error);
  if (find == nullptr) return false;
  // Threads of a software device compute in the mode of the thread that makes them.
  const DefaultFloatMode mode;
#define EDGE_RT_FIND(name, result, arguments)                                    \
  const auto name = reinterpret_cast<result(*) arguments>(find(nullptr, #name)); \
  if (is_missing(reinterpret_cast<VkVoidFunction>(name), #name, error)) return false;
  EDGE_RT_VULKAN_GLOBAL(EDGE_RT_FIND)
#undef EDGE_RT_FIND
  if (!keep_result(vkEnumerateInstanceVersion(&version_), "vkEnumerateInstanceVersion", error)) return false;
  if (version_ < kVulkan12) {
    *error = {Fault::kOther, 0,
              "vkEnumerateInstanceVersion: the loader is of Vulkan " + std::to_string(version_major(version_)) + "." +
                  std::to_string(version_minor(version_)) + ", 1.2 or newer is needed"};
    return false;
  }
  VkApplicationInfo application;
  application.pApplicationName = "edge-rt";
  application.apiVersion = kVulkan13;
  VkInstanceCreateInfo info;
  info.pApplicationInfo = &application;
  // The loader leaves out devices without all of Vulkan, such as Metal's, unless it is asked for them.
  constexpr const char* kPortable = "VK_KHR_portability_enumeration";
  uint32_t count = 0;
  vkEnumerateInstanceExtensionProperties(nullptr, &count, nullptr);
  std::vector<VkExtensionProperties> extensions(count);
  vkEnumerateInstanceExtensionProperties(nullptr, &count, extensions.data());
  extensions.resize(count);
  if (has(extensions, kPortable)) {
    info.flags = VK_INSTANCE_CREATE_ENUMERATE_PORTABILITY_BIT_KHR;
    info.enabledExtensionCount = 1;
    info.ppEnabledExtensionNames = &kPortable;
  }
  if (!keep_result(vkCreateInstance(&info, nullptr, &handle_), "vkCreateInstance", error)) return false;
#define EDGE_RT_FIND(name, result, arguments)                              \
  call.name = reinterpret_cast<result(*) arguments>(find(handle_, #name)); \
  if (is_missing(reinterpret_cast<VkVoidFunction>(call.name), #name, error)) return false;
  EDGE_RT_VULKAN_OF_INSTANCE(EDGE_RT_FIND)
#undef EDGE_RT_FIND
  return find_devices(error);
}

bool VulkanInstance::find_devices(GpuError* error) {
  uint32_t count = 0;
  if (!keep_result(call.vkEnumeratePhysicalDevices(handle_, &count, nullptr), "vkEnumeratePhysicalDevices", error)) {
    return false;
  }
  devices_.resize(count);
  if (!keep_result(call.vkEnumeratePhysicalDevices(handle_, &count, devices_.data()), "vkEnumeratePhysicalDevices",
                   error)) {
    return false;
  }
  devices_.resize(count);
  return true;
}

VulkanFacts VulkanInstance::facts(VkPhysicalDevice device) const {
  VulkanFacts facts;
  VkPhysicalDeviceShaderIntegerDotProductProperties dots;
  VkPhysicalDeviceVulkan12Properties properties12;
  VkPhysicalDeviceProperties2 properties;
  call.vkGetPhysicalDeviceProperties2(device, &properties);  // which of the others may be asked for
  const VkPhysicalDeviceProperties& own = properties.properties;
  facts.version = std::min(own.apiVersion, version_);
  facts.type = own.deviceType;
  facts.vendor = own.vendorID;
  facts.device = own.deviceID;
  std::memcpy(facts.cache_id, own.pipelineCacheUUID, sizeof facts.cache_id);
  facts.name = text_of(own.deviceName, sizeof own.deviceName);
  if (facts.version < kVulkan12) {
    facts.refusal = "it has Vulkan " + std::to_string(version_major(own.apiVersion)) + "." +
                    std::to_string(version_minor(own.apiVersion)) + ", 1.2 or newer is needed";
    return facts;
  }
  const bool is_13 = facts.version >= kVulkan13;
  VkPhysicalDeviceVulkan11Properties properties11;
  properties12.pNext = is_13 ? &dots : nullptr;
  properties11.pNext = &properties12;
  properties.pNext = &properties11;
  call.vkGetPhysicalDeviceProperties2(device, &properties);
  facts.driver = text_of(properties12.driverName, 256) + " " + text_of(properties12.driverInfo, 256);
  facts.largest = static_cast<size_t>(properties11.maxMemoryAllocationSize);
  facts.keeps_denormals = properties12.shaderDenormPreserveFloat32 != 0;
  facts.keeps_signs = properties12.shaderSignedZeroInfNanPreserveFloat32 != 0;
  facts.rounds_to_even = properties12.shaderRoundingModeRTEFloat32 != 0;
  facts.has_fast_dots = dots.integerDotProduct4x8BitPackedSignedAccelerated != 0;
  facts.shared_bytes = own.limits.maxComputeSharedMemorySize;
  std::copy(own.limits.maxComputeWorkGroupCount, own.limits.maxComputeWorkGroupCount + 2, facts.grid);

  uint32_t count = 0;
  call.vkEnumerateDeviceExtensionProperties(device, nullptr, &count, nullptr);
  std::vector<VkExtensionProperties> extensions(count);
  call.vkEnumerateDeviceExtensionProperties(device, nullptr, &count, extensions.data());
  extensions.resize(count);
  facts.has_budget = has(extensions, "VK_EXT_memory_budget");
  facts.is_portable = has(extensions, "VK_KHR_portability_subset");
  if (is_13 || has(extensions, "VK_KHR_maintenance4")) {
    VkPhysicalDeviceMaintenance4Properties buffers;
    properties.pNext = &buffers;
    call.vkGetPhysicalDeviceProperties2(device, &properties);
    const auto most = static_cast<size_t>(buffers.maxBufferSize);
    if (most != 0) facts.largest = std::min(facts.largest, most);
  }
  if (has(extensions, "VK_EXT_external_memory_host")) {
    VkPhysicalDeviceExternalMemoryHostPropertiesEXT imports;
    properties.pNext = &imports;
    call.vkGetPhysicalDeviceProperties2(device, &properties);
    facts.import_alignment = static_cast<size_t>(imports.minImportedHostPointerAlignment);
  }

  VkPhysicalDeviceShaderFmaFeaturesKHR fma;
  VkPhysicalDeviceShaderIntegerDotProductFeatures dot_features;
  VkPhysicalDeviceVulkan12Features features12;
  VkPhysicalDeviceVulkan11Features features11;
  VkPhysicalDeviceFeatures2 features;
  dot_features.pNext = has(extensions, "VK_KHR_shader_fma") ? &fma : nullptr;
  features12.pNext = is_13 ? &dot_features : dot_features.pNext;
  features11.pNext = &features12;
  features.pNext = &features11;
  call.vkGetPhysicalDeviceFeatures2(device, &features);
  facts.has_fma = fma.shaderFmaFloat32 != 0;
  facts.has_dots = dot_features.shaderIntegerDotProduct != 0;

  call.vkGetPhysicalDeviceQueueFamilyProperties(device, &count, nullptr);
  std::vector<VkQueueFamilyProperties> families(count);
  call.vkGetPhysicalDeviceQueueFamilyProperties(device, &count, families.data());
  const auto family = std::find_if(families.begin(), families.end(), [](const VkQueueFamilyProperties& one) {
    return (one.queueFlags & VK_QUEUE_COMPUTE_BIT) != 0;
  });
  facts.family = static_cast<uint32_t>(family - families.begin());

  VkPhysicalDeviceMemoryProperties2 memory;
  call.vkGetPhysicalDeviceMemoryProperties2(device, &memory);
  // All types until the device is opened, which is asked then.
  const bool has_memory = lay_memory(memory.memoryProperties, ~uint32_t{0}, &facts);

  const struct {
    bool is_there;
    const char* what;
  } needs[] = {
      {features12.bufferDeviceAddress != 0, "buffer addresses (bufferDeviceAddress)"},
      {features12.scalarBlockLayout != 0, "structs without padding (scalarBlockLayout)"},
      {features11.storageBuffer16BitAccess != 0, "16-bit storage (storageBuffer16BitAccess)"},
      {own.limits.maxComputeSharedMemorySize >= kSharedBytes, "16 KiB of shared memory (maxComputeSharedMemorySize)"},
      {own.limits.maxComputeWorkGroupInvocations >= kThreads, "blocks of 128 threads"},
      {own.limits.maxPushConstantsSize >= kPushBytes, "push constants"},
      {family != families.end(), "a queue for compute"},
      {has_memory, "memory that the host can write"},
  };
  for (const auto& need : needs) {
    if (!need.is_there && facts.refusal.empty()) facts.refusal = std::string("it has no ") + need.what;
  }
  return facts;
}

}  // namespace edge_rt::gpu
