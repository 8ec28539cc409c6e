#include "gpu/vulkan/vulkan_pipelines.h"

#include "common/float_mode.h"
#include "gpu/vulkan/pipeline_file.h"
#include "gpu/vulkan/self_test.h"
#include "gpu/vulkan/spirv.h"

namespace edge_rt::gpu {

using namespace vk;  // NOLINT: names of Vulkan's own

VulkanPipelines::~VulkanPipelines() {
  drop();
  if (cache_ != VkPipelineCache{} && !link_.has_hung()) {
    link_.call.vkDestroyPipelineCache(link_.handle(), cache_, nullptr);
  }
}

// Without a cache kernels are compiled: nothing of it is an error.
void VulkanPipelines::open_cache() {
  if (std::exchange(is_open_, true) || file_.empty()) return;
  const std::vector<char> data = read_pipelines(file_, link_.facts());
  VkPipelineCacheCreateInfo info;
  info.initialDataSize = saved_ = data.size();
  info.pInitialData = data.data();
  if (link_.call.vkCreatePipelineCache(link_.handle(), &info, nullptr, &cache_) != VK_SUCCESS) cache_ = {};
}

void VulkanPipelines::save() {
  if (!is_new_) return;
  const std::lock_guard<std::mutex> guard(lock_);
  size_t bytes = 0;
  GpuError ignored;
  if (!is_new_.exchange(false) || cache_ == VkPipelineCache{} || !link_.is_well(&ignored) ||
      link_.call.vkGetPipelineCacheData(link_.handle(), cache_, &bytes, nullptr) != VK_SUCCESS || bytes == saved_) {
    return;
  }
  std::vector<char> data(bytes);
  if (link_.call.vkGetPipelineCacheData(link_.handle(), cache_, &bytes, data.data()) != VK_SUCCESS) return;
  data.resize(bytes);
  if (write_pipelines(file_, data)) saved_ = bytes;
}

void VulkanPipelines::restart(uint32_t mended) {
  drop();
  mended_ = mended;
}

void VulkanPipelines::drop() {
  for (auto& [key, pipeline] : made_) {
    if (!link_.has_hung()) link_.call.vkDestroyPipeline(link_.handle(), pipeline->handle, nullptr);
  }
  made_.clear();
}

VulkanPipeline* VulkanPipelines::find(const Kernel& kernel, uint32_t cell, GpuError* error) {
  if (!link_.is_well(error)) return nullptr;
  const std::lock_guard<std::mutex> guard(lock_);
  std::unique_ptr<VulkanPipeline>& known = made_[{kernel.name, kernel.choices, cell}];
  if (known != nullptr) return known.get();
  auto fresh = std::make_unique<VulkanPipeline>();
  fresh->cell = cell;
  if (make(kernel, fresh.get(), error)) {
    known = std::move(fresh);
    is_new_ = true;
    return known.get();
  }
  made_.erase({kernel.name, kernel.choices, cell});
  return nullptr;
}

bool VulkanPipelines::make(const Kernel& kernel, VulkanPipeline* out, GpuError* error) {
  const auto plain = kernels_.find(kernel.name), with_dots = kernels_.find(std::string(kernel.name) + ".dots");
  const bool takes_dots = link_.facts().has_dots && (mended_ & kMendsDots) == 0;
  GpuError ignored;
  // Drivers tell of products of bytes that they cannot compile.
  if (takes_dots && with_dots != kernels_.end()) {
    if (make(with_dots->second, kernel.choices, out, plain == kernels_.end() ? error : &ignored)) return true;
    if (plain == kernels_.end() || !link_.is_well(error)) return false;
  }
  if (plain == kernels_.end()) {
    *error = {Fault::kRefused, 0, std::string("there is no code of the kernel ") + kernel.name};
    return false;
  }
  if (make(plain->second, kernel.choices, out, error)) return true;
  error->sentence += std::string(" for kernel ") + kernel.name;
  return false;
}

bool VulkanPipelines::make(const std::vector<uint32_t>& code, uint32_t choices, VulkanPipeline* out, GpuError* error) {
  const DefaultFloatMode mode;  // a software device folds constants while it compiles
  open_cache();
  std::vector<uint32_t> words;
  std::string problem;
  if (!adapt_module(code, link_.facts(), &words, &problem)) {
    *error = {Fault::kRefused, 0, "the code " + problem + ","};
    return false;
  }
  VkShaderModuleCreateInfo module_info;
  module_info.codeSize = words.size() * sizeof(uint32_t);
  module_info.pCode = words.data();
  VkShaderModule module = {};
  if (!link_.keep(link_.call.vkCreateShaderModule(link_.handle(), &module_info, nullptr, &module),
                  "vkCreateShaderModule", error)) {
    return false;
  }
  // As in kernel.glsl.
  const uint32_t constants[] = {choices, mended_, out->cell};
  const VkSpecializationMapEntry entries[] = {
      {0, 0, sizeof(uint32_t)}, {1, sizeof(uint32_t), sizeof(uint32_t)}, {2, 2 * sizeof(uint32_t), sizeof(uint32_t)}};
  const VkSpecializationInfo special{3, entries, sizeof constants, constants};
  VkComputePipelineCreateInfo info;
  info.stage.module = module;
  info.stage.pSpecializationInfo = &special;
  info.layout = link_.layout();
  const VkResult result = link_.call.vkCreateComputePipelines(link_.handle(), cache_, 1, &info, nullptr, &out->handle);
  link_.call.vkDestroyShaderModule(link_.handle(), module, nullptr);
  return link_.keep(result, "vkCreateComputePipelines", error);
}

}  // namespace edge_rt::gpu
