// Devices in the guise of others: what they say of themselves, and what they then do not take.
#include <cstring>
#include <string>

#include "tests/vulkan_faults/guises.h"
#include "tests/vulkan_faults/owners.h"

namespace vulkan_faults {
namespace {

constexpr int32_t kExtensionNotPresent = -7, kFeatureNotPresent = -8;
constexpr const char *kPortable = "VK_KHR_portability_subset", *kBudget = "VK_EXT_memory_budget";
constexpr uint32_t kMapped = 2, kCoherent = 4;

bool is_portable_asked_for = false;

template <class Value>
Value& at(const Chained* one, size_t offset) {
  return *reinterpret_cast<Value*>(reinterpret_cast<uint8_t*>(const_cast<Chained*>(one)) + offset);
}

// Offsets are those of Vulkan's structs.
void change(const Guise& as, const Chained* one) {
  if (one->type == kProperties11) {
    at<uint64_t>(one, 104) = as.largest;
  } else if (one->type == kProperties12) {
    at<uint32_t>(one, 548) = as.keeps_signs;
    at<uint32_t>(one, 560) = as.keeps_subnormals;
    at<uint32_t>(one, 584) = as.rounds_to_even;
  } else if (one->type == kBufferProperties) {
    at<uint64_t>(one, 16) = as.largest_buffer;
  } else if (one->type == kDotProperties && !as.has_dots) {
    at<uint32_t>(one, 32) = 0;
  }
}

constexpr size_t kStorage8 = 24, kInt8 = 48, kDots = 16;

std::vector<Extension> extensions_of(const Guise& as) {
  std::vector<Extension> all;
  for (const char* name : {as.is_portable ? kPortable : "", as.has_budget ? kBudget : ""}) {
    if (*name == 0) continue;
    Extension one{};
    std::strncpy(one.name, name, sizeof one.name - 1);
    one.version = 1;
    all.push_back(one);
  }
  return all;
}

int32_t complain(const std::string& what, int32_t result) {
  faults().complain(what + ", which the guise " + guise()->name + " does not have");
  return result;
}

bool has_capability(const Guise& as, uint32_t number) {
  switch (number) {
    case 1:                  // Shader
    case 4433:               // storage of 16 bits
    case 5347: return true;  // addresses
    case 4464: return as.keeps_subnormals;
    case 4466: return as.keeps_signs;
    case 4467: return as.rounds_to_even;
    case 6018:
    case 6019: return as.has_dots;
    default: return false;
  }
}

int32_t physical_devices(void* instance, uint32_t* number, void** out) {
  if (guise()->is_portable && !is_portable_asked_for) {
    *number = 0;
    return kSuccess;
  }
  return owner_of(instance).below<decltype(&physical_devices)>("vkEnumeratePhysicalDevices")(instance, number, out);
}

struct Features2 {
  Chained head;
  uint32_t core[55];
};
void features2(void* physical, Features2* out) {
  owner_of(physical).below<decltype(&features2)>("vkGetPhysicalDeviceFeatures2")(physical, out);
  disguise_features(out->head.next, out->core);
}

int32_t extensions(void*, const char* layer, uint32_t* number, Extension* out) {
  const std::vector<Extension> all = layer == nullptr ? extensions_of(*guise()) : std::vector<Extension>();
  if (out == nullptr) {
    *number = static_cast<uint32_t>(all.size());
    return kSuccess;
  }
  const size_t room = *number;
  for (*number = 0; *number < all.size() && *number < room; ++*number) out[*number] = all[*number];
  return *number < all.size() ? kIncomplete : kSuccess;
}

void buffer_requirements(void* device, uint64_t buffer, BufferRequirements* out) {
  const char* const name = "vkGetBufferMemoryRequirements";
  owner_of(device).below<decltype(&buffer_requirements)>(name)(device, buffer, out);
  out->types = guise()->buffer_types;
}

int32_t bind(void* device, uint64_t buffer, uint64_t memory, uint64_t offset) {
  const char* const name = "vkBindBufferMemory";
  Owner& owner = owner_of(device);
  if (const int32_t result = take(&owner, name); result != kSuccess) return result;
  return owner.below<decltype(&bind)>(name)(device, buffer, memory, offset + guise()->shift);
}

int32_t map(void* device, uint64_t memory, uint64_t offset, uint64_t size, uint32_t flags, void** out) {
  const char* const name = "vkMapMemory";
  Owner& owner = owner_of(device);
  if (const int32_t result = take(&owner, name); result != kSuccess) return result;
  {
    const std::lock_guard<std::mutex> lock(owners_mutex);
    const uint32_t type = owner.types[memory], wanted = kMapped | kCoherent;
    if ((guise()->types[type].flags & wanted) != wanted) {
      faults().complain("memory of type " + std::to_string(type) + " is mapped");
    }
  }
  const int32_t result = owner.below<decltype(&map)>(name)(device, memory, offset, size, flags, out);
  if (result == kSuccess) *out = static_cast<char*>(*out) + guise()->shift;
  return result;
}

}  // namespace

void disguise_properties(const void* chain) {
  for (auto* one = static_cast<const Chained*>(chain); guise() != nullptr && one != nullptr;
       one = static_cast<const Chained*>(one->next)) {
    change(*guise(), one);
  }
}

void disguise_features(const void* chain, uint32_t* core) {
  std::memset(core, 0, 55 * sizeof *core);
  for (auto* one = static_cast<const Chained*>(chain); one != nullptr; one = static_cast<const Chained*>(one->next)) {
    if (one->type == kFeatures12) at<uint32_t>(one, kStorage8) = at<uint32_t>(one, kInt8) = 0;
    if (one->type == kDotFeatures && !guise()->has_dots) at<uint32_t>(one, kDots) = 0;
  }
}

void disguise_memory(MemoryProperties* out) {
  if (guise() == nullptr) return;
  std::memset(out, 0, sizeof *out);
  for (const uint64_t bytes : guise()->heaps) out->heaps[out->heap_count++].bytes = bytes;
  for (const Guise::Type& type : guise()->types) {
    out->types[out->type_count][0] = type.flags;
    out->types[out->type_count++][1] = type.heap;
    if ((type.flags & 1) != 0) out->heaps[type.heap].flags = 1;
  }
}

int32_t check_device(const DeviceCreateInfo& info) {
  bool is_portable = false;
  for (uint32_t i = 0; i < info.extension_count; ++i) {
    const std::string name = info.extensions[i];
    is_portable = is_portable || name == kPortable;
    bool is_known = false;
    for (const Extension& one : extensions_of(*guise())) is_known = is_known || name == one.name;
    if (!is_known) return complain("the extension " + name + " is asked for", kExtensionNotPresent);
  }
  if (guise()->is_portable && !is_portable) {
    faults().complain("a device that has VK_KHR_portability_subset is opened without");
  }
  for (auto* one = static_cast<const Chained*>(info.head.next); one != nullptr;
       one = static_cast<const Chained*>(one->next)) {
    const bool asks_for_bytes =
        one->type == kFeatures12 && (at<uint32_t>(one, kStorage8) != 0 || at<uint32_t>(one, kInt8) != 0);
    if (asks_for_bytes) return complain("integers of 8 bits are asked for", kFeatureNotPresent);
    if (one->type == kDotFeatures && at<uint32_t>(one, kDots) != 0 && !guise()->has_dots) {
      return complain("products of bytes are asked for", kFeatureNotPresent);
    }
  }
  return kSuccess;
}

void check_module(const void* info) {
  if (guise() == nullptr) return;
  const auto& module = *static_cast<const ModuleCreateInfo*>(info);
  for (size_t place = 5; place < module.bytes / sizeof(uint32_t);) {
    const uint32_t* const words = module.code + place;
    const uint32_t opcode = words[0] & 0xffff;
    if (opcode == 17 && !has_capability(*guise(), words[1])) {
      complain("a kernel has SPIR-V's capability " + std::to_string(words[1]), 0);
    }
    if (opcode == 16 && words[2] == 17 && words[3] * words[4] * words[5] > guise()->threads) {
      complain("a block has " + std::to_string(words[3] * words[4] * words[5]) + " threads", 0);
    }
    place += words[0] >> 16;
  }
}

void note_instance(const void* info) {
  is_portable_asked_for = (static_cast<const InstanceCreateInfo*>(info)->flags & 1) != 0;
}

void add_guises(Tables* out) {
  if (guise() == nullptr) return;
  const Table of_instances{{"vkEnumeratePhysicalDevices", erased(&physical_devices)},
                           {"vkGetPhysicalDeviceFeatures2", erased(&features2)},
                           {"vkGetPhysicalDeviceFeatures2KHR", erased(&features2)},
                           {"vkEnumerateDeviceExtensionProperties", erased(&extensions)}};
  const Table of_devices{{"vkGetBufferMemoryRequirements", erased(&buffer_requirements)},
                         {"vkBindBufferMemory", erased(&bind)},
                         {"vkMapMemory", erased(&map)}};
  for (const auto& [name, function] : of_instances) out->of_instances[name] = function;
  for (const auto& [name, function] : of_devices) out->of_devices[name] = function;
}

}  // namespace vulkan_faults
