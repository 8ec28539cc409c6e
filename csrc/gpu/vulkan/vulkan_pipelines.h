// Kernels of a Vulkan device, made ready when they are first asked for.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gpu/vulkan/vulkan_link.h"

namespace edge_rt::gpu {

// SPIR-V by the name of its kernel; with the suffix ".dots" the one that wants packed products of signed bytes.
using KernelCode = std::map<std::string, std::vector<uint32_t>>;

// A kernel with a set of choices, ready to run.
struct VulkanPipeline {
  vk::VkPipeline handle = {};
  uint32_t cell = 0;                            // kernel.glsl
  std::atomic<double> nanoseconds_of_block{0};  // as measured; 0: it has not run yet
};

class VulkanPipelines {
 public:
  // `file`: keeps what the driver makes of them for other processes; empty: nothing does.
  VulkanPipelines(VulkanLink* link, KernelCode kernels, std::string file)
      : link_(*link), kernels_(std::move(kernels)), file_(std::move(file)) {}
  ~VulkanPipelines();
  VulkanPipelines(const VulkanPipelines&) = delete;
  VulkanPipelines& operator=(const VulkanPipelines&) = delete;

  bool has(const std::string& kernel) const { return kernels_.count(kernel) != 0; }
  // nullptr: there is none. `cell`: for grids that lie in cells of so many blocks across.
  VulkanPipeline* find(const Kernel& kernel, uint32_t cell, GpuError* error);
  // Forgets those that were made, of which none may be under way; others will have `mended` arithmetic (kernel.glsl).
  void restart(uint32_t mended);
  // Writes the file if something was made that is not there.
  void save();

 private:
  void drop();
  void open_cache();
  bool make(const Kernel& kernel, VulkanPipeline* out, GpuError* error);
  bool make(const std::vector<uint32_t>& code, uint32_t choices, VulkanPipeline* out, GpuError* error);

  VulkanLink& link_;
  const KernelCode kernels_;
  const std::string file_;
  uint32_t mended_ = 0;
  std::mutex lock_;
  vk::VkPipelineCache cache_ = {};
  bool is_open_ = false;
  size_t saved_ = 0;                 // bytes of the driver's data
  std::atomic<bool> is_new_{false};  // something was made since then
  // By the kernel, its choices, and the cell.
  std::map<std::tuple<std::string, uint32_t, uint32_t>, std::unique_ptr<VulkanPipeline>> made_;
};

}  // namespace edge_rt::gpu
