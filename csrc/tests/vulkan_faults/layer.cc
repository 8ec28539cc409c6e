// A Vulkan layer for tests: between a program and the driver, it lets calls fail, devices be lost, hang or be slow, and
// counts what is alive. faults.h says what it can be asked to do: by EDGE_RT_VULKAN_FAULTS, or by the functions at the
// end of this file, as the loader and a test of the same process share the library.
//
//   VK_ADD_LAYER_PATH=<folder of the manifest> VK_INSTANCE_LAYERS=VK_LAYER_EDGE_RT_faults <program>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/vulkan_faults/faults.h"
#include "tests/vulkan_faults/loader.h"

namespace vulkan_faults {
namespace {

using Clock = std::chrono::steady_clock;

// An instance or a device, known to all that was made from it by the loader's table, the first word of each.
struct Owner {
  void* handle = nullptr;
  GetProcAddr get_proc_addr = nullptr;  // of what lies below
  std::map<std::string, int64_t> alive;
  std::unordered_map<uint64_t, int64_t> bytes;     // of each piece of memory
  std::unordered_map<uint64_t, int64_t> imported;  // of those that are the host's as well
  bool is_lost = false, hangs = false;
  Clock::time_point ready;  // all that was submitted
  // Of an instance, asked for while it is made: later the loader would answer with the first layer's.
  std::map<std::string, Function> kept;

  template <class Type>
  Type below(const char* name) const {
    const auto found = kept.find(name);
    return reinterpret_cast<Type>(found != kept.end() ? found->second : get_proc_addr(handle, name));
  }
};

// Never destroyed: devices may be given back while the process ends.
std::mutex& owners_mutex = *new std::mutex;
auto& owners = *new std::unordered_map<void*, std::unique_ptr<Owner>>;

void* key_of(void* handle) { return *static_cast<void**>(handle); }

Owner& owner_of(void* handle) {
  const std::lock_guard<std::mutex> lock(owners_mutex);
  return *owners.at(key_of(handle));
}

Owner& own(void* handle, GetProcAddr get_proc_addr, const char* kind) {
  faults().count(kind, 1);
  auto owner = std::make_unique<Owner>();
  owner->handle = handle;
  owner->get_proc_addr = get_proc_addr;
  const std::lock_guard<std::mutex> lock(owners_mutex);
  return *(owners[key_of(handle)] = std::move(owner));
}

std::unique_ptr<Owner> disown(void* handle, const char* kind, const char* function) {
  std::unique_ptr<Owner> owner;
  {
    const std::lock_guard<std::mutex> lock(owners_mutex);
    const auto found = owners.find(key_of(handle));
    owner = std::move(found->second);
    owners.erase(found);
  }
  for (const auto& [name, number] : owner->alive) {
    if (number != 0) faults().complain(std::string(function) + " with " + std::to_string(number) + " " + name);
    faults().count(name.c_str(), static_cast<int>(-number));
  }
  int64_t bytes = 0;
  for (const auto& [memory, size] : owner->bytes) bytes += size;
  faults().count(kind, -1, -bytes);
  return owner;
}

void count(Owner* owner, const char* kind, int change, int64_t bytes = 0) {
  {
    const std::lock_guard<std::mutex> lock(owners_mutex);
    owner->alive[kind] += change;
  }
  if (!owner->hangs) return faults().count(kind, change, bytes);
  if (change < 0)
    faults().complain(std::string(kind) + " of a device that hangs, which may be under way, are given back");
}

// What a device has that hangs cannot be given back, nor its instance: none of it counts any more.
void let_go(Owner* device) {
  static bool has_instance = true;
  const std::lock_guard<std::mutex> lock(owners_mutex);
  for (const auto& [kind, number] : device->alive) faults().count(kind.c_str(), static_cast<int>(-number));
  int64_t bytes = 0;
  for (const auto& [memory, size] : device->bytes) bytes += size;
  faults().count("devices", -1, -bytes);
  if (std::exchange(has_instance, false)) faults().count("instances", -1);
  device->hangs = true;
}

// The result that a call of a function has in place of being made; kSuccess: it is made. What was submitted before is
// done when a device is lost, so that the program may destroy all it has.
int32_t take(Owner* device, const char* function) {
  const int32_t result = faults().take(function);
  if (result == kDeviceLost || result == kTimeout) {
    device->below<int32_t (*)(void*)>("vkDeviceWaitIdle")(device->handle);
    if (result == kDeviceLost) {
      device->is_lost = true;
    } else if (!device->hangs) {
      let_go(device);
    }
  }
  return result;
}

// --- objects ---------------------------------------------------------------------------------------------------------

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
  const int32_t result = owner.below<decltype(&create<I>)>(kKinds[I].create)(device, info, allocator, out);
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

// --- work ------------------------------------------------------------------------------------------------------------

constexpr const char* kSubmits[] = {"vkQueueSubmit", "vkQueueSubmit2", "vkQueueSubmit2KHR"};

template <size_t I>
int32_t submit(void* queue, uint32_t number, const void* submits, uint64_t fence) {
  Owner& owner = owner_of(queue);
  const int32_t result = take(&owner, kSubmits[I]);
  if (owner.is_lost) return kDeviceLost;
  if (owner.hangs) return kSuccess;  // and the device never begins
  if (result != kSuccess) return result;
  {
    const std::lock_guard<std::mutex> lock(owners_mutex);
    owner.ready = std::max(owner.ready, Clock::now()) + std::chrono::microseconds(faults().delay_us());
  }
  return owner.below<decltype(&submit<I>)>(kSubmits[I])(queue, number, submits, fence);
}

// Before a wait of so many nanoseconds; kSuccess: the driver may be asked.
int32_t wait(Owner* owner, const char* function, uint64_t timeout) {
  const int32_t result = take(owner, function);
  if (owner->is_lost) return kDeviceLost;
  if (owner->hangs) {
    if (timeout == UINT64_MAX) {
      faults().complain(std::string(function) + " waits for ever for a device that hangs");
      return kDeviceLost;
    }
    // Not all of it: tests have no time. But whoever asks in a loop must not take all of a processor.
    std::this_thread::sleep_for(std::chrono::nanoseconds(std::min<uint64_t>(timeout, 1000000)));
    return kTimeout;
  }
  if (result != kSuccess) return result;
  Clock::time_point ready;
  {
    const std::lock_guard<std::mutex> lock(owners_mutex);
    ready = owner->ready;
  }
  const Clock::duration left = ready - Clock::now();
  if (left > std::chrono::nanoseconds(timeout)) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(timeout));
    return kTimeout;
  }
  if (left > Clock::duration::zero()) std::this_thread::sleep_until(ready);
  return kSuccess;
}

int32_t wait_for_fences(void* device, uint32_t number, const uint64_t* fences, uint32_t all, uint64_t timeout) {
  Owner& owner = owner_of(device);
  const char* const name = "vkWaitForFences";
  timeout = std::max(timeout, faults().patience_s() * 1000000000);
  if (const int32_t result = wait(&owner, name, timeout); result != kSuccess) return result;
  return owner.below<decltype(&wait_for_fences)>(name)(device, number, fences, all, timeout);
}

int32_t wait_semaphores(void* device, const void* info, uint64_t timeout) {
  Owner& owner = owner_of(device);
  const char* const name = "vkWaitSemaphores";
  if (const int32_t result = wait(&owner, name, timeout); result != kSuccess) return result;
  return owner.below<decltype(&wait_semaphores)>(name)(device, info, timeout);
}

int32_t fence_status(void* device, uint64_t fence) {
  Owner& owner = owner_of(device);
  const char* const name = "vkGetFenceStatus";
  if (const int32_t result = wait(&owner, name, 0); result != kSuccess) return result == kTimeout ? kNotReady : result;
  return owner.below<decltype(&fence_status)>(name)(device, fence);
}

constexpr const char* kIdle[] = {"vkDeviceWaitIdle", "vkQueueWaitIdle"};

template <size_t I>
int32_t wait_idle(void* handle) {
  Owner& owner = owner_of(handle);
  if (const int32_t result = wait(&owner, kIdle[I], UINT64_MAX); result != kSuccess) return result;
  return owner.below<decltype(&wait_idle<I>)>(kIdle[I])(handle);
}

// --- calls that can only fail ----------------------------------------------------------------------------------------

constexpr const char* kOthers[] = {"vkBindBufferMemory", "vkMapMemory",          "vkAllocateCommandBuffers",
                                   "vkResetCommandPool", "vkResetFences",        "vkBeginCommandBuffer",
                                   "vkEndCommandBuffer", "vkResetCommandBuffer", "vkGetMemoryHostPointerPropertiesEXT"};

template <size_t I, class... Args>
int32_t other(void* handle, Args... args) {
  Owner& owner = owner_of(handle);
  if (const int32_t result = take(&owner, kOthers[I]); result != kSuccess) return result;
  return owner.below<int32_t (*)(void*, Args...)>(kOthers[I])(handle, args...);
}

// --- instances and devices -------------------------------------------------------------------------------------------

// The layers below, taken off the list.
Link* next_link(const void* info, int32_t type) {
  for (auto* one = static_cast<const Chained*>(info); one != nullptr; one = static_cast<const Chained*>(one->next)) {
    // The loader's structs are there to be changed.
    auto* found = reinterpret_cast<LoaderInfo*>(const_cast<Chained*>(one));
    if (one->type != type || found->function != 0) continue;
    Link* link = found->links;
    found->links = link->next;
    return link;
  }
  return nullptr;
}

int32_t create_instance(const void* info, const void* allocator, void** out) {
  const Link* link = next_link(info, kLoaderInstance);
  if (link == nullptr) return kInitializationFailed;
  if (const int32_t result = faults().take("vkCreateInstance"); result != kSuccess) return result;
  const auto below =
      reinterpret_cast<decltype(&create_instance)>(link->get_instance_proc_addr(nullptr, "vkCreateInstance"));
  const int32_t result = below(info, allocator, out);
  if (result != kSuccess) return result;
  Owner& owner = own(*out, link->get_instance_proc_addr, "instances");
  for (const char* name : {"vkDestroyInstance", "vkGetPhysicalDeviceProperties", "vkGetPhysicalDeviceProperties2",
                           "vkGetPhysicalDeviceMemoryProperties", "vkGetPhysicalDeviceMemoryProperties2",
                           "vkEnumerateDeviceExtensionProperties"}) {
    owner.kept[name] = link->get_instance_proc_addr(*out, name);
  }
  return result;
}

void destroy_instance(void* instance, const void* allocator) {
  if (instance == nullptr) return;
  const auto below = owner_of(instance).below<decltype(&destroy_instance)>("vkDestroyInstance");
  disown(instance, "instances", "vkDestroyInstance");
  below(instance, allocator);
}

// Some drivers do not tell of a budget: the layer does in their place.
constexpr const char* kBudgetExtension = "VK_EXT_memory_budget";

int32_t extensions(void* physical, const char* layer, uint32_t* number, Extension* out) {
  const uint32_t room = out == nullptr ? 0 : *number;
  const int32_t result = owner_of(physical).below<decltype(&extensions)>("vkEnumerateDeviceExtensionProperties")(
      physical, layer, number, out);
  if (result != kSuccess || layer != nullptr) return result;
  if (out != nullptr) {
    const bool is_there = std::any_of(
        out, out + *number, [](const Extension& one) { return std::strcmp(one.name, kBudgetExtension) == 0; });
    if (is_there) return result;
    if (*number == room) return kIncomplete;
    Extension* added = out + *number;
    std::snprintf(added->name, sizeof added->name, "%s", kBudgetExtension);
    added->version = 1;
  }
  ++*number;  // of one that is there already, one too many is counted
  return result;
}

int32_t create_device(void* physical, const DeviceCreateInfo* info, const void* allocator, void** out) {
  const Link* link = next_link(info, kLoaderDevice);
  if (link == nullptr) return kInitializationFailed;
  if (const int32_t result = faults().take("vkCreateDevice"); result != kSuccess) return result;
  Owner& instance = owner_of(physical);
  const auto below =
      reinterpret_cast<decltype(&create_device)>(link->get_instance_proc_addr(instance.handle, "vkCreateDevice"));
  std::vector<const char*> names(info->extensions, info->extensions + info->extension_count);
  names.erase(std::remove_if(names.begin(), names.end(),
                             [](const char* name) { return std::strcmp(name, kBudgetExtension) == 0; }),
              names.end());
  DeviceCreateInfo asked = *info;
  asked.extension_count = static_cast<uint32_t>(names.size());
  asked.extensions = names.data();
  const int32_t result = below(physical, &asked, allocator, out);
  if (result == kSuccess) own(*out, link->get_device_proc_addr, "devices");
  return result;
}

void destroy_device(void* device, const void* allocator) {
  if (device == nullptr) return;
  const auto below = owner_of(device).below<decltype(&destroy_device)>("vkDestroyDevice");
  disown(device, "devices", "vkDestroyDevice");
  below(device, allocator);
}

// A device of less memory: all its heaps together have that much, and what the layer has counted is used.
void shrink(MemoryProperties* properties) {
  const uint64_t limit = faults().memory();
  for (uint32_t i = 0; limit != 0 && i < properties->heap_count; ++i) {
    properties->heaps[i].bytes = std::min(properties->heaps[i].bytes, limit);
  }
}

void memory_properties(void* physical, MemoryProperties* out) {
  const char* const name = "vkGetPhysicalDeviceMemoryProperties";
  owner_of(physical).below<decltype(&memory_properties)>(name)(physical, out);
  shrink(out);
}

void memory_properties2(void* physical, MemoryProperties2* out) {
  const char* const name = "vkGetPhysicalDeviceMemoryProperties2";
  owner_of(physical).below<decltype(&memory_properties2)>(name)(physical, out);
  shrink(&out->properties);
  for (auto* one = static_cast<const Chained*>(out->head.next); one != nullptr;
       one = static_cast<const Chained*>(one->next)) {
    if (one->type != kMemoryBudget) continue;
    auto* budget = reinterpret_cast<MemoryBudget*>(const_cast<Chained*>(one));
    for (uint32_t i = 0; i < out->properties.heap_count; ++i) {
      budget->budget[i] = out->properties.heaps[i].bytes;
      budget->usage[i] = static_cast<uint64_t>(faults().live_bytes());
    }
  }
}

void properties(void* physical, Properties* out) {
  const char* const name = "vkGetPhysicalDeviceProperties";
  owner_of(physical).below<decltype(&properties)>(name)(physical, out);
  if (const uint32_t type = faults().type()) out->type = type;
}

void properties2(void* physical, Properties2* out) {
  const char* const name = "vkGetPhysicalDeviceProperties2";
  owner_of(physical).below<decltype(&properties2)>(name)(physical, out);
  if (const uint32_t type = faults().type()) out->properties.type = type;
}

// --- which function is whose -----------------------------------------------------------------------------------------

Function get_instance_proc_addr(void* instance, const char* name);
Function get_device_proc_addr(void* device, const char* name);

template <class Type>
Function erased(Type* function) {
  return reinterpret_cast<Function>(function);
}

using Table = std::map<std::string, Function>;

template <size_t... I>
void add_kinds(Table* table, std::index_sequence<I...>) {
  ((table->emplace(kKinds[I].create, erased(&create<I>)), table->emplace(kKinds[I].destroy, erased(&destroy<I>))), ...);
}

Table device_functions() {
  Table table = {
      {"vkGetDeviceProcAddr", erased(&get_device_proc_addr)},
      {"vkDestroyDevice", erased(&destroy_device)},
      {"vkCreateComputePipelines", erased(&create_pipelines)},
      {"vkDestroyPipeline", erased(&destroy_pipeline)},
      {kSubmits[0], erased(&submit<0>)},
      {kSubmits[1], erased(&submit<1>)},
      {kSubmits[2], erased(&submit<2>)},
      {"vkWaitForFences", erased(&wait_for_fences)},
      {"vkWaitSemaphores", erased(&wait_semaphores)},
      {"vkWaitSemaphoresKHR", erased(&wait_semaphores)},
      {"vkGetFenceStatus", erased(&fence_status)},
      {kIdle[0], erased(&wait_idle<0>)},
      {kIdle[1], erased(&wait_idle<1>)},
      {kOthers[0], erased(&other<0, uint64_t, uint64_t, uint64_t>)},
      {kOthers[1], erased(&other<1, uint64_t, uint64_t, uint64_t, uint32_t, void**>)},
      {kOthers[2], erased(&other<2, const void*, void**>)},
      {kOthers[3], erased(&other<3, uint64_t, uint32_t>)},
      {kOthers[4], erased(&other<4, uint32_t, const uint64_t*>)},
      {kOthers[5], erased(&other<5, const void*>)},
      {kOthers[6], erased(&other<6>)},
      {kOthers[7], erased(&other<7, uint32_t>)},
      {kOthers[8], erased(&other<8, uint32_t, const void*, void*>)},
  };
  add_kinds(&table, std::make_index_sequence<kKindCount>());
  return table;
}

Table instance_functions() {
  return {{"vkGetInstanceProcAddr", erased(&get_instance_proc_addr)},
          {"vkCreateInstance", erased(&create_instance)},
          {"vkDestroyInstance", erased(&destroy_instance)},
          {"vkCreateDevice", erased(&create_device)},
          {"vkEnumerateDeviceExtensionProperties", erased(&extensions)},
          {"vkGetPhysicalDeviceProperties", erased(&properties)},
          {"vkGetPhysicalDeviceProperties2", erased(&properties2)},
          {"vkGetPhysicalDeviceProperties2KHR", erased(&properties2)},
          {"vkGetPhysicalDeviceMemoryProperties", erased(&memory_properties)},
          {"vkGetPhysicalDeviceMemoryProperties2", erased(&memory_properties2)},
          {"vkGetPhysicalDeviceMemoryProperties2KHR", erased(&memory_properties2)}};
}

Function find(const Table& table, const char* name) {
  const auto found = table.find(name);
  return found == table.end() ? nullptr : found->second;
}

Function get_device_proc_addr(void* device, const char* name) {
  static const Table kTable = device_functions();
  const Function below = owner_of(device).get_proc_addr(device, name);
  const Function ours = find(kTable, name);
  return below != nullptr && ours != nullptr ? ours : below;
}

Function get_instance_proc_addr(void* instance, const char* name) {
  static const Table kTable = instance_functions(), kOfDevices = device_functions();
  if (const Function ours = find(kTable, name)) return ours;
  if (instance == nullptr) return nullptr;
  const Function below = owner_of(instance).get_proc_addr(instance, name);
  const Function ours = find(kOfDevices, name);
  return below != nullptr && ours != nullptr ? ours : below;
}

}  // namespace
}  // namespace vulkan_faults

using vulkan_faults::faults;
#define LAYER_EXPORT extern "C" __attribute__((visibility("default")))

LAYER_EXPORT int32_t vkNegotiateLoaderLayerInterfaceVersion(vulkan_faults::Negotiation* out) {
  if (out->version < 2) return vulkan_faults::kInitializationFailed;
  out->version = 2;
  out->get_instance_proc_addr = &vulkan_faults::get_instance_proc_addr;
  out->get_device_proc_addr = &vulkan_faults::get_device_proc_addr;
  out->get_physical_device_proc_addr = nullptr;
  return vulkan_faults::kSuccess;
}

// For tests; see faults.h. 0: the settings are not understood.
LAYER_EXPORT int edge_rt_vulkan_faults_set(const char* settings) { return faults().set(settings) ? 1 : 0; }

LAYER_EXPORT int64_t edge_rt_vulkan_faults_calls(const char* function) { return faults().calls(function); }

// Writes at most so many bytes, the zero at the end included.
LAYER_EXPORT void edge_rt_vulkan_faults_live(char* out, size_t bytes) {
  std::snprintf(out, bytes, "%s", faults().live().c_str());
}

// Bytes of the host's memory that are a device's as well at the moment.
LAYER_EXPORT int64_t edge_rt_vulkan_faults_imported() { return faults().imported(); }

LAYER_EXPORT int64_t edge_rt_vulkan_faults_complaints() { return faults().complaints(); }
