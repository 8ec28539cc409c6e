// Work of a session on a GPU of Vulkan. What a pass starts is a list of commands first; a recorded pass keeps it.
//
// Phones and desktops end programs whose work holds the GPU for long, so commands are handed over in parts that take no
// longer than VulkanLimits::submit, by what a block of each kernel has taken before. A kernel that is new runs alone, a
// few blocks first; larger launches are divided; what a part took corrects what is known of its kernels.
#pragma once

#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "gpu/vulkan/vulkan_commands.h"
#include "gpu/vulkan/vulkan_device.h"

namespace edge_rt::gpu {

class VulkanRecording : public Recording {
 public:
  explicit VulkanRecording(std::shared_ptr<VulkanDevice> device) : device_(std::move(device)), buffers(device_.get()) {}

 private:
  const std::shared_ptr<VulkanDevice> device_;

 public:
  struct Upload {
    void* piece;
    const void* from;
    size_t bytes;
  };
  // What its kernels were given, and where that lies among the queue's pieces.
  struct Arguments {
    void* piece;
    size_t first, bytes;  // of `given`
  };
  CommandBuffers buffers;
  std::vector<Command> commands;
  std::vector<uint8_t> given;
  std::vector<Arguments> arguments;
  std::vector<Upload> uploads;
  bool is_cut = false;  // all commands are in the buffers
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

  // Runs what the pass has started so far, by any thread; a pass that records has started nothing. An error of the part
  // is the pass's, and that of whose thread began it, not of others.
  bool settle(GpuError* error);

 private:
  bool start(const Command& command, GpuError* error);
  bool flush(GpuError* error);
  bool fill(VulkanRecording* recording, GpuError* error);
  bool run(VulkanRecording* recording, GpuError* error);

  void begin_on_device();
  void end_on_device();

  const std::shared_ptr<VulkanDevice> device_;
  std::mutex lock_;     // other threads may settle
  uint64_t begun_ = 0;  // what the device said when the pass began; 0: none runs
  HostPieces pieces_;
  CommandBuffers buffers_;
  std::vector<Command> commands_;               // that were not handed over yet
  Nanoseconds expected_{0};                     // that they take
  GpuError failed_;                             // of the running pass: whoever ran a part of it may not tell
  std::unique_ptr<VulkanRecording> recording_;  // of the running pass, if that records
  std::thread::id owner_;                       // the thread that began the pass
};

}  // namespace edge_rt::gpu
