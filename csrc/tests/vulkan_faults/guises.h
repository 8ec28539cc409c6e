// Devices that the layer can pretend: the software device below answers as if it had their limits, features and memory,
// and what a program asks for beyond them is complained of. Numbers are those of drivers' own sources and reports.
#pragma once

#include <cstdint>
#include <vector>

namespace vulkan_faults {

struct Guise {
  const char* name;
  uint32_t device_type;   // VkPhysicalDeviceType
  uint32_t api;           // minor version of Vulkan 1
  uint32_t shared_bytes;  // of a block
  uint32_t threads;       // of a block
  uint64_t largest;       // allocation
  uint64_t largest_buffer;
  bool has_dots;                                       // shaderIntegerDotProduct
  bool keeps_subnormals, keeps_signs, rounds_to_even;  // of 32-bit floats: modes that can be asked for
  bool is_portable;                                    // VK_KHR_portability_subset
  bool has_budget;                                     // VK_EXT_memory_budget
  uint64_t shift;                                      // buffers begin so many bytes behind a page
  uint32_t buffer_types;                               // types of memory that buffers lie in, a bit each
  std::vector<uint64_t> heaps;
  struct Type {
    uint32_t flags, heap;
  };
  std::vector<Type> types;
};

// That of EDGE_RT_VULKAN_GUISE; nullptr: devices are as they are.
const Guise* guise();

}  // namespace vulkan_faults
