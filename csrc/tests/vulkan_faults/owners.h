// What the layer knows of each instance and device: what is alive of it, and whether it is lost or hangs.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>

#include "tests/vulkan_faults/faults.h"
#include "tests/vulkan_faults/loader.h"

namespace vulkan_faults {

using Clock = std::chrono::steady_clock;

// An instance or a device, known to all that was made from it by the loader's table, the first word of each.
struct Owner {
  void* handle = nullptr;
  GetProcAddr get_proc_addr = nullptr;  // of what lies below
  std::map<std::string, int64_t> alive;
  std::unordered_map<uint64_t, int64_t> bytes;     // of each piece of memory
  std::unordered_map<uint64_t, int64_t> imported;  // of those that are the host's as well
  std::unordered_map<uint64_t, uint32_t> types;    // of each piece of memory, as a guise has them
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

// Of what an Owner has that changes.
extern std::mutex& owners_mutex;

Owner& owner_of(void* handle);
Owner& own(void* handle, GetProcAddr get_proc_addr, const char* kind);
// One that is given back; what is left of it is complained of.
void disown(void* handle, const char* kind, const char* function);

void count(Owner* owner, const char* kind, int change, int64_t bytes = 0);

// The result that a call of a function has in place of being made; kSuccess: it is made. What was submitted before is
// done when a device is lost, so that the program may destroy all it has.
int32_t take(Owner* device, const char* function);

// Functions of ours by their name, of each subject.
using Table = std::map<std::string, Function>;
struct Tables {
  Table of_instances, of_devices;
};
void add_objects(Tables* out);
void add_work(Tables* out);
void add_devices(Tables* out);

// What follows does nothing where devices are as they are (guises.h). Of a device's properties, features, memory:
void disguise_properties(const void* chain);
void disguise_features(const void* chain, uint32_t* core);
struct MemoryProperties;
void disguise_memory(MemoryProperties* out);
// What a program asks for that the guise does not have, on standard error; 0, or the result that it gets.
int32_t check_device(const DeviceCreateInfo& info);
void check_module(const void* info);
void note_instance(const void* info);
void add_guises(Tables* out);

template <class Type>
Function erased(Type* function) {
  return reinterpret_cast<Function>(function);
}

}  // namespace vulkan_faults
