// Memory of the host as memory of a device that shares it: VK_EXT_external_memory_host.
#include "gpu/vulkan/vulkan_memory.h"

namespace edge_rt::gpu {

using namespace vk;  // NOLINT: names of Vulkan's own

// Elsewhere kernels would read it through the bus. Drivers of GPUs pin pages as if they were written, also those that
// are only read: for pages of a file that cannot be written they tell so with the first work. A program on the CPU
// reads as the process does.
ImportRules VulkanMemory::import_rules() const {
  const VulkanFacts& facts = link_.facts();
  if (!facts.is_unified || facts.import_alignment == 0 || link_.host_pointer == nullptr) return {};
  return {facts.import_alignment, facts.largest, facts.type != VK_PHYSICAL_DEVICE_TYPE_CPU};
}

void* VulkanMemory::import(void* host, size_t bytes, GpuError* error) {
  Block block;
  uint64_t address = 0;
  if (!link_.is_well(error) || !make_import(host, bytes, &block, &address, error)) {
    drop(block);
    return nullptr;
  }
  keep(address, block);
  return reinterpret_cast<void*>(static_cast<uintptr_t>(address));
}

bool VulkanMemory::make_import(void* host, size_t bytes, Block* out, uint64_t* address, GpuError* error) {
  const VkDevice device = link_.handle();
  VkMemoryHostPointerPropertiesEXT kinds;
  if (!link_.keep(link_.host_pointer(device, VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT, host, &kinds),
                  "vkGetMemoryHostPointerPropertiesEXT", error)) {
    return false;
  }
  const VkExternalMemoryBufferCreateInfo external;
  VkBufferCreateInfo info;
  info.pNext = &external;
  info.size = bytes;
  info.usage = kBufferUsage;
  if (!link_.keep(link_.call.vkCreateBuffer(device, &info, nullptr, &out->buffer), "vkCreateBuffer", error)) {
    return false;
  }
  VkMemoryRequirements needs{};
  link_.call.vkGetBufferMemoryRequirements(device, out->buffer, &needs);
  const uint32_t types = kinds.memoryTypeBits & needs.memoryTypeBits;
  if (types == 0 || needs.size > bytes) {
    *error = {Fault::kRefused, 0, link_.facts().name + " takes no memory of the host as that of a buffer"};
    return false;
  }
  out->bytes = bytes;
  // The type of its own memory, if it is one of them.
  const uint32_t own = link_.facts().device_type;
  out->type = (types >> own & 1) != 0 ? own : static_cast<uint32_t>(__builtin_ctz(types));
  const VkMemoryAllocateFlagsInfo flags;
  VkImportMemoryHostPointerInfoEXT from;
  from.pNext = &flags;
  from.pHostPointer = host;
  VkMemoryAllocateInfo wanted;
  wanted.pNext = &from;
  wanted.allocationSize = bytes;
  wanted.memoryTypeIndex = out->type;
  if (!link_.keep(link_.call.vkAllocateMemory(device, &wanted, nullptr, &out->memory), "vkAllocateMemory", error) ||
      !link_.keep(link_.call.vkBindBufferMemory(device, out->buffer, out->memory, 0), "vkBindBufferMemory", error) ||
      !find_address(out->buffer, address, error)) {
    return false;
  }
  if (*address % kAlignment == 0) return true;
  *error = {Fault::kRefused, 0, link_.facts().name + " moves memory of the host against its pages"};
  return false;
}

}  // namespace edge_rt::gpu
