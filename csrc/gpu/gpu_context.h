// One GPU of this machine, opened: its context, its kernels and copies to and from it. Shared by all sessions on it.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gpu/driver.h"

namespace edge_rt::gpu {

constexpr int kOldestCompute = 75;  // 10 * major + minor: integer products by tensor cores

struct GpuFacts {
  std::string name;
  int compute = 0;  // 10 * major + minor
  size_t bytes = 0;
  bool is_integrated = false;
};

// What can be asked without opening it.
bool read_facts(const Driver& driver, int number, GpuFacts* out, DriverError* error);

// Kernels compiled for the GPU of a number, out of a source file of that name; a GPU that is opened from now on has
// them.
void set_kernels(int number, const std::string& source, const void* image, size_t bytes);

struct GpuFunction {
  CUfunction function = nullptr;
  int threads = 0;
};

class GpuContext {
 public:
  // The same one for all who ask while somebody holds it; nullptr on failure.
  static std::shared_ptr<GpuContext> open(int number, DriverError* error);
  ~GpuContext();
  GpuContext(const GpuContext&) = delete;
  GpuContext& operator=(const GpuContext&) = delete;

  const Driver& driver() const { return *driver_; }
  int number() const { return number_; }
  // Makes it the calling thread's, which every call of the driver below needs.
  bool enter(DriverError* error) const;
  bool find(const char* kernel, GpuFunction* out, DriverError* error);

  // 0: there is none.
  CUdeviceptr allocate(size_t bytes, DriverError* error) const;
  // Why the last allocation failed, if that was for anything but too little memory: a device that is lost, for example.
  DriverError failure() const;
  void free(CUdeviceptr memory) const;

  // Waits until all streams have done what they were given.
  bool settle(DriverError* error);
  // Copies when all streams have done what they were given, and returns when it is done. Not by a thread that captures.
  enum class Way { kToDevice, kToHost, kOnDevice };
  bool copy(Way way, void* to, const void* from, size_t bytes, DriverError* error);

  // Streams of sessions.
  CUstream make_stream(DriverError* error);
  void destroy_stream(CUstream stream);

  // What the calling thread starts on the stream until `end_capture` is recorded, not run. One thread at a time:
  // waiting for a stream that captures, which copies of other threads would do, ends the capture.
  bool begin_capture(CUstream stream, DriverError* error);
  bool end_capture(CUstream stream, CUgraph* out, DriverError* error);

 private:
  GpuContext() = default;
  bool load(DriverError* error);
  bool settle_all(std::unique_lock<std::mutex>* guard, DriverError* error);

  const Driver* driver_ = nullptr;
  int number_ = 0;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  CUstream copies_ = nullptr;
  mutable std::mutex failure_lock_;
  mutable DriverError failure_;
  std::mutex lock_;
  std::vector<CUmodule> modules_;
  std::map<std::string, GpuFunction> functions_;
  std::set<CUstream> streams_;
  std::condition_variable captured_;
  bool is_capturing_ = false;
  std::thread::id capturer_;
};

}  // namespace edge_rt::gpu
