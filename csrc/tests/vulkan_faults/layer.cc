// A Vulkan layer for tests: between a program and the driver, it lets calls fail, devices be lost, hang or be slow, and
// counts what is alive. faults.h says what it can be asked to do: by EDGE_RT_VULKAN_FAULTS, or by the functions at the
// end of this file, as the loader and a test of the same process share the library.
//
// EDGE_RT_VULKAN_GUISE names a device that it pretends for the whole process (guises.cc).
//
//   VK_ADD_LAYER_PATH=<folder of the manifest> VK_INSTANCE_LAYERS=VK_LAYER_EDGE_RT_faults <program>
#include <cstdio>

#include "tests/vulkan_faults/owners.h"

namespace vulkan_faults {
namespace {

Function get_instance_proc_addr(void* instance, const char* name);
Function get_device_proc_addr(void* device, const char* name);

const Tables& tables() {
  static const Tables kTables = [] {
    Tables made;
    made.of_instances["vkGetInstanceProcAddr"] = erased(&get_instance_proc_addr);
    made.of_devices["vkGetDeviceProcAddr"] = erased(&get_device_proc_addr);
    add_devices(&made);
    add_objects(&made);
    add_work(&made);
    add_guises(&made);
    return made;
  }();
  return kTables;
}

Function find(const Table& table, const char* name) {
  const auto found = table.find(name);
  return found == table.end() ? nullptr : found->second;
}

Function get_device_proc_addr(void* device, const char* name) {
  const Function below = owner_of(device).get_proc_addr(device, name);
  const Function ours = find(tables().of_devices, name);
  return below != nullptr && ours != nullptr ? ours : below;
}

Function get_instance_proc_addr(void* instance, const char* name) {
  if (const Function ours = find(tables().of_instances, name)) return ours;
  if (instance == nullptr) return nullptr;
  const Function below = owner_of(instance).get_proc_addr(instance, name);
  const Function ours = find(tables().of_devices, name);
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
