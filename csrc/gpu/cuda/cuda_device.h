// A GPU of NVIDIA's driver: its context, its kernels and copies to and from it. Shared by all sessions on it.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gpu/cuda/driver.h"
#include "gpu/gpu_device.h"

namespace edge_rt::gpu {

// Images of kernels by the name of their source.
using KernelImages = std::map<std::string, std::vector<char>>;
// What `set_kernels` was given for a GPU.
KernelImages kernel_images(int number);

struct GpuFunction {
  CUfunction function = nullptr;
  int threads = 0;
};

class CudaDevice : public GpuDevice, public std::enable_shared_from_this<CudaDevice> {
 public:
  static std::shared_ptr<CudaDevice> open(int number, DriverError* error);
  ~CudaDevice() override;
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  int number() const override { return number_; }
  Traits traits() const override { return {}; }
  void* allocate(size_t bytes, GpuError* error) override;
  void free(void* memory) override;
  void* allocate_host(size_t bytes, void** device, GpuError* error) override;
  void free_host(void* memory) override;
  GpuError failure() const override;
  bool budget(MemoryBudget* out, GpuError* error) override;
  bool settle(GpuError* error) override;
  bool copy(Way way, void* to, const void* from, size_t bytes, GpuError* error) override;
  bool copy_pieces(const std::vector<Piece>& pieces, GpuError* error) override;
  std::unique_ptr<GpuQueue> open_queue(GpuError* error) override;

  const Driver& driver() const { return *driver_; }
  // Makes it the calling thread's, which every call of the driver needs.
  bool enter(DriverError* error) const;
  bool find(const char* kernel, GpuFunction* out, DriverError* error);

  // Waits until a stream has done what it was given, but not for ever: a device that is silent for so long has hung,
  // and is not asked for anything any more.
  bool wait(CUstream stream, DriverError* error);
  static std::chrono::milliseconds longest_wait;
  bool has_hung() const { return has_hung_; }

  // Streams of queues.
  CUstream make_stream(DriverError* error);
  void destroy_stream(CUstream stream);

  // Around a pass of a stream: what other threads free meanwhile is given back behind it. The driver may wait for all
  // that runs before it gives memory back, and another model's pass may hang.
  void begin_pass(CUstream stream);
  void end_pass(CUstream stream);

  // What the calling thread starts on the stream until `end_capture` is recorded, not run. One thread at a time:
  // waiting for a stream that captures, which copies of other threads would do, ends the capture.
  bool begin_capture(CUstream stream, DriverError* error);
  bool end_capture(CUstream stream, CUgraph* out, DriverError* error);

 private:
  CudaDevice() = default;
  struct Freed {
    void* memory;
    bool is_of_host;
  };
  bool load(DriverError* error);
  void give_back(const Freed& freed);
  void drop(const Freed& freed);
  bool make_room();
  bool settle_all(std::unique_lock<std::mutex>* guard, DriverError* error);
  void copy_settled(Way way, void* to, const void* from, size_t bytes, DriverError* error);

  const Driver* driver_ = nullptr;
  int number_ = 0;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  CUstream copies_ = nullptr;
  mutable std::mutex failure_lock_;
  GpuError failure_;
  std::mutex lock_;
  std::vector<CUmodule> modules_;
  std::map<std::string, GpuFunction> functions_;
  std::set<CUstream> streams_;
  std::condition_variable captured_;
  bool is_capturing_ = false;
  std::thread::id capturer_;
  std::atomic<bool> has_hung_{false};
  std::mutex passes_lock_;
  std::map<CUstream, std::thread::id> passes_;  // that run, and whose they are
  std::vector<Freed> freed_;                    // and not given back yet
};

}  // namespace edge_rt::gpu
