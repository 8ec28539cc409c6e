// What a Vulkan device is given to do: kernels and copies in order, in command buffers.
#pragma once

#include <chrono>
#include <vector>

#include "gpu/vulkan/vulkan_device.h"

namespace edge_rt::gpu {

using Nanoseconds = std::chrono::nanoseconds;

// A part of a kernel's grid, or a copy where there is no kernel.
struct Command {
  VulkanPipeline* pipeline = nullptr;
  uint32_t first_x = 0, first_y = 0, grid_x = 0, grid_y = 0;
  uint64_t args = 0;  // their address
  VulkanMemory::Place from, to;
  size_t bytes = 0;
  bool is_independent = false;  // of the command before: another part of the same grid

  double blocks() const { return static_cast<double>(grid_x) * static_cast<double>(grid_y); }
  // By what a block of the kernel took before; `is_known`: there was one.
  Nanoseconds expected() const;
  bool is_known() const { return pipeline == nullptr || pipeline->nanoseconds_of_block > 0; }
};

// The side of the cells that a grid lies in (kernel.glsl); 0: the device starts it at once. There are at most
// kCells in each direction.
uint32_t cell_of(uint32_t x, uint32_t y, const VulkanFacts& facts);
constexpr uint64_t kCells = 255;

// Cuts a grid in two if it lies in several cells, or has more than so many blocks: whole lines of it, or a part of one
// line. False: it is as it has to be, or a single block.
bool divide(const Command& whole, double most_blocks, Command* first, Command* rest);

// Corrects what is known of the kernels of commands by how long these took together.
void learn(const std::vector<Command>& commands, Nanoseconds took);

// Memory of the host that kernels and copies of a pass read. Every pass lays its pieces out from the beginning, so that
// all passes of a queue share it; what a recorded one had there is written again before it is replayed.
class HostPieces {
 public:
  explicit HostPieces(VulkanDevice* device) : device_(*device) {}
  ~HostPieces();
  HostPieces(const HostPieces&) = delete;
  HostPieces& operator=(const HostPieces&) = delete;

  // Copies `bytes` into the next piece; nullptr: there is no memory. `address` is that for kernels.
  void* add(const void* from, size_t bytes, void** address, GpuError* error);
  void clear() { chunk_ = used_ = 0; }

 private:
  struct Chunk {
    void* memory;
    void* address;
    size_t bytes;
  };
  VulkanDevice& device_;
  std::vector<Chunk> chunks_;
  size_t chunk_ = 0, used_ = 0;
};

// Command buffers that run together, one behind the other, each handed over by itself.
class CommandBuffers {
 public:
  explicit CommandBuffers(VulkanDevice* device) : device_(*device) {}
  ~CommandBuffers();
  CommandBuffers(const CommandBuffers&) = delete;
  CommandBuffers& operator=(const CommandBuffers&) = delete;

  // Forgets what was filled; nothing of it may be under way.
  bool reset(GpuError* error);
  // Fills another buffer.
  bool add(const Command* begin, const Command* end, GpuError* error);
  size_t count() const { return count_; }
  // Runs all that were filled since `reset`, as often as one likes, and waits.
  bool run(Nanoseconds* took, GpuError* error);

 private:
  void order(vk::VkCommandBuffer buffer) const;

  VulkanDevice& device_;
  vk::VkCommandPool pool_ = {};
  vk::VkFence fence_ = {};
  std::vector<vk::VkCommandBuffer> buffers_;  // of the pool; the first `count_` are filled
  size_t count_ = 0;
};

}  // namespace edge_rt::gpu
