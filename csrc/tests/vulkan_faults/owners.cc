#include "tests/vulkan_faults/owners.h"

#include <memory>
#include <utility>

namespace vulkan_faults {

// Never destroyed: devices may be given back while the process ends.
std::mutex& owners_mutex = *new std::mutex;

namespace {

auto& owners = *new std::unordered_map<void*, std::unique_ptr<Owner>>;

void* key_of(void* handle) { return *static_cast<void**>(handle); }

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

}  // namespace

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

void disown(void* handle, const char* kind, const char* function) {
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
}

void count(Owner* owner, const char* kind, int change, int64_t bytes) {
  {
    const std::lock_guard<std::mutex> lock(owners_mutex);
    owner->alive[kind] += change;
  }
  if (!owner->hangs) return faults().count(kind, change, bytes);
  if (change < 0)
    faults().complain(std::string(kind) + " of a device that hangs, which may be under way, are given back");
}

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

}  // namespace vulkan_faults
