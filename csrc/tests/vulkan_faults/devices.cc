// Instances and devices, and what devices say of themselves.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#include "tests/vulkan_faults/guises.h"
#include "tests/vulkan_faults/owners.h"

namespace vulkan_faults {
namespace {

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
  note_instance(info);
  const auto below =
      reinterpret_cast<decltype(&create_instance)>(link->get_instance_proc_addr(nullptr, "vkCreateInstance"));
  const int32_t result = below(info, allocator, out);
  if (result != kSuccess) return result;
  Owner& owner = own(*out, link->get_instance_proc_addr, "instances");
  for (const char* name :
       {"vkDestroyInstance", "vkGetPhysicalDeviceProperties", "vkGetPhysicalDeviceProperties2",
        "vkGetPhysicalDeviceMemoryProperties", "vkGetPhysicalDeviceMemoryProperties2", "vkGetPhysicalDeviceFeatures2",
        "vkEnumeratePhysicalDevices", "vkEnumerateDeviceExtensionProperties"}) {
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
  if (guise() != nullptr) {
    if (const int32_t result = check_device(*info); result != kSuccess) return result;
  }
  Owner& instance = owner_of(physical);
  const auto below =
      reinterpret_cast<decltype(&create_device)>(link->get_instance_proc_addr(instance.handle, "vkCreateDevice"));
  std::vector<const char*> names(info->extensions, info->extensions + info->extension_count);
  names.erase(std::remove_if(names.begin(), names.end(),
                             [](const char* name) {
                               return std::strcmp(name, kBudgetExtension) == 0 ||
                                      std::strcmp(name, "VK_KHR_portability_subset") == 0;
                             }),
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
  disguise_memory(properties);
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

void change(Properties* out) {
  if (const uint32_t type = faults().type()) out->type = type;
  if (const uint32_t grid = faults().grid()) out->grid[0] = out->grid[1] = grid;
  const Guise* const as = guise();
  if (as == nullptr) return;
  out->api = (1u << 22) | as->api << 12;
  if (faults().type() == 0) out->type = as->device_type;
  out->shared_bytes = as->shared_bytes;
  out->threads = as->threads;
}

void properties(void* physical, Properties* out) {
  const char* const name = "vkGetPhysicalDeviceProperties";
  owner_of(physical).below<decltype(&properties)>(name)(physical, out);
  change(out);
}

void properties2(void* physical, Properties2* out) {
  const char* const name = "vkGetPhysicalDeviceProperties2";
  owner_of(physical).below<decltype(&properties2)>(name)(physical, out);
  change(&out->properties);
  disguise_properties(out->head.next);
}

}  // namespace

void add_devices(Tables* out) {
  out->of_devices.insert({"vkDestroyDevice", erased(&destroy_device)});
  out->of_instances.insert({
      {"vkCreateInstance", erased(&create_instance)},
      {"vkDestroyInstance", erased(&destroy_instance)},
      {"vkCreateDevice", erased(&create_device)},
      {"vkEnumerateDeviceExtensionProperties", erased(&extensions)},
      {"vkGetPhysicalDeviceProperties", erased(&properties)},
      {"vkGetPhysicalDeviceProperties2", erased(&properties2)},
      {"vkGetPhysicalDeviceProperties2KHR", erased(&properties2)},
      {"vkGetPhysicalDeviceMemoryProperties", erased(&memory_properties)},
      {"vkGetPhysicalDeviceMemoryProperties2", erased(&memory_properties2)},
      {"vkGetPhysicalDeviceMemoryProperties2KHR", erased(&memory_properties2)},
  });
}

}  // namespace vulkan_faults
