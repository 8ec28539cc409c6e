// Work of a session on a GPU of Vulkan. A pass is a few command buffers, one behind the other, which are submitted
// together; a recorded pass keeps them.
//
// Phones and desktops end programs whose work holds the GPU for long, so a command buffer ends where it has so many
// blocks of threads that it takes about a fifth of kLongestSubmit, as measured of the passes before; larger launches
// are divided between several.
#pragma once

#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "gpu/vulkan/vulkan_device.h"

namespace edge_rt::gpu {

constexpr double kLongestSubmit = 0.1;  // seconds

// Memory of the host that kernels and copies read, taken piece by piece and given back together.
class HostPieces {
 public:
  explicit HostPieces(VulkanDevice* device) : device_(*device) {}
  ~HostPieces();
  HostPieces(const HostPieces&) = delete;
  HostPieces& operator=(const HostPieces&) = delete;

  // nullptr: there is no memory. `address` is that for kernels.
  void* take(size_t bytes, void** address, GpuError* error);
  void clear();

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

// Command buffers, and what they read of the host.
class Commands {
 public:
  explicit Commands(VulkanDevice* device) : device_(*device), pieces_(device) {}
  ~Commands();
  Commands(const Commands&) = delete;
  Commands& operator=(const Commands&) = delete;

  // Forgets all that was recorded; nothing of it may be under way.
  bool begin(bool is_kept, GpuError* error);
  // A command buffer holds at most so many blocks.
  bool launch(vk::VkPipeline pipeline, uint32_t grid_x, uint32_t grid_y, const void* args, size_t bytes,
              uint64_t most_blocks, GpuError* error);
  bool upload(void* to, const void* from, size_t bytes, GpuError* error);
  bool copy(const VulkanDevice::Place& from, const VulkanDevice::Place& to, size_t bytes, GpuError* error);
  // Submits what was recorded since the last time, and waits for it. `seconds` gets how long a command buffer took.
  bool run(double* seconds, GpuError* error);
  // Submits all of it again, with uploads as they are now.
  bool run_again(double* seconds, GpuError* error);
  HostPieces& pieces() { return pieces_; }

 private:
  struct Upload {
    void* staged;
    const void* from;
    size_t bytes;
  };
  // An open command buffer.
  vk::VkCommandBuffer open(GpuError* error);
  bool close(GpuError* error);
  void order(vk::VkCommandBuffer buffer) const;
  bool submit(size_t first, double* seconds, GpuError* error);

  VulkanDevice& device_;
  HostPieces pieces_;
  std::vector<Upload> uploads_;
  vk::VkCommandPool pool_ = {};
  vk::VkFence fence_ = {};
  std::vector<vk::VkCommandBuffer> buffers_;  // of the pool; the first `count_` are recorded
  size_t count_ = 0, sent_ = 0;
  bool is_open_ = false, is_kept_ = false;
  uint64_t blocks_ = 0;  // in the open one
};

class VulkanRecording : public Recording {
 public:
  VulkanRecording(std::shared_ptr<VulkanDevice> device, std::unique_ptr<Commands> commands)
      : device_(std::move(device)), commands(std::move(commands)) {}

 private:
  const std::shared_ptr<VulkanDevice> device_;

 public:
  const std::unique_ptr<Commands> commands;
};

class VulkanQueue : public GpuQueue {
 public:
  explicit VulkanQueue(std::shared_ptr<VulkanDevice> device);
  ~VulkanQueue() override;
  VulkanQueue(const VulkanQueue&) = delete;
  VulkanQueue& operator=(const VulkanQueue&) = delete;

  bool begin(bool records, GpuError* error) override;
  bool upload(void* to, const void* from, size_t bytes, GpuError* error) override;
  bool launch(const Kernel& kernel, int grid_x, int grid_y, const void* args, size_t bytes, GpuError* error) override;
  bool end(std::unique_ptr<Recording>* out, GpuError* error) override;
  bool replay(const Recording& recording, GpuError* error) override;

  // Runs what the pass has started so far; a pass that records has started nothing.
  bool settle(GpuError* error);

 private:
  Commands* running() { return recording_ != nullptr ? recording_.get() : &once_; }
  bool run(Commands* commands, GpuError* error);
  void learn(double seconds);

  const std::shared_ptr<VulkanDevice> device_;
  std::mutex lock_;  // other threads may settle
  Commands once_;
  std::unique_ptr<Commands> recording_;  // of the running pass, if that records
  std::thread::id recorder_;
  uint64_t most_blocks_ = 1 << 14;
};

}  // namespace edge_rt::gpu
