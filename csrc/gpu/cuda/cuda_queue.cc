#include "gpu/cuda/cuda_queue.h"

#include <cstring>
#include <utility>

namespace edge_rt::gpu {

CudaRecording::~CudaRecording() {
  DriverError ignored;
  if (!device_->enter(&ignored) && device_->has_hung()) return;
  if (ready != nullptr) device_->driver().cuGraphExecDestroy(ready);
  for (const Upload& upload : uploads) device_->free_host(upload.pinned);
}

CudaQueue::~CudaQueue() {
  DriverError ignored;
  if (recording_ != nullptr) end_recording(nullptr, &ignored);
  device_->end_pass(stream_);
  device_->destroy_stream(stream_);
}

bool CudaQueue::begin(bool records, GpuError* error) {
  DriverError failed;
  if (!records) {
    device_->enter(&failed);
  } else if (device_->begin_capture(stream_, &failed)) {
    recording_ = std::make_unique<CudaRecording>(device_);
  }
  if (!failed) device_->begin_pass(stream_);
  return !failed.tell(error);
}

bool CudaQueue::upload(void* to, const void* from, size_t bytes, GpuError* error) {
  DriverError failed;
  const Driver& driver = device_->driver();
  const void* source = from;
  if (recording_ != nullptr) {
    CudaRecording::Upload upload{nullptr, from, bytes};
    if (EDGE_RT_DRIVER_CALL(driver, cuMemHostAlloc, &failed, &upload.pinned, bytes, 0)) {
      recording_->uploads.push_back(upload);
      std::memcpy(upload.pinned, from, bytes);
      source = upload.pinned;
    }
  }
  const auto target = static_cast<CUdeviceptr>(reinterpret_cast<uintptr_t>(to));
  if (!failed) EDGE_RT_DRIVER_CALL(driver, cuMemcpyHtoDAsync, &failed, target, source, bytes, stream_);
  return !failed.tell(error);
}

bool CudaQueue::launch(const Kernel& kernel, int grid_x, int grid_y, const void* args, size_t, GpuError* error) {
  DriverError failed;
  GpuFunction found;
  if (device_->find(kernel.name, &found, &failed)) {
    void* arguments[] = {const_cast<void*>(args)};
    EDGE_RT_DRIVER_CALL(device_->driver(), cuLaunchKernel, &failed, found.function, static_cast<unsigned>(grid_x),
                        static_cast<unsigned>(grid_y), 1, static_cast<unsigned>(found.threads), 1, 1, 0, stream_,
                        arguments, nullptr);
  }
  return !failed.tell(error);
}

bool CudaQueue::end(std::unique_ptr<Recording>* out, GpuError* error) {
  DriverError failed;
  if (recording_ != nullptr) end_recording(out, &failed);
  if (device_->enter(&failed)) device_->wait(stream_, &failed);
  device_->end_pass(stream_);
  return !failed.tell(error);
}

// What was captured has not run yet.
void CudaQueue::end_recording(std::unique_ptr<Recording>* out, DriverError* error) {
  std::unique_ptr<CudaRecording> recorded = std::move(recording_);
  const Driver& driver = device_->driver();
  CUgraph captured = nullptr;
  if (device_->end_capture(stream_, &captured, error) && out != nullptr &&
      EDGE_RT_DRIVER_CALL(driver, cuGraphInstantiate, error, &recorded->ready, captured, 0) &&
      EDGE_RT_DRIVER_CALL(driver, cuGraphLaunch, error, recorded->ready, stream_)) {
    *out = std::move(recorded);
  }
  if (captured != nullptr) driver.cuGraphDestroy(captured);
}

bool CudaQueue::replay(const Recording& recording, GpuError* error) {
  DriverError failed;
  const auto& recorded = static_cast<const CudaRecording&>(recording);
  for (const CudaRecording::Upload& upload : recorded.uploads) std::memcpy(upload.pinned, upload.from, upload.bytes);
  const Driver& driver = device_->driver();
  device_->begin_pass(stream_);
  if (device_->enter(&failed) && EDGE_RT_DRIVER_CALL(driver, cuGraphLaunch, &failed, recorded.ready, stream_)) {
    device_->wait(stream_, &failed);
  }
  device_->end_pass(stream_);
  return !failed.tell(error);
}

}  // namespace edge_rt::gpu
