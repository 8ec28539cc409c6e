// Code of kernels as a device takes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gpu/vulkan/vulkan_instance.h"

namespace edge_rt::gpu {

// Asks for the float modes that the CPU has, as far as the device offers them: modules are written without, because a
// module that names one cannot be loaded where it is not offered. Empty: `words` are no module.
std::vector<uint32_t> with_float_modes(const std::vector<uint32_t>& words, const VulkanFacts& facts);

}  // namespace edge_rt::gpu
