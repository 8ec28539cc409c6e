// Work of a session on a stream of NVIDIA's driver; passes are recorded as graphs.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "gpu/cuda/cuda_device.h"

namespace edge_rt::gpu {

class CudaRecording : public Recording {
 public:
  explicit CudaRecording(std::shared_ptr<CudaDevice> device) : device_(std::move(device)) {}
  ~CudaRecording() override;
  CudaRecording(const CudaRecording&) = delete;
  CudaRecording& operator=(const CudaRecording&) = delete;

  // A graph copies from pinned memory, which is filled before it is replayed.
  struct Upload {
    void* pinned;
    const void* from;
    size_t bytes;
  };
  std::vector<Upload> uploads;
  CUgraphExec ready = nullptr;

 private:
  const std::shared_ptr<CudaDevice> device_;
};

class CudaQueue : public GpuQueue {
 public:
  // Takes the stream over.
  CudaQueue(std::shared_ptr<CudaDevice> device, CUstream stream) : device_(std::move(device)), stream_(stream) {}
  ~CudaQueue() override;
  CudaQueue(const CudaQueue&) = delete;
  CudaQueue& operator=(const CudaQueue&) = delete;

  bool begin(bool records, GpuError* error) override;
  bool upload(void* to, const void* from, size_t bytes, GpuError* error) override;
  bool launch(const Kernel& kernel, int grid_x, int grid_y, const void* args, size_t bytes, GpuError* error) override;
  bool end(std::unique_ptr<Recording>* out, GpuError* error) override;
  bool replay(const Recording& recording, GpuError* error) override;

 private:
  void end_recording(std::unique_ptr<Recording>* out, DriverError* error);

  const std::shared_ptr<CudaDevice> device_;
  const CUstream stream_;
  std::unique_ptr<CudaRecording> recording_;  // of the running pass, if that records
};

}  // namespace edge_rt::gpu
