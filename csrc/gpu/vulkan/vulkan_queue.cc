#include "gpu/vulkan/vulkan_queue.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

namespace edge_rt::gpu {
namespace {

using namespace vk;  // NOLINT: names of Vulkan's own

constexpr size_t kChunk = 256 << 10, kPiece = 256;
constexpr uint64_t kFewestBlocks = 64, kMostBlocks = uint64_t{1} << 30;

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

HostPieces::~HostPieces() {
  for (const Chunk& chunk : chunks_) device_.free_host(chunk.memory);
}

void* HostPieces::take(size_t bytes, void** address, GpuError* error) {
  const size_t wanted = (std::max<size_t>(bytes, 1) + kPiece - 1) / kPiece * kPiece;
  while (chunk_ < chunks_.size() && chunks_[chunk_].bytes - used_ < wanted) {
    ++chunk_;
    used_ = 0;
  }
  if (chunk_ == chunks_.size()) {
    Chunk made{nullptr, nullptr, std::max(wanted, kChunk)};
    made.memory = device_.allocate_host(made.bytes, &made.address, error);
    if (made.memory == nullptr) return nullptr;
    chunks_.push_back(made);
    used_ = 0;
  }
  const Chunk& chunk = chunks_[chunk_];
  *address = static_cast<char*>(chunk.address) + used_;
  void* const piece = static_cast<char*>(chunk.memory) + used_;
  used_ += wanted;
  return piece;
}

void HostPieces::clear() { chunk_ = used_ = 0; }

Commands::~Commands() {
  const DeviceFunctions& call = device_.call;
  if (pool_ != VkCommandPool{}) call.vkDestroyCommandPool(device_.handle(), pool_, nullptr);
  if (fence_ != VkFence{}) call.vkDestroyFence(device_.handle(), fence_, nullptr);
}

bool Commands::begin(bool is_kept, GpuError* error) {
  const DeviceFunctions& call = device_.call;
  if (pool_ == VkCommandPool{}) {
    VkCommandPoolCreateInfo info;
    info.queueFamilyIndex = device_.facts().family;
    if (!keep_result(call.vkCreateCommandPool(device_.handle(), &info, nullptr, &pool_), "vkCreateCommandPool",
                     error)) {
      return false;
    }
  } else if (!keep_result(call.vkResetCommandPool(device_.handle(), pool_, 0), "vkResetCommandPool", error)) {
    return false;
  }
  if (fence_ == VkFence{}) {
    const VkFenceCreateInfo info;
    if (!keep_result(call.vkCreateFence(device_.handle(), &info, nullptr, &fence_), "vkCreateFence", error)) {
      return false;
    }
  }
  pieces_.clear();
  uploads_.clear();
  count_ = sent_ = 0;
  blocks_ = 0;
  is_open_ = false;
  is_kept_ = is_kept;
  return true;
}

VkCommandBuffer Commands::open(GpuError* error) {
  if (is_open_) return buffers_[count_ - 1];
  const DeviceFunctions& call = device_.call;
  if (count_ == buffers_.size()) {
    VkCommandBufferAllocateInfo info;
    info.commandPool = pool_;
    VkCommandBuffer made = nullptr;
    if (!keep_result(call.vkAllocateCommandBuffers(device_.handle(), &info, &made), "vkAllocateCommandBuffers",
                     error)) {
      return nullptr;
    }
    buffers_.push_back(made);
  }
  VkCommandBufferBeginInfo info;
  info.flags = is_kept_ ? 0 : VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT;
  if (!keep_result(call.vkBeginCommandBuffer(buffers_[count_], &info), "vkBeginCommandBuffer", error)) return nullptr;
  is_open_ = true;
  blocks_ = 0;
  return buffers_[count_++];
}

bool Commands::close(GpuError* error) {
  if (!is_open_) return true;
  is_open_ = false;
  return keep_result(device_.call.vkEndCommandBuffer(buffers_[count_ - 1]), "vkEndCommandBuffer", error);
}

// All that was started before is done, and seen, before anything behind begins. Validation layers know nothing of
// hazards through addresses, so there is no finer order to check.
void Commands::order(VkCommandBuffer buffer) const {
  constexpr VkFlags kStages =
      VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT | VK_PIPELINE_STAGE_HOST_BIT;
  VkMemoryBarrier barrier;
  barrier.srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT;
  barrier.dstAccessMask = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_READ_BIT |
                          VK_ACCESS_TRANSFER_WRITE_BIT | VK_ACCESS_HOST_READ_BIT;
  device_.call.vkCmdPipelineBarrier(buffer, kStages & ~VK_PIPELINE_STAGE_HOST_BIT, kStages, 0, 1, &barrier, 0, nullptr,
                                    0, nullptr);
}

bool Commands::launch(VkPipeline pipeline, uint32_t grid_x, uint32_t grid_y, const void* args, size_t bytes,
                      uint64_t most_blocks, GpuError* error) {
  void* address = nullptr;
  void* const copy = pieces_.take(bytes, &address, error);
  if (copy == nullptr) return false;
  std::memcpy(copy, args, bytes);
  const auto pushed = static_cast<VkDeviceAddress>(reinterpret_cast<uintptr_t>(address));
  const DeviceFunctions& call = device_.call;
  // Divided along the longer side of the grid; parts of one launch are in no order.
  const bool is_wide = grid_x >= grid_y;
  const uint64_t across = is_wide ? grid_y : grid_x, along = is_wide ? grid_x : grid_y;
  const uint64_t step = std::max<uint64_t>(1, most_blocks / across);
  for (uint64_t at = 0; at < along; at += step) {
    const auto first = static_cast<uint32_t>(at), count = static_cast<uint32_t>(std::min(step, along - at));
    if (is_open_ && blocks_ + count * across > most_blocks && !close(error)) return false;
    const VkCommandBuffer buffer = open(error);
    if (buffer == nullptr) return false;
    call.vkCmdBindPipeline(buffer, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
    call.vkCmdPushConstants(buffer, device_.layout(), VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof pushed, &pushed);
    call.vkCmdDispatchBase(buffer, is_wide ? first : 0, is_wide ? 0 : first, 0, is_wide ? count : grid_x,
                           is_wide ? grid_y : count, 1);
    blocks_ += count * across;
    order(buffer);
  }
  return true;
}

bool Commands::upload(void* to, const void* from, size_t bytes, GpuError* error) {
  VulkanDevice::Place source, target;
  void* address = nullptr;
  void* const staged = pieces_.take(bytes, &address, error);
  if (staged == nullptr || !device_.find(address, bytes, &source, error) || !device_.find(to, bytes, &target, error)) {
    return false;
  }
  std::memcpy(staged, from, bytes);
  if (is_kept_) uploads_.push_back({staged, from, bytes});
  return copy(source, target, bytes, error);
}

bool Commands::copy(const VulkanDevice::Place& from, const VulkanDevice::Place& to, size_t bytes, GpuError* error) {
  const VkCommandBuffer buffer = open(error);
  if (buffer == nullptr) return false;
  const VkBufferCopy region{from.offset, to.offset, bytes};
  device_.call.vkCmdCopyBuffer(buffer, from.buffer, to.buffer, 1, &region);
  order(buffer);
  return true;
}

bool Commands::run(double* seconds, GpuError* error) {
  const size_t first = sent_;
  const bool is_whole = close(error);
  sent_ = count_;
  return is_whole && submit(first, seconds, error);
}

bool Commands::run_again(double* seconds, GpuError* error) {
  for (const Upload& upload : uploads_) std::memcpy(upload.staged, upload.from, upload.bytes);
  return submit(0, seconds, error);
}

bool Commands::submit(size_t first, double* seconds, GpuError* error) {
  *seconds = 0;
  if (first == count_) return true;
  const double begin = seconds_now();
  const std::vector<VkCommandBuffer> buffers(buffers_.begin() + static_cast<std::ptrdiff_t>(first),
                                             buffers_.begin() + static_cast<std::ptrdiff_t>(count_));
  if (!keep_result(device_.call.vkResetFences(device_.handle(), 1, &fence_), "vkResetFences", error) ||
      !device_.submit(buffers, fence_, error) || !device_.wait(fence_, buffers.size(), error)) {
    return false;
  }
  *seconds = (seconds_now() - begin) / static_cast<double>(buffers.size());
  return true;
}

VulkanQueue::VulkanQueue(std::shared_ptr<VulkanDevice> device) : device_(std::move(device)), once_(device_.get()) {}

VulkanQueue::~VulkanQueue() { device_->forget(this); }

bool VulkanQueue::begin(bool records, GpuError* error) {
  const std::lock_guard<std::mutex> guard(lock_);
  if (!records) return once_.begin(false, error);
  auto made = std::make_unique<Commands>(device_.get());
  if (!made->begin(true, error)) return false;
  recording_ = std::move(made);
  recorder_ = std::this_thread::get_id();
  return true;
}

bool VulkanQueue::upload(void* to, const void* from, size_t bytes, GpuError* error) {
  const std::lock_guard<std::mutex> guard(lock_);
  return running()->upload(to, from, bytes, error);
}

bool VulkanQueue::launch(const Kernel& kernel, int grid_x, int grid_y, const void* args, size_t bytes,
                         GpuError* error) {
  const auto x = static_cast<uint32_t>(grid_x), y = static_cast<uint32_t>(grid_y);
  if (grid_x < 1 || grid_y < 1 || x > device_->facts().grid[0] || y > device_->facts().grid[1]) {
    *error = {Fault::kRefused, 0,
              std::string(kernel.name) + " has a grid of " + std::to_string(grid_x) + " x " + std::to_string(grid_y) +
                  " blocks, the device allows " + std::to_string(device_->facts().grid[0]) + " x " +
                  std::to_string(device_->facts().grid[1])};
    return false;
  }
  VkPipeline pipeline = {};
  if (!device_->find(kernel, &pipeline, error)) return false;
  const std::lock_guard<std::mutex> guard(lock_);
  return running()->launch(pipeline, x, y, args, bytes, most_blocks_, error);
}

bool VulkanQueue::run(Commands* commands, GpuError* error) {
  double seconds = 0;
  if (!commands->run(&seconds, error)) return false;
  learn(seconds);
  return true;
}

// A command buffer is to take a fifth of the limit: they are not all alike.
void VulkanQueue::learn(double seconds) {
  if (seconds > kLongestSubmit / 5) most_blocks_ = std::max(most_blocks_ / 2, kFewestBlocks);
  if (seconds > 0 && seconds < kLongestSubmit / 20) most_blocks_ = std::min(most_blocks_ * 2, kMostBlocks);
}

bool VulkanQueue::end(std::unique_ptr<Recording>* out, GpuError* error) {
  const std::lock_guard<std::mutex> guard(lock_);
  if (recording_ == nullptr) return run(&once_, error);
  std::unique_ptr<Commands> recorded = std::move(recording_);
  if (out == nullptr) return true;
  if (!run(recorded.get(), error)) return false;
  *out = std::make_unique<VulkanRecording>(device_, std::move(recorded));
  return true;
}

bool VulkanQueue::replay(const Recording& recording, GpuError* error) {
  const std::lock_guard<std::mutex> guard(lock_);
  double seconds = 0;
  return static_cast<const VulkanRecording&>(recording).commands->run_again(&seconds, error);
}

bool VulkanQueue::settle(GpuError* error) {
  const std::lock_guard<std::mutex> guard(lock_);
  if (recording_ == nullptr) return run(&once_, error);
  if (recorder_ != std::this_thread::get_id()) return true;
  *error = {Fault::kRefused, 0, "a pass with copies between host and device cannot be recorded"};
  return false;
}

}  // namespace edge_rt::gpu
