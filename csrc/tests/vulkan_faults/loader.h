// How Vulkan's loader and a layer speak to each other, and the few structs of Vulkan that the layer looks into (the
// loader's documentation, "Layer interface", version 2; Vulkan 1.2). On 64-bit machines only: there every handle is
// eight bytes, so functions that make objects have one type.
#pragma once

#include <cstdint>

namespace vulkan_faults {

static_assert(sizeof(void*) == 8, "handles are taken for numbers of 64 bits");

using Function = void (*)();
using GetProcAddr = Function (*)(void* of, const char* name);  // of an instance, and of a device

// What every chained struct begins with.
struct Chained {
  int32_t type;
  const void* next;
};
enum : int32_t {
  kLoaderInstance = 47,
  kLoaderDevice = 48,
  kProperties11 = 50,
  kFeatures12 = 51,
  kProperties12 = 52,
  kImport = 1000178000,
  kMemoryBudget = 1000237000,
  kDotFeatures = 1000280000,
  kDotProperties = 1000280001,
  kBufferProperties = 1000413001  // of VK_KHR_maintenance4
};

// Of the layers below this one; a layer moves the head of the list to the next.
struct Link {
  Link* next;
  GetProcAddr get_instance_proc_addr;
  GetProcAddr get_device_proc_addr;  // of an instance's list: for physical devices
};
struct LoaderInfo {
  Chained head;
  int32_t function;  // 0: links
  Link* links;
};

struct Negotiation {
  int32_t type;
  void* next;
  uint32_t version;
  GetProcAddr get_instance_proc_addr, get_device_proc_addr, get_physical_device_proc_addr;
};

struct MemoryAllocateInfo {
  Chained head;
  uint64_t bytes;
  uint32_t memory_type;
};

struct InstanceCreateInfo {
  Chained head;
  uint32_t flags;  // 1: with devices that have not all of Vulkan
};

struct ModuleCreateInfo {
  Chained head;
  uint32_t flags;
  size_t bytes;
  const uint32_t* code;
};

struct BufferRequirements {
  uint64_t bytes, alignment;
  uint32_t types;
};

struct DeviceCreateInfo {
  Chained head;
  uint32_t flags, queue_info_count;
  const void* queue_infos;
  uint32_t layer_count;
  const char* const* layers;
  uint32_t extension_count;
  const char* const* extensions;
  const void* features;
};

struct Extension {
  char name[256];
  uint32_t version;
};

struct MemoryProperties {
  uint32_t type_count;
  uint32_t types[32][2];
  uint32_t heap_count;
  struct {
    uint64_t bytes;
    uint32_t flags;
  } heaps[16];
};
struct MemoryProperties2 {
  Chained head;
  MemoryProperties properties;
};
// The beginning of what a device says of itself.
struct Properties {
  uint32_t api, driver, vendor, device, type;
  uint8_t names_and_limits[492];
  uint32_t shared_bytes;  // of a block
  uint32_t grid[3];       // blocks that can be started at once
  uint32_t threads;       // of a block
};
struct Properties2 {
  Chained head;
  Properties properties;
};
struct MemoryBudget {
  Chained head;
  uint64_t budget[16], usage[16];
};

}  // namespace vulkan_faults
