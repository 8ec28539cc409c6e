#include "gpu/vulkan/vulkan_memory.h"

#include <algorithm>
#include <string>

namespace edge_rt::gpu {
namespace {

using namespace vk;  // NOLINT: names of Vulkan's own

uintptr_t number_of(const void* address) { return reinterpret_cast<uintptr_t>(address); }

}  // namespace

VulkanMemory::~VulkanMemory() {
  drop_freed(kAll);
  for (const auto& [address, block] : blocks_) drop(block);
}

bool VulkanMemory::make(size_t bytes, uint32_t type, bool is_mapped, Block* out, uint64_t* address, GpuError* error) {
  if (!make_buffer(bytes, type, is_mapped, out, address, error)) return false;
  const auto behind = static_cast<size_t>(*address % kAlignment);
  if (behind == 0) return true;
  // Of memory that begins elsewhere a part is left out.
  drop(*out);
  *out = {};
  if (!make_buffer(bytes + kAlignment, type, is_mapped, out, address, error)) return false;
  out->skipped = static_cast<size_t>((kAlignment - *address % kAlignment) % kAlignment);
  out->bytes -= out->skipped;
  *address += out->skipped;
  if (out->mapped != nullptr) out->mapped = static_cast<char*>(out->mapped) + out->skipped;
  return true;
}

bool VulkanMemory::make_buffer(size_t bytes, uint32_t type, bool is_mapped, Block* out, uint64_t* address,
                               GpuError* error) {
  VkBufferCreateInfo info;
  info.size = std::max<size_t>(bytes, 1);
  info.usage = kBufferUsage;
  out->bytes = info.size;
  out->type = type;
  if (bytes > link_.facts().largest) {
    *error = {Fault::kRefused, 0,
              link_.facts().name + " gives at most " + std::to_string(link_.facts().largest) +
                  " bytes of memory at once, not " + std::to_string(bytes)};
    return false;
  }
  if (!link_.keep(link_.call.vkCreateBuffer(link_.handle(), &info, nullptr, &out->buffer), "vkCreateBuffer", error))
    return false;
  VkMemoryRequirements needs{};
  link_.call.vkGetBufferMemoryRequirements(link_.handle(), out->buffer, &needs);
  if ((needs.memoryTypeBits >> type & 1) == 0) {
    *error = {Fault::kOther, 0,
              "buffers of " + link_.facts().name + " do not lie in memory of type " + std::to_string(type)};
    return false;
  }
  const VkMemoryAllocateFlagsInfo flags;
  VkMemoryAllocateInfo wanted;
  wanted.pNext = &flags;
  wanted.allocationSize = needs.size;
  wanted.memoryTypeIndex = type;
  if (!link_.keep(link_.call.vkAllocateMemory(link_.handle(), &wanted, nullptr, &out->memory), "vkAllocateMemory",
                  error) ||
      !link_.keep(link_.call.vkBindBufferMemory(link_.handle(), out->buffer, out->memory, 0), "vkBindBufferMemory",
                  error) ||
      (is_mapped && !link_.keep(link_.call.vkMapMemory(link_.handle(), out->memory, 0, ~uint64_t{0}, 0, &out->mapped),
                                "vkMapMemory", error))) {
    return false;
  }
  return find_address(out->buffer, address, error);
}

bool VulkanMemory::find_address(VkBuffer buffer, uint64_t* address, GpuError* error) {
  VkBufferDeviceAddressInfo place;
  place.buffer = buffer;
  *address = link_.call.vkGetBufferDeviceAddress(link_.handle(), &place);
  if (*address != 0) return true;
  *error = {Fault::kOther, 0, "vkGetBufferDeviceAddress gives no address of a buffer of " + link_.facts().name};
  return false;
}

void VulkanMemory::drop(const Block& block) {
  if (link_.has_hung()) return;
  if (block.buffer != VkBuffer{}) link_.call.vkDestroyBuffer(link_.handle(), block.buffer, nullptr);
  if (block.memory != VkDeviceMemory{}) link_.call.vkFreeMemory(link_.handle(), block.memory, nullptr);
}

void* VulkanMemory::take(size_t bytes, uint32_t type, bool is_mapped, Block* out, GpuError* error) {
  uint64_t address = 0;
  if (!link_.is_well(error) || !make(bytes, type, is_mapped, out, &address, error)) {
    drop(*out);
    return nullptr;
  }
  keep(address, *out);
  return reinterpret_cast<void*>(static_cast<uintptr_t>(address));
}

void VulkanMemory::keep(uint64_t address, const Block& block) {
  const std::lock_guard<std::mutex> guard(lock_);
  blocks_[static_cast<uintptr_t>(address)] = block;
}

void* VulkanMemory::allocate(size_t bytes, GpuError* error) {
  Block block;
  void* const address = take(bytes, link_.facts().device_type, link_.facts().is_mapped, &block, error);
  const std::lock_guard<std::mutex> guard(lock_);
  failure_ = address != nullptr || error->fault == Fault::kOutOfMemory ? GpuError{} : *error;
  return address;
}

void VulkanMemory::free(void* address) {
  Block block;
  {
    const std::lock_guard<std::mutex> guard(lock_);
    const auto found = blocks_.find(number_of(address));
    if (found == blocks_.end()) return;
    block = found->second;
    blocks_.erase(found);
  }
  drop(block);
}

void* VulkanMemory::allocate_host(size_t bytes, void** device, GpuError* error) {
  Block block;
  *device = take(bytes, link_.facts().host_type, true, &block, error);
  if (*device == nullptr) return nullptr;
  const std::lock_guard<std::mutex> guard(lock_);
  host_blocks_[block.mapped] = number_of(*device);
  return block.mapped;
}

void* VulkanMemory::take_host(void* memory) {
  const std::lock_guard<std::mutex> guard(lock_);
  const auto found = host_blocks_.find(memory);
  if (found == host_blocks_.end()) return nullptr;
  const uintptr_t address = found->second;
  host_blocks_.erase(found);
  return reinterpret_cast<void*>(address);
}

void* VulkanMemory::allocate_pieces(size_t bytes, void** address, GpuError* error) {
  Block block;
  GpuError failed;
  *address = take(bytes, link_.facts().piece_type, true, &block, &failed);
  // Of the device's own memory the host may see a small part only.
  if (failed.fault == Fault::kOutOfMemory && link_.facts().piece_type != link_.facts().host_type) {
    block = {};
    failed = {};
    *address = take(bytes, link_.facts().host_type, true, &block, &failed);
  }
  if (failed) *error = failed;
  return *address == nullptr ? nullptr : block.mapped;
}

void VulkanMemory::free_later(void* address, uint64_t moment) {
  const std::lock_guard<std::mutex> guard(lock_);
  const auto found = blocks_.find(number_of(address));
  if (found == blocks_.end()) return;
  freed_.emplace(moment, found->second);
  blocks_.erase(found);
}

bool VulkanMemory::drop_freed(uint64_t before) {
  std::vector<Block> gone;
  {
    const std::lock_guard<std::mutex> guard(lock_);
    const auto end = freed_.lower_bound(before);
    for (auto entry = freed_.begin(); entry != end; ++entry) gone.push_back(entry->second);
    freed_.erase(freed_.begin(), end);
  }
  for (const Block& block : gone) drop(block);
  return !gone.empty();
}

GpuError VulkanMemory::failure() const {
  const std::lock_guard<std::mutex> guard(lock_);
  return failure_;
}

bool VulkanMemory::budget(MemoryBudget* out, GpuError* error) {
  if (!link_.is_well(error)) return false;
  VkPhysicalDeviceMemoryBudgetPropertiesEXT budget;
  VkPhysicalDeviceMemoryProperties2 memory;
  memory.pNext = link_.facts().has_budget ? &budget : nullptr;
  link_.instance().call.vkGetPhysicalDeviceMemoryProperties2(link_.physical(), &memory);
  const VkPhysicalDeviceMemoryProperties& all = memory.memoryProperties;
  const uint32_t heap = all.memoryTypes[link_.facts().device_type].heapIndex;
  out->total = static_cast<size_t>(all.memoryHeaps[heap].size);
  if (link_.facts().has_budget) {
    const uint64_t used = std::min(budget.heapUsage[heap], budget.heapBudget[heap]);
    out->free = static_cast<size_t>(budget.heapBudget[heap] - used);
    return true;
  }
  const std::lock_guard<std::mutex> guard(lock_);
  size_t used = 0;
  const auto count = [&](const Block& block) {
    if (all.memoryTypes[block.type].heapIndex == heap) used += block.bytes;
  };
  for (const auto& [address, block] : blocks_) count(block);
  for (const auto& [moment, block] : freed_) count(block);
  out->free = out->total - std::min(out->total, used);
  return true;
}

bool VulkanMemory::find(const void* address, size_t bytes, Place* out, GpuError* error) const {
  const std::lock_guard<std::mutex> guard(lock_);
  auto found = blocks_.upper_bound(number_of(address));
  if (found != blocks_.begin()) {
    --found;
    const size_t offset = number_of(address) - found->first;
    if (offset <= found->second.bytes && bytes <= found->second.bytes - offset) {
      *out = {found->second.buffer, offset + found->second.skipped};
      return true;
    }
  }
  *error = {Fault::kRefused, 0, std::to_string(bytes) + " bytes to copy do not lie in memory of " + link_.facts().name};
  return false;
}

void* VulkanMemory::mapped(const void* address) const {
  const std::lock_guard<std::mutex> guard(lock_);
  auto found = blocks_.upper_bound(number_of(address));
  if (found == blocks_.begin()) return nullptr;
  --found;
  char* const begin = static_cast<char*>(found->second.mapped);
  return begin == nullptr ? nullptr : begin + (number_of(address) - found->first);
}

}  // namespace edge_rt::gpu
