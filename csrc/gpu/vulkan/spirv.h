// Code of kernels as a device takes it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gpu/vulkan/vulkan_instance.h"

namespace edge_rt::gpu {

// Asks for the float modes that the CPU has, and takes the multiply-add that must fuse (SPV_KHR_fma) for the one that
// may be anything, as far as the device offers them: modules are written without, because a module that names one
// cannot be loaded where it is not offered. False: `words` are no module that the device can run; `problem` goes on
// behind "the code".
bool adapt_module(const std::vector<uint32_t>& words, const VulkanFacts& facts, std::vector<uint32_t>* out,
                  std::string* problem);

}  // namespace edge_rt::gpu
