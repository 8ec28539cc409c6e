// Kernels of tests on a GPU by way of its driver: the program's memory lies where the GPU reads it (gpu_pinned_heap.h),
// and arguments get the addresses that kernels know it by.
#pragma once

#include <cstddef>
#include <memory>
#include <set>
#include <string>

#include "gpu/gpu_device.h"

namespace edge_rt::gpu {

constexpr size_t kHeapBytes = size_t{256} << 20;
// Where a driver in software compiles kernels in the same process, with `new`.
constexpr size_t kLargeHeapBytes = size_t{2} << 30;

// Starts kernels on a queue, and waits for each. Kernels of tests/gpu/held.py say when they reach for memory that
// nobody holds: that is a failure.
class DeviceLauncher : public Launcher {
 public:
  // Opens GPU 0 with kernels out of files, which are named as what they hold, or of all SPIR-V (*.spv) in a folder; and
  // begins the heap. nullptr: it says why. It is never destroyed: the program ends by end_program().
  static DeviceLauncher* open(int count, const char* const* paths, size_t heap_bytes);
  // The same for a program that takes a folder of kernels, and maybe "all": whether it does. nullptr: it says why.
  static DeviceLauncher* open_for_cases(int argc, char** argv, bool* all);

  Traits traits() const override { return device_->traits(); }
  using Launcher::launch;
  bool launch(const Kernel& kernel, int grid_x, int grid_y, const void* args, size_t bytes) override;

  // From now on kernels of which there is no SPIR-V are not started, and count as missing.
  void skip_missing() { skips_missing_ = true; }
  // Whether a kernel was missing since the last time.
  bool take_missing() {
    const bool was_missing = is_missing_;
    is_missing_ = false;
    return was_missing;
  }
  const GpuDevice& device() const { return *device_; }

 private:
  DeviceLauncher() = default;
  struct HeldArgs;
  bool hand_over(const std::string& path);
  bool find_stray(const char* kernel);

  std::set<std::string> kernels_, looked_at_;
  std::shared_ptr<GpuDevice> device_;
  std::unique_ptr<GpuQueue> queue_;
  void *pages_ = nullptr, *on_device_ = nullptr;
  size_t heap_bytes_ = 0;
  bool skips_missing_ = false, is_missing_ = false;
  bool asks_for_held_ = false;
  uint32_t* held_ = nullptr;  // what kernels report, and the bits of the heap
  void* held_on_device_ = nullptr;
};

// No return: the driver takes the heap back with the device, and what is destroyed behind that would lie in it.
[[noreturn]] void end_program(int code);

}  // namespace edge_rt::gpu
