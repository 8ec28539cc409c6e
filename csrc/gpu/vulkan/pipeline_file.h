// What a driver made of kernels, in a file of ours: the next process that opens the device does not compile them again.
#pragma once

#include <string>
#include <vector>

#include "gpu/vulkan/vulkan_instance.h"

namespace edge_rt::gpu {

// The driver's data for this device; empty: there is no such file, it is damaged, or another device's.
std::vector<char> read_pipelines(const std::string& path, const VulkanFacts& facts);

// Replaces the file; false: it stays as it is, which is no error.
bool write_pipelines(const std::string& path, const std::vector<char>& data);

}  // namespace edge_rt::gpu
