#include "gpu/vulkan/vulkan_commands.h"

#include <algorithm>
#include <cstring>

namespace edge_rt::gpu {
namespace {

using namespace vk;  // NOLINT: names of Vulkan's own

constexpr size_t kChunk = 64 << 10, kPiece = 64;  // `gpu_terms.py` counts them
constexpr Nanoseconds kCopy{1000};                // uploads of passes are small

// As kernel.glsl takes it apart.
uint32_t number_of_cell(uint32_t x, uint32_t y) { return y << 8 | x; }

}  // namespace

Nanoseconds Command::expected() const {
  if (pipeline == nullptr) return kCopy;
  return Nanoseconds{static_cast<int64_t>(std::min(blocks() * pipeline->nanoseconds_of_block, 1e15))};
}

uint32_t cell_of(uint32_t x, uint32_t y, const VulkanFacts& facts) {
  return x <= facts.grid[0] && y <= facts.grid[1] ? 0 : std::min(facts.grid[0], facts.grid[1]);
}

bool divide(const Command& whole, double most_blocks, Command* first, Command* rest) {
  const uint32_t cell = whole.pipeline == nullptr ? 0 : whole.pipeline->cell;
  const uint32_t to_x = cell == 0 ? whole.grid_x : cell - whole.first_x % cell;
  const uint32_t to_y = cell == 0 ? whole.grid_y : cell - whole.first_y % cell;
  bool is_along_x = to_x < whole.grid_x;
  uint32_t count = is_along_x ? to_x : to_y;
  if (!is_along_x && to_y >= whole.grid_y) {
    if (whole.pipeline == nullptr || whole.blocks() <= std::max(1.0, most_blocks)) return false;
    is_along_x = whole.grid_x >= whole.grid_y;
    const uint32_t across = is_along_x ? whole.grid_y : whole.grid_x;
    count = static_cast<uint32_t>(std::max(1.0, most_blocks / across));
  }
  *first = *rest = whole;
  (is_along_x ? first->grid_x : first->grid_y) = count;
  (is_along_x ? rest->grid_x : rest->grid_y) -= count;
  (is_along_x ? rest->first_x : rest->first_y) += count;
  rest->is_independent = true;
  return true;
}

void learn(const std::vector<Command>& commands, Nanoseconds took) {
  Nanoseconds expected{0};
  bool are_known = true;
  double blocks = 0;
  for (const Command& command : commands) {
    expected += command.expected();
    are_known = are_known && command.is_known();
    blocks += command.blocks();
  }
  const auto all = static_cast<double>(std::max<int64_t>(took.count(), 1));
  const double factor = all / static_cast<double>(std::max<int64_t>(expected.count(), 1));
  std::vector<VulkanPipeline*> corrected;  // a kernel may be there many times
  for (const Command& command : commands) {
    VulkanPipeline* const pipeline = command.pipeline;
    if (pipeline == nullptr || std::count(corrected.begin(), corrected.end(), pipeline) > 0) continue;
    corrected.push_back(pipeline);
    const double before = pipeline->nanoseconds_of_block;
    pipeline->nanoseconds_of_block = are_known ? before * factor : before > 0 ? before : all / blocks;
  }
}

HostPieces::~HostPieces() {
  for (const Chunk& chunk : chunks_) device_.memory().free(chunk.address);
}

void* HostPieces::add(const void* from, size_t bytes, void** address, GpuError* error) {
  const size_t wanted = (std::max<size_t>(bytes, 1) + kPiece - 1) / kPiece * kPiece;
  while (chunk_ < chunks_.size() && chunks_[chunk_].bytes - used_ < wanted) {
    ++chunk_;
    used_ = 0;
  }
  if (chunk_ == chunks_.size()) {
    Chunk made{nullptr, nullptr, std::max(wanted, kChunk)};
    made.memory = device_.memory().allocate_pieces(made.bytes, &made.address, error);
    if (made.memory == nullptr) return nullptr;
    chunks_.push_back(made);
    used_ = 0;
  }
  const Chunk& chunk = chunks_[chunk_];
  *address = static_cast<char*>(chunk.address) + used_;
  void* const piece = static_cast<char*>(chunk.memory) + used_;
  used_ += wanted;
  if (bytes > 0) std::memcpy(piece, from, bytes);
  return piece;
}

CommandBuffers::~CommandBuffers() {
  const DeviceFunctions& call = device_.link().call;
  if (device_.link().has_hung()) return;
  if (pool_ != VkCommandPool{}) call.vkDestroyCommandPool(device_.link().handle(), pool_, nullptr);
  if (fence_ != VkFence{}) call.vkDestroyFence(device_.link().handle(), fence_, nullptr);
}

bool CommandBuffers::reset(GpuError* error) {
  const DeviceFunctions& call = device_.link().call;
  if (!device_.link().is_well(error)) return false;
  count_ = 0;
  if (fence_ == VkFence{}) {
    const VkFenceCreateInfo info;
    if (!keep_result(call.vkCreateFence(device_.link().handle(), &info, nullptr, &fence_), "vkCreateFence", error)) {
      return false;
    }
  }
  if (pool_ != VkCommandPool{}) {
    return keep_result(call.vkResetCommandPool(device_.link().handle(), pool_, 0), "vkResetCommandPool", error);
  }
  VkCommandPoolCreateInfo info;
  info.queueFamilyIndex = device_.link().facts().family;
  return keep_result(call.vkCreateCommandPool(device_.link().handle(), &info, nullptr, &pool_), "vkCreateCommandPool",
                     error);
}

// All that was started before is done, and seen, before anything behind begins. Validation layers know nothing of
// hazards through addresses, so there is no finer order to check.
void CommandBuffers::order(VkCommandBuffer buffer) const {
  constexpr VkFlags kStages = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT;
  VkMemoryBarrier barrier;
  barrier.srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT;
  barrier.dstAccessMask = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_READ_BIT |
                          VK_ACCESS_TRANSFER_WRITE_BIT | VK_ACCESS_HOST_READ_BIT;
  device_.link().call.vkCmdPipelineBarrier(buffer, kStages, kStages | VK_PIPELINE_STAGE_HOST_BIT, 0, 1, &barrier, 0,
                                           nullptr, 0, nullptr);
}

bool CommandBuffers::add(const Command* begin, const Command* end, GpuError* error) {
  const DeviceFunctions& call = device_.link().call;
  if (count_ == buffers_.size()) {
    VkCommandBufferAllocateInfo info;
    info.commandPool = pool_;
    VkCommandBuffer made = nullptr;
    if (!keep_result(call.vkAllocateCommandBuffers(device_.link().handle(), &info, &made), "vkAllocateCommandBuffers",
                     error)) {
      return false;
    }
    buffers_.push_back(made);
  }
  const VkCommandBuffer buffer = buffers_[count_];
  VkCommandBufferBeginInfo info;
  info.flags = 0;  // it may run again
  if (!keep_result(call.vkBeginCommandBuffer(buffer, &info), "vkBeginCommandBuffer", error)) return false;
  VkPipeline bound = {};
  for (const Command* command = begin; command != end; ++command) {
    if (command != begin && !command->is_independent) order(buffer);
    if (command->pipeline == nullptr) {
      const VkBufferCopy region{command->from.offset, command->to.offset, command->bytes};
      call.vkCmdCopyBuffer(buffer, command->from.buffer, command->to.buffer, 1, &region);
      continue;
    }
    if (command->pipeline->handle != bound) {
      bound = command->pipeline->handle;
      call.vkCmdBindPipeline(buffer, VK_PIPELINE_BIND_POINT_COMPUTE, bound);
    }
    call.vkCmdPushConstants(buffer, device_.link().layout(), VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof command->args,
                            &command->args);
    const uint32_t cell = command->pipeline->cell;
    const uint32_t x = cell == 0 ? 0 : command->first_x / cell, y = cell == 0 ? 0 : command->first_y / cell;
    call.vkCmdDispatchBase(buffer, command->first_x - x * cell, command->first_y - y * cell, number_of_cell(x, y),
                           command->grid_x, command->grid_y, 1);
  }
  // What comes behind, in other buffers, too, and the host see all of it.
  order(buffer);
  if (!keep_result(call.vkEndCommandBuffer(buffer), "vkEndCommandBuffer", error)) return false;
  ++count_;
  return true;
}

bool CommandBuffers::run(Nanoseconds* took, GpuError* error) {
  if (count_ == 0) return true;
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<VkCommandBuffer> filled(buffers_.begin(), buffers_.begin() + static_cast<std::ptrdiff_t>(count_));
  const bool is_done = device_.run(filled, fence_, error);
  *took += std::chrono::steady_clock::now() - begin;
  return is_done;
}

}  // namespace edge_rt::gpu
