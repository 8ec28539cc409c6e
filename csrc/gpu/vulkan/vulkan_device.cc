#include "gpu/vulkan/vulkan_device.h"

#include <algorithm>
#include <cstring>

#include "common/float_mode.h"
#include "gpu/vulkan/self_test.h"
#include "gpu/vulkan/spirv.h"
#include "gpu/vulkan/vulkan_queue.h"

namespace edge_rt::gpu {
namespace {

using namespace vk;  // NOLINT: names of Vulkan's own

// So long may work take until the device counts as hung. Command buffers are far shorter, but a pass has many of them,
// and a software device may be run by a debugger.
constexpr uint64_t kAnswerNanoseconds = 60ull * 1000 * 1000 * 1000;
constexpr uint64_t kMoreNanoseconds = 1000ull * 1000 * 1000;  // for every command buffer beside the first
constexpr size_t kStaged = 4 << 20;
constexpr size_t kAlignment = 256;
constexpr VkFlags kUsage = VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT |
                           VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT;

uintptr_t number_of(const void* address) { return reinterpret_cast<uintptr_t>(address); }

}  // namespace

VulkanDevice::VulkanDevice(std::shared_ptr<VulkanInstance> instance) : instance_(std::move(instance)) {}

std::shared_ptr<VulkanDevice> VulkanDevice::open(int number, KernelCode kernels, GpuError* error) {
  std::shared_ptr<VulkanInstance> instance = VulkanInstance::open(error);
  if (instance == nullptr) return nullptr;
  std::shared_ptr<VulkanDevice> made(new VulkanDevice(std::move(instance)));
  made->kernels_ = std::move(kernels);
  return made->make(number, error) ? made : nullptr;
}

bool VulkanDevice::make(int number, GpuError* error) {
  const std::vector<VkPhysicalDevice>& devices = instance_->devices();
  if (number < 0 || static_cast<size_t>(number) >= devices.size()) {
    *error = {Fault::kRefused, 0,
              "there is no Vulkan device " + std::to_string(number) + " of " + std::to_string(devices.size())};
    return false;
  }
  number_ = number;
  physical_ = devices[static_cast<size_t>(number)];
  facts_ = instance_->facts(physical_);
  if (!facts_.refusal.empty()) {
    *error = {Fault::kRefused, 0, facts_.name + ": " + facts_.refusal};
    return false;
  }
  return connect(error) && try_arithmetic(error);
}

bool VulkanDevice::connect(GpuError* error) {
  // Threads of a software device compute in the mode of the thread that makes them.
  const DefaultFloatMode mode;
  const float priority = 1.0f;
  VkDeviceQueueCreateInfo queue;
  queue.queueFamilyIndex = facts_.family;
  queue.pQueuePriorities = &priority;
  VkPhysicalDeviceShaderIntegerDotProductFeatures dots;
  dots.shaderIntegerDotProduct = 1;
  VkPhysicalDeviceVulkan12Features features12;
  features12.pNext = facts_.has_dots ? &dots : nullptr;
  features12.storageBuffer8BitAccess = features12.shaderInt8 = features12.scalarBlockLayout = 1;
  features12.bufferDeviceAddress = 1;
  VkPhysicalDeviceVulkan11Features features11;
  features11.pNext = &features12;
  features11.storageBuffer16BitAccess = 1;
  VkPhysicalDeviceFeatures2 features;
  features.pNext = &features11;
  features.features.all[kShaderInt16] = 1;
  const char* const extensions[] = {"VK_EXT_memory_budget"};
  VkDeviceCreateInfo info;
  info.pNext = &features;
  info.pQueueCreateInfos = &queue;
  info.enabledExtensionCount = facts_.has_budget ? 1 : 0;
  info.ppEnabledExtensionNames = extensions;
  if (!keep_result(instance_->call.vkCreateDevice(physical_, &info, nullptr, &handle_), "vkCreateDevice", error)) {
    return false;
  }
  const char* missing = nullptr;
#define EDGE_RT_FIND(function, result, arguments)                                                                 \
  call.function = reinterpret_cast<result(*) arguments>(instance_->call.vkGetDeviceProcAddr(handle_, #function)); \
  if (call.function == nullptr) missing = #function;
  EDGE_RT_VULKAN_OF_DEVICE(EDGE_RT_FIND)
#undef EDGE_RT_FIND
  if (missing != nullptr) {
    *error = {Fault::kOther, 0, "the driver of " + facts_.name + " has no " + missing};
    return false;
  }
  call.vkGetDeviceQueue(handle_, facts_.family, 0, &queue_);
  const VkPushConstantRange pushed{VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof(VkDeviceAddress)};
  VkPipelineLayoutCreateInfo layout;
  layout.pushConstantRangeCount = 1;
  layout.pPushConstantRanges = &pushed;
  return keep_result(call.vkCreatePipelineLayout(handle_, &layout, nullptr, &layout_), "vkCreatePipelineLayout", error);
}

bool VulkanDevice::try_arithmetic(GpuError* error) {
  mended_ = 0;
  if (kernels_.count(kSelfTestKernel) == 0) {
    mended_ = kMendsAll;
    return true;
  }
  // The device belongs to nobody yet, and queues hold it by a shared pointer.
  const std::shared_ptr<VulkanDevice> self(this, [](VulkanDevice*) {});
  VulkanQueue queue(self);
  const auto restart = [this](uint32_t mended) {
    for (auto& [key, pipeline] : pipelines_) call.vkDestroyPipeline(handle_, pipeline, nullptr);
    pipelines_.clear();
    mended_ = mended;
  };
  uint32_t mends = 0;
  const bool is_done = run_self_test(this, &queue, restart, &self_test_, &mends, error);
  restart(mends);
  return is_done;
}

VulkanDevice::~VulkanDevice() {
  copies_.reset();
  if (handle_ != nullptr && call.vkDestroyDevice != nullptr) {
    for (auto& [key, pipeline] : pipelines_) call.vkDestroyPipeline(handle_, pipeline, nullptr);
    for (auto& [address, block] : blocks_) drop_block(block);
    if (layout_ != VkPipelineLayout{}) call.vkDestroyPipelineLayout(handle_, layout_, nullptr);
    call.vkDestroyDevice(handle_, nullptr);
  }
}

Traits VulkanDevice::traits() const { return {size_t{16} << 10, false}; }

// --- errors ----------------------------------------------------------------------------------------------------------

bool VulkanDevice::keep(VkResult result, const char* function, GpuError* error) {
  GpuError failed;
  if (keep_result(result, function, &failed)) return true;
  if (failed.fault == Fault::kLost || failed.fault == Fault::kHung) {
    const std::lock_guard<std::mutex> guard(lost_lock_);
    if (!lost_) lost_ = failed;
  }
  if (!*error) *error = failed;
  return false;
}

bool VulkanDevice::is_well(GpuError* error) const {
  const std::lock_guard<std::mutex> guard(lost_lock_);
  if (!lost_) return true;
  if (!*error) *error = lost_;
  return false;
}

// --- memory ----------------------------------------------------------------------------------------------------------

bool VulkanDevice::make_block(size_t bytes, uint32_t type, bool is_mapped, Block* out, uint64_t* address,
                              GpuError* error) {
  VkBufferCreateInfo info;
  info.size = std::max<size_t>(bytes, 1);
  info.usage = kUsage;
  out->bytes = info.size;
  if (!keep(call.vkCreateBuffer(handle_, &info, nullptr, &out->buffer), "vkCreateBuffer", error)) return false;
  VkMemoryRequirements needs{};
  call.vkGetBufferMemoryRequirements(handle_, out->buffer, &needs);
  if ((needs.memoryTypeBits >> type & 1) == 0) {
    *error = {Fault::kOther, 0, "buffers of " + facts_.name + " do not lie in memory of type " + std::to_string(type)};
    return false;
  }
  const VkMemoryAllocateFlagsInfo flags;
  VkMemoryAllocateInfo wanted;
  wanted.pNext = &flags;
  wanted.allocationSize = needs.size;
  wanted.memoryTypeIndex = type;
  if (!keep(call.vkAllocateMemory(handle_, &wanted, nullptr, &out->memory), "vkAllocateMemory", error) ||
      !keep(call.vkBindBufferMemory(handle_, out->buffer, out->memory, 0), "vkBindBufferMemory", error) ||
      (is_mapped &&
       !keep(call.vkMapMemory(handle_, out->memory, 0, ~uint64_t{0}, 0, &out->mapped), "vkMapMemory", error))) {
    return false;
  }
  VkBufferDeviceAddressInfo place;
  place.buffer = out->buffer;
  *address = call.vkGetBufferDeviceAddress(handle_, &place);
  if (*address != 0 && *address % kAlignment == 0) return true;
  *error = {Fault::kOther, 0,
            "vkGetBufferDeviceAddress: buffers of " + facts_.name + " do not begin at multiples of " +
                std::to_string(kAlignment) + " bytes"};
  return false;
}

void VulkanDevice::drop_block(const Block& block) {
  if (block.buffer != VkBuffer{}) call.vkDestroyBuffer(handle_, block.buffer, nullptr);
  if (block.memory != VkDeviceMemory{}) call.vkFreeMemory(handle_, block.memory, nullptr);
}

void* VulkanDevice::keep_block(size_t bytes, uint32_t type, bool is_mapped, Block* out, GpuError* error) {
  uint64_t address = 0;
  if (!is_well(error) || !make_block(bytes, type, is_mapped, out, &address, error)) {
    drop_block(*out);
    return nullptr;
  }
  const std::lock_guard<std::mutex> guard(memory_lock_);
  blocks_[static_cast<uintptr_t>(address)] = *out;
  return reinterpret_cast<void*>(static_cast<uintptr_t>(address));
}

void* VulkanDevice::allocate(size_t bytes, GpuError* error) {
  Block block;
  void* const address = keep_block(bytes, facts_.device_type, facts_.is_mapped, &block, error);
  const std::lock_guard<std::mutex> guard(memory_lock_);
  failure_ = address != nullptr || error->fault == Fault::kOutOfMemory ? GpuError{} : *error;
  return address;
}

void VulkanDevice::free(void* memory) {
  Block block;
  {
    const std::lock_guard<std::mutex> guard(memory_lock_);
    const auto found = blocks_.find(number_of(memory));
    if (found == blocks_.end()) return;
    block = found->second;
    blocks_.erase(found);
  }
  drop_block(block);
}

void* VulkanDevice::allocate_host(size_t bytes, void** device, GpuError* error) {
  Block block;
  *device = keep_block(bytes, facts_.host_type, true, &block, error);
  if (*device == nullptr) return nullptr;
  const std::lock_guard<std::mutex> guard(memory_lock_);
  host_blocks_[block.mapped] = number_of(*device);
  return block.mapped;
}

void VulkanDevice::free_host(void* memory) {
  uintptr_t address = 0;
  {
    const std::lock_guard<std::mutex> guard(memory_lock_);
    const auto found = host_blocks_.find(memory);
    if (found == host_blocks_.end()) return;
    address = found->second;
    host_blocks_.erase(found);
  }
  free(reinterpret_cast<void*>(address));
}

GpuError VulkanDevice::failure() const {
  const std::lock_guard<std::mutex> guard(memory_lock_);
  return failure_;
}

bool VulkanDevice::budget(MemoryBudget* out, GpuError* error) {
  if (!is_well(error)) return false;
  VkPhysicalDeviceMemoryBudgetPropertiesEXT budget;
  VkPhysicalDeviceMemoryProperties2 memory;
  memory.pNext = facts_.has_budget ? &budget : nullptr;
  instance_->call.vkGetPhysicalDeviceMemoryProperties2(physical_, &memory);
  const VkPhysicalDeviceMemoryProperties& all = memory.memoryProperties;
  const uint32_t heap = all.memoryTypes[facts_.device_type].heapIndex;
  out->total = static_cast<size_t>(all.memoryHeaps[heap].size);
  if (facts_.has_budget) {
    const uint64_t used = std::min(budget.heapUsage[heap], budget.heapBudget[heap]);
    out->free = static_cast<size_t>(budget.heapBudget[heap] - used);
    return true;
  }
  const std::lock_guard<std::mutex> guard(memory_lock_);
  size_t used = 0;
  for (const auto& [address, block] : blocks_) used += block.bytes;
  out->free = out->total - std::min(out->total, used);
  return true;
}

bool VulkanDevice::find(const void* address, size_t bytes, Place* out, GpuError* error) const {
  const std::lock_guard<std::mutex> guard(memory_lock_);
  auto found = blocks_.upper_bound(number_of(address));
  if (found != blocks_.begin()) {
    --found;
    const size_t offset = number_of(address) - found->first;
    if (offset <= found->second.bytes && bytes <= found->second.bytes - offset) {
      *out = {found->second.buffer, offset};
      return true;
    }
  }
  *error = {Fault::kRefused, 0, std::to_string(bytes) + " bytes to copy do not lie in memory of " + facts_.name};
  return false;
}

void* VulkanDevice::mapped(const void* address) const {
  const std::lock_guard<std::mutex> guard(memory_lock_);
  auto found = blocks_.upper_bound(number_of(address));
  if (found == blocks_.begin()) return nullptr;
  --found;
  char* const begin = static_cast<char*>(found->second.mapped);
  return begin == nullptr ? nullptr : begin + (number_of(address) - found->first);
}

// --- work ------------------------------------------------------------------------------------------------------------

bool VulkanDevice::find(const Kernel& kernel, VkPipeline* out, GpuError* error) {
  if (!is_well(error)) return false;
  const std::lock_guard<std::mutex> guard(pipelines_lock_);
  const auto known = pipelines_.find({kernel.name, kernel.choices});
  if (known != pipelines_.end()) {
    *out = known->second;
    return true;
  }
  auto code = facts_.has_dots ? kernels_.find(std::string(kernel.name) + ".dots") : kernels_.end();
  if (code == kernels_.end()) code = kernels_.find(kernel.name);
  if (code == kernels_.end()) {
    *error = {Fault::kRefused, 0, std::string("there is no code of the kernel ") + kernel.name};
    return false;
  }
  if (!make_pipeline(code->second, kernel.choices, out, error)) {
    error->sentence += std::string(" for kernel ") + kernel.name;
    return false;
  }
  pipelines_[{kernel.name, kernel.choices}] = *out;
  return true;
}

bool VulkanDevice::make_pipeline(const std::vector<uint32_t>& code, uint32_t choices, VkPipeline* out,
                                 GpuError* error) {
  const DefaultFloatMode mode;  // a software device folds constants while it compiles
  const std::vector<uint32_t> words = with_float_modes(code, facts_);
  if (words.empty()) {
    *error = {Fault::kOther, 0, "vkCreateShaderModule: the code is no SPIR-V"};
    return false;
  }
  VkShaderModuleCreateInfo module_info;
  module_info.codeSize = words.size() * sizeof(uint32_t);
  module_info.pCode = words.data();
  VkShaderModule module = {};
  if (!keep(call.vkCreateShaderModule(handle_, &module_info, nullptr, &module), "vkCreateShaderModule", error)) {
    return false;
  }
  // As in kernel.glsl.
  const uint32_t constants[] = {choices, mended_};
  const VkSpecializationMapEntry entries[] = {{0, 0, sizeof(uint32_t)}, {1, sizeof(uint32_t), sizeof(uint32_t)}};
  const VkSpecializationInfo special{2, entries, sizeof constants, constants};
  VkComputePipelineCreateInfo info;
  info.stage.module = module;
  info.stage.pSpecializationInfo = &special;
  info.layout = layout_;
  const VkResult result = call.vkCreateComputePipelines(handle_, {}, 1, &info, nullptr, out);
  call.vkDestroyShaderModule(handle_, module, nullptr);
  return keep(result, "vkCreateComputePipelines", error);
}

bool VulkanDevice::submit(const std::vector<VkCommandBuffer>& buffers, VkFence fence, GpuError* error) {
  if (!is_well(error)) return false;
  std::vector<VkSubmitInfo> submits(buffers.size());
  for (size_t i = 0; i < buffers.size(); ++i) submits[i].pCommandBuffers = &buffers[i];
  const std::lock_guard<std::mutex> guard(submit_lock_);
  return keep(call.vkQueueSubmit(queue_, static_cast<uint32_t>(submits.size()), submits.data(), fence), "vkQueueSubmit",
              error);
}

bool VulkanDevice::wait(VkFence fence, size_t buffers, GpuError* error) {
  const uint64_t most = kAnswerNanoseconds + buffers * kMoreNanoseconds;
  return keep(call.vkWaitForFences(handle_, 1, &fence, 1, most), "vkWaitForFences", error);
}

std::unique_ptr<GpuQueue> VulkanDevice::open_queue(GpuError* error) {
  if (!is_well(error)) return nullptr;
  auto made = std::make_unique<VulkanQueue>(shared_from_this());
  const std::lock_guard<std::mutex> guard(queues_lock_);
  queues_.insert(made.get());
  return made;
}

void VulkanDevice::forget(VulkanQueue* queue) {
  const std::lock_guard<std::mutex> guard(queues_lock_);
  queues_.erase(queue);
}

bool VulkanDevice::settle(GpuError* error) {
  const std::lock_guard<std::mutex> guard(queues_lock_);
  for (VulkanQueue* queue : queues_) {
    if (!queue->settle(error)) return false;
  }
  return is_well(error);
}

bool VulkanDevice::copy(Way way, void* to, const void* from, size_t bytes, GpuError* error) {
  return bytes == 0 || (settle(error) && copy_settled(way, to, from, bytes, error));
}

bool VulkanDevice::copy_settled(Way way, void* to, const void* from, size_t bytes, GpuError* error) {
  // What is copied must lie in memory of the device, also where it is copied as the host's.
  Place place;
  if (way != Way::kToDevice && !find(from, bytes, &place, error)) return false;
  if (way != Way::kToHost && !find(to, bytes, &place, error)) return false;
  const void* const read = way == Way::kToDevice ? from : mapped(from);
  void* const written = way == Way::kToHost ? to : mapped(to);
  if (read == nullptr || written == nullptr) return copy_staged(way, to, from, bytes, error);
  std::memmove(written, read, bytes);
  return true;
}

bool VulkanDevice::copy_staged(Way way, void* to, const void* from, size_t bytes, GpuError* error) {
  const std::lock_guard<std::mutex> guard(copy_lock_);
  if (copies_ == nullptr) copies_ = std::make_unique<Commands>(this);
  for (size_t at = 0; at < bytes; at += kStaged) {
    const size_t count = std::min(kStaged, bytes - at);
    char* const target = static_cast<char*>(to) + at;
    const char* const source = static_cast<const char*>(from) + at;
    void *address = nullptr, *staged = nullptr;
    Place read, written;
    double seconds = 0;
    if (!copies_->begin(false, error)) return false;
    if (way != Way::kOnDevice) {
      staged = copies_->pieces().take(count, &address, error);
      if (staged == nullptr) return false;
    }
    if (way == Way::kToDevice) std::memcpy(staged, source, count);
    if (!find(way == Way::kToDevice ? address : source, count, &read, error) ||
        !find(way == Way::kToHost ? address : target, count, &written, error) ||
        !copies_->copy(read, written, count, error) || !copies_->run(&seconds, error)) {
      return false;
    }
    if (way == Way::kToHost) std::memcpy(target, staged, count);
  }
  return true;
}

}  // namespace edge_rt::gpu
