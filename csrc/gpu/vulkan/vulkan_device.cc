#include "gpu/vulkan/vulkan_device.h"

#include <algorithm>
#include <cstring>

#include "common/float_mode.h"
#include "gpu/vulkan/self_test.h"
#include "gpu/vulkan/spirv.h"
#include "gpu/vulkan/vulkan_commands.h"
#include "gpu/vulkan/vulkan_queue.h"

namespace edge_rt::gpu {
namespace {

using namespace vk;  // NOLINT: names of Vulkan's own

constexpr size_t kStaged = 4 << 20;
constexpr size_t kAlignment = 256;
constexpr VkFlags kUsage = VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT |
                           VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT;

uintptr_t number_of(const void* address) { return reinterpret_cast<uintptr_t>(address); }

}  // namespace

VulkanDevice::VulkanDevice(std::shared_ptr<VulkanInstance> instance) : instance_(std::move(instance)) {}

std::shared_ptr<VulkanDevice> VulkanDevice::open(int number, KernelCode kernels, const VulkanLimits& limits,
                                                 GpuError* error) {
  std::shared_ptr<VulkanInstance> instance = VulkanInstance::open(error);
  if (instance == nullptr) return nullptr;
  std::shared_ptr<VulkanDevice> made(new VulkanDevice(std::move(instance)));
  made->kernels_ = std::move(kernels);
  made->limits_ = limits;
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
  facts_.is_mapped = facts_.is_mapped && limits_.maps_memory;
  facts_.is_cached = facts_.is_cached && limits_.reads_memory;
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
  VkPhysicalDeviceShaderFmaFeaturesKHR fma;
  fma.shaderFmaFloat32 = 1;
  dots.pNext = facts_.has_fma ? &fma : nullptr;
  features12.pNext = facts_.has_dots ? &dots : dots.pNext;
  features12.storageBuffer8BitAccess = features12.shaderInt8 = features12.scalarBlockLayout = 1;
  features12.bufferDeviceAddress = 1;
  VkPhysicalDeviceVulkan11Features features11;
  features11.pNext = &features12;
  features11.storageBuffer16BitAccess = 1;
  VkPhysicalDeviceFeatures2 features;
  features.pNext = &features11;
  features.features.all[kShaderInt16] = facts_.has_int16;
  std::vector<const char*> extensions;
  if (facts_.has_budget) extensions.push_back("VK_EXT_memory_budget");
  if (facts_.has_fma) extensions.push_back("VK_KHR_shader_fma");
  VkDeviceCreateInfo info;
  info.pNext = &features;
  info.pQueueCreateInfos = &queue;
  info.enabledExtensionCount = static_cast<uint32_t>(extensions.size());
  info.ppEnabledExtensionNames = extensions.data();
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
    self_test_.has_cpu_bits = false;  // nobody knows
    return true;
  }
  // The device belongs to nobody yet, and queues hold it by a shared pointer.
  const std::shared_ptr<VulkanDevice> self(this, [](VulkanDevice*) {});
  VulkanQueue queue(self);
  const auto restart = [this](uint32_t mended) {
    drop_pipelines();
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
    drop_pipelines();
    for (auto& [address, block] : blocks_) drop_block(block);
    if (layout_ != VkPipelineLayout{}) call.vkDestroyPipelineLayout(handle_, layout_, nullptr);
    call.vkDestroyDevice(handle_, nullptr);
  }
}

void VulkanDevice::drop_pipelines() {
  for (auto& [key, pipeline] : pipelines_) call.vkDestroyPipeline(handle_, pipeline->handle, nullptr);
  pipelines_.clear();
}

Traits VulkanDevice::traits() const { return {size_t{16} << 10, false}; }

// --- errors ----------------------------------------------------------------------------------------------------------

bool VulkanDevice::keep(VkResult result, const char* function, GpuError* error) {
  GpuError failed;
  if (keep_result(result, function, &failed)) return true;
  if (failed.fault == Fault::kLost || failed.fault == Fault::kHung) lose(failed);
  if (!*error) *error = failed;
  return false;
}

void VulkanDevice::lose(const GpuError& error) {
  const std::lock_guard<std::mutex> guard(lost_lock_);
  if (!lost_) lost_ = error;
}

bool VulkanDevice::is_well(GpuError* error) const {
  const std::lock_guard<std::mutex> guard(lost_lock_);
  if (!lost_) return true;
  if (!*error) *error = lost_;
  return false;
}

bool VulkanDevice::is_lost() const {
  GpuError ignored;
  return !is_well(&ignored);
}

// --- memory ----------------------------------------------------------------------------------------------------------

bool VulkanDevice::make_block(size_t bytes, uint32_t type, bool is_mapped, Block* out, uint64_t* address,
                              GpuError* error) {
  VkBufferCreateInfo info;
  info.size = std::max<size_t>(bytes, 1);
  info.usage = kUsage;
  out->bytes = info.size;
  out->type = type;
  if (bytes > facts_.largest) {
    *error = {Fault::kRefused, 0,
              facts_.name + " gives at most " + std::to_string(facts_.largest) + " bytes of memory at once, not " +
                  std::to_string(bytes)};
    return false;
  }
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

// Kernels that were started may still use it.
void VulkanDevice::free(void* memory) {
  GpuError ignored;
  settle(&ignored);
  drop_pieces(memory);
}

void VulkanDevice::drop_pieces(void* address) {
  Block block;
  {
    const std::lock_guard<std::mutex> guard(memory_lock_);
    const auto found = blocks_.find(number_of(address));
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

void* VulkanDevice::allocate_pieces(size_t bytes, void** address, GpuError* error) {
  Block block;
  GpuError failed;
  *address = keep_block(bytes, facts_.piece_type, true, &block, &failed);
  // Of the device's own memory the host may see a small part only.
  if (failed.fault == Fault::kOutOfMemory && facts_.piece_type != facts_.host_type) {
    block = {};
    failed = {};
    *address = keep_block(bytes, facts_.host_type, true, &block, &failed);
  }
  if (failed) *error = failed;
  return *address == nullptr ? nullptr : block.mapped;
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
  for (const auto& [address, block] : blocks_) {
    if (all.memoryTypes[block.type].heapIndex == heap) used += block.bytes;
  }
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

VulkanPipeline* VulkanDevice::find(const Kernel& kernel, GpuError* error) {
  if (!is_well(error)) return nullptr;
  const std::lock_guard<std::mutex> guard(pipelines_lock_);
  std::unique_ptr<VulkanPipeline>& known = pipelines_[{kernel.name, kernel.choices}];
  if (known != nullptr) return known.get();
  auto code = facts_.has_dots ? kernels_.find(std::string(kernel.name) + ".dots") : kernels_.end();
  if (code == kernels_.end()) code = kernels_.find(kernel.name);
  auto made = std::make_unique<VulkanPipeline>();
  if (code == kernels_.end()) {
    *error = {Fault::kRefused, 0, std::string("there is no code of the kernel ") + kernel.name};
  } else if (make_pipeline(code->second, kernel.choices, &made->handle, error)) {
    known = std::move(made);
    return known.get();
  } else {
    error->sentence += std::string(" for kernel ") + kernel.name;
  }
  pipelines_.erase({kernel.name, kernel.choices});
  return nullptr;
}

bool VulkanDevice::make_pipeline(const std::vector<uint32_t>& code, uint32_t choices, VkPipeline* out,
                                 GpuError* error) {
  const DefaultFloatMode mode;  // a software device folds constants while it compiles
  std::vector<uint32_t> words;
  std::string problem;
  if (!adapt_module(code, facts_, &words, &problem)) {
    *error = {Fault::kRefused, 0, "the code " + problem + ","};
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

bool VulkanDevice::submit(const std::vector<VkCommandBuffer>& buffers, VkFence fence, size_t* sent, GpuError* error) {
  const DefaultFloatMode mode;  // of threads that a software device starts now
  const std::lock_guard<std::mutex> guard(submit_lock_);
  // One call each: drivers may make one piece of work of what is in a call.
  for (*sent = 0; *sent < buffers.size(); ++*sent) {
    VkSubmitInfo info;
    info.pCommandBuffers = &buffers[*sent];
    const VkFence told = *sent + 1 == buffers.size() ? fence : VkFence{};
    if (!keep(call.vkQueueSubmit(queue_, 1, &info, told), "vkQueueSubmit", error)) break;
  }
  if (*sent == 0 || *sent == buffers.size()) return *sent != 0;
  // Those that went before a failure are waited for: they use memory that is given back behind it.
  GpuError of_wait;
  if (keep(call.vkQueueSubmit(queue_, 0, nullptr, fence), "vkQueueSubmit", &of_wait)) return false;
  lose(of_wait);
  *sent = 0;
  return false;
}

bool VulkanDevice::run(const std::vector<VkCommandBuffer>& buffers, VkFence fence, GpuError* error) {
  if (!is_well(error)) return false;
  size_t sent = 0;
  const bool is_sent = submit(buffers, fence, &sent, error);
  if (sent == 0) return false;
  GpuError of_wait;
  const auto most = static_cast<uint64_t>(limits_.answer.count()) + sent * static_cast<uint64_t>(1000000000);
  if (!keep(call.vkWaitForFences(handle_, 1, &fence, 1, most), "vkWaitForFences", &of_wait) ||
      !keep(call.vkResetFences(handle_, 1, &fence), "vkResetFences", &of_wait)) {
    lose(of_wait);  // whatever the reason: what is under way cannot be waited for any more
    if (!*error) *error = of_wait;
    return false;
  }
  return is_sent;
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
  bool are_settled = true;
  for (VulkanQueue* queue : queues_) are_settled = queue->settle(error) && are_settled;
  return are_settled && is_well(error);
}

bool VulkanDevice::copy(Way way, void* to, const void* from, size_t bytes, GpuError* error) {
  return bytes == 0 || (settle(error) && copy_settled(way, to, from, bytes, error));
}

bool VulkanDevice::copy_settled(Way way, void* to, const void* from, size_t bytes, GpuError* error) {
  // What is copied must lie in memory of the device, also where it is copied as the host's.
  Place place;
  if (way != Way::kToDevice && !find(from, bytes, &place, error)) return false;
  if (way != Way::kToHost && !find(to, bytes, &place, error)) return false;
  const void* const read = way == Way::kToDevice ? from : facts_.is_cached ? mapped(from) : nullptr;
  void* const written = way == Way::kToHost ? to : mapped(to);
  if (read == nullptr || written == nullptr) return copy_staged(way, to, from, bytes, error);
  std::memmove(written, read, bytes);
  return true;
}

bool VulkanDevice::copy_staged(Way way, void* to, const void* from, size_t bytes, GpuError* error) {
  const std::lock_guard<std::mutex> guard(copy_lock_);
  if (copies_ == nullptr) copies_ = std::make_unique<CommandBuffers>(this);
  if (way != Way::kOnDevice && staged_ == nullptr) staged_ = allocate_host(kStaged, &staged_address_, error);
  if (way != Way::kOnDevice && staged_ == nullptr) return false;
  const size_t step = way == Way::kOnDevice ? bytes : kStaged;
  for (size_t at = 0; at < bytes; at += step) {
    char* const target = static_cast<char*>(to) + at;
    const char* const source = static_cast<const char*>(from) + at;
    Command copy;
    copy.bytes = std::min(step, bytes - at);
    if (way == Way::kToDevice) std::memcpy(staged_, source, copy.bytes);
    Nanoseconds took{0};
    if (!find(way == Way::kToDevice ? staged_address_ : source, copy.bytes, &copy.from, error) ||
        !find(way == Way::kToHost ? staged_address_ : target, copy.bytes, &copy.to, error) || !copies_->reset(error) ||
        !copies_->add(&copy, &copy + 1, error) || !copies_->run(&took, error)) {
      return false;
    }
    if (way == Way::kToHost) std::memcpy(target, staged_, copy.bytes);
  }
  return true;
}

}  // namespace edge_rt::gpu
