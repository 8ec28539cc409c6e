// What is made of a device and given back: it is counted, and memory is limited.
#include <iterator>
#include <utility>
#include <vector>

#include "tests/vulkan_faults/guises.h"
#include "tests/vulkan_faults/owners.h"

namespace vulkan_faults {
namespace {

struct Kind {
  const char* create;
  const char* destroy;
  const char* name;
};
constexpr Kind kKinds[] = {
    {"vkAllocateMemory", "vkFreeMemory", "memory"},
    {"vkCreateBuffer", "vkDestroyBuffer", "buffers"},
    {"vkCreateShaderModule", "vkDestroyShaderModule", "modules"},
    {"vkCreatePipelineLayout", "vkDestroyPipelineLayout", "layouts"},
    {"vkCreatePipelineCache", "vkDestroyPipelineCache", "pipeline caches"},
    {"vkCreateCommandPool", "vkDestroyCommandPool", "command pools"},
    {"vkCreateFence", "vkDestroyFence", "fences"},
    {"vkCreateSemaphore", "vkDestroySemaphore", "semaphores"},
    {"vkCreateEvent", "vkDestroyEvent", "events"},
    {"vkCreateQueryPool", "vkDestroyQueryPool", "query pools"},
    {"vkCreateDescriptorSetLayout", "vkDestroyDescriptorSetLayout", "set layouts"},
    {"vkCreateDescriptorPool", "vkDestroyDescriptorPool", "descriptor pools"},
};
constexpr size_t kMemory = 0, kKindCount = std::size(kKinds);
constexpr const char* kPipelines = "pipelines";

// Memory of the host that becomes the device's as well takes none; faults know it by a name of its own.
bool is_import(const void* info) {
  for (const auto* one = static_cast<const Chained*>(info); one != nullptr;
       one = static_cast<const Chained*>(one->next)) {
    if (one->type == kImport) return true;
  }
  return false;
}

int32_t import(Owner* owner, void* device, const void* info, const void* allocator, uint64_t* out) {
  if (const int32_t result = take(owner, "vkImportMemory"); result != kSuccess) return result;
  const int32_t result = owner->below<int32_t (*)(void*, const void*, const void*, uint64_t*)>("vkAllocateMemory")(
      device, info, allocator, out);
  if (result != kSuccess) return result;
  const auto bytes = static_cast<int64_t>(static_cast<const MemoryAllocateInfo*>(info)->bytes);
  {
    const std::lock_guard<std::mutex> lock(owners_mutex);
    owner->imported[*out] = bytes;
  }
  count(owner, "imports", 1);
  faults().import(bytes);
  return result;
}

// Of a heap of a guise, that is taken.
uint64_t taken_of(const Owner& owner, uint32_t heap) {
  const std::lock_guard<std::mutex> lock(owners_mutex);
  uint64_t all = 0;
  for (const auto& [memory, type] : owner.types) {
    if (guise()->types[type].heap == heap) all += static_cast<uint64_t>(owner.bytes.at(memory));
  }
  return all;
}

// Memory of a type that only the guise has: the device below has one.
int32_t allocate_as(Owner* owner, void* device, const MemoryAllocateInfo& info, const void* allocator, uint64_t* out) {
  const uint32_t heap = guise()->types.at(info.memory_type).heap;
  if (info.bytes > guise()->largest) faults().complain("more memory is asked for at once than may be");
  if (taken_of(*owner, heap) + info.bytes > guise()->heaps[heap]) return kOutOfDeviceMemory;
  MemoryAllocateInfo asked = info;
  asked.memory_type = 0;
  asked.bytes += guise()->shift;
  const int32_t result = owner->below<int32_t (*)(void*, const void*, const void*, uint64_t*)>("vkAllocateMemory")(
      device, &asked, allocator, out);
  const std::lock_guard<std::mutex> lock(owners_mutex);
  if (result == kSuccess) {
    owner->types[*out] = info.memory_type;
    owner->bytes[*out] = static_cast<int64_t>(info.bytes);
  }
  return result;
}

// The same module with other instructions.
std::vector<uint32_t> swapped_code(const ModuleCreateInfo& module) {
  std::vector<uint32_t> code(module.code, module.code + module.bytes / sizeof(uint32_t));
  for (size_t place = 5; place < code.size(); place += code[place] >> 16) {
    code[place] = (code[place] & 0xffff0000) | faults().swapped(code[place] & 0xffff);
  }
  return code;
}

constexpr size_t kModule = 2;

template <size_t I>
int32_t create(void* device, const void* info, const void* allocator, uint64_t* out) {
  Owner& owner = owner_of(device);
  if (I == kMemory && is_import(info)) return import(&owner, device, info, allocator, out);
  if (const int32_t result = take(&owner, kKinds[I].create); result != kSuccess) return result;
  int64_t bytes = 0;
  if (I == kMemory) {
    bytes = static_cast<int64_t>(static_cast<const MemoryAllocateInfo*>(info)->bytes);
    const auto limit = static_cast<int64_t>(faults().memory());
    if (limit != 0 && faults().live_bytes() + bytes > limit) return kOutOfDeviceMemory;
  }
  ModuleCreateInfo module;
  std::vector<uint32_t> code;
  if (I == kModule) {
    check_module(info);
    module = *static_cast<const ModuleCreateInfo*>(info);
    code = swapped_code(module);
    module.code = code.data();
    info = &module;
  }
  const int32_t result =
      I == kMemory && guise() != nullptr
          ? allocate_as(&owner, device, *static_cast<const MemoryAllocateInfo*>(info), allocator, out)
          : owner.below<decltype(&create<I>)>(kKinds[I].create)(device, info, allocator, out);
  if (result != kSuccess) return result;
  count(&owner, kKinds[I].name, 1, bytes);
  if (I == kMemory) {
    const std::lock_guard<std::mutex> lock(owners_mutex);
    owner.bytes[*out] = bytes;
  }
  return result;
}

template <size_t I>
void destroy(void* device, uint64_t handle, const void* allocator) {
  Owner& owner = owner_of(device);
  int64_t imported = 0;
  if (I == kMemory && handle != 0) {
    const std::lock_guard<std::mutex> lock(owners_mutex);
    if (const auto found = owner.imported.find(handle); found != owner.imported.end()) {
      imported = found->second;
      owner.imported.erase(found);
    }
  }
  if (imported != 0) {
    count(&owner, "imports", -1);
    faults().import(-imported);
  } else if (handle != 0) {
    int64_t bytes = 0;
    if (I == kMemory) {
      const std::lock_guard<std::mutex> lock(owners_mutex);
      const auto found = owner.bytes.find(handle);
      bytes = found->second;
      owner.bytes.erase(found);
      owner.types.erase(handle);
    }
    count(&owner, kKinds[I].name, -1, -bytes);
  }
  owner.below<decltype(&destroy<I>)>(kKinds[I].destroy)(device, handle, allocator);
}

int32_t create_pipelines(void* device, uint64_t cache, uint32_t number, const void* infos, const void* allocator,
                         uint64_t* out) {
  Owner& owner = owner_of(device);
  const char* const name = "vkCreateComputePipelines";
  if (const int32_t result = take(&owner, name); result != kSuccess) return result;
  const int32_t result = owner.below<decltype(&create_pipelines)>(name)(device, cache, number, infos, allocator, out);
  if (result == kSuccess) count(&owner, kPipelines, static_cast<int>(number));
  return result;
}

void destroy_pipeline(void* device, uint64_t handle, const void* allocator) {
  Owner& owner = owner_of(device);
  if (handle != 0) count(&owner, kPipelines, -1);
  owner.below<decltype(&destroy_pipeline)>("vkDestroyPipeline")(device, handle, allocator);
}

template <size_t... I>
void add_kinds(Table* table, std::index_sequence<I...>) {
  ((table->emplace(kKinds[I].create, erased(&create<I>)), table->emplace(kKinds[I].destroy, erased(&destroy<I>))), ...);
}

}  // namespace

void add_objects(Tables* out) {
  out->of_devices.insert({
      {"vkCreateComputePipelines", erased(&create_pipelines)},
      {"vkDestroyPipeline", erased(&destroy_pipeline)},
  });
  add_kinds(&out->of_devices, std::make_index_sequence<kKindCount>());
}

}  // namespace vulkan_faults
