#include "gpu/cuda/cuda_device.h"

#include <algorithm>

#include "gpu/cuda/cuda_queue.h"

namespace edge_rt::gpu {
namespace {

void* pointer(CUdeviceptr memory) { return reinterpret_cast<void*>(static_cast<uintptr_t>(memory)); }

CUdeviceptr address(const void* memory) { return static_cast<CUdeviceptr>(reinterpret_cast<uintptr_t>(memory)); }

}  // namespace

std::shared_ptr<CudaDevice> CudaDevice::open(int number, DriverError* error) {
  const Driver* const driver = open_driver(error);
  if (driver == nullptr) return nullptr;
  std::shared_ptr<CudaDevice> made(new CudaDevice);
  made->driver_ = driver;
  made->number_ = number;
  if (!EDGE_RT_DRIVER_CALL(*driver, cuDeviceGet, error, &made->device_, number) ||
      !EDGE_RT_DRIVER_CALL(*driver, cuDevicePrimaryCtxRetain, error, &made->context_, made->device_) ||
      !made->enter(error) || !EDGE_RT_DRIVER_CALL(*driver, cuStreamCreate, error, &made->copies_, kStreamNonBlocking)) {
    return nullptr;
  }
  return made;
}

CudaDevice::~CudaDevice() {
  if (context_ == nullptr || has_hung_) return;
  DriverError ignored;  // a lost device cannot give anything back
  enter(&ignored);
  if (copies_ != nullptr) driver_->cuStreamDestroy(copies_);
  for (CUmodule module : modules_) driver_->cuModuleUnload(module);
  driver_->cuDevicePrimaryCtxRelease(device_);
}

bool CudaDevice::enter(DriverError* error) const {
  if (has_hung_) {
    if (!*error) *error = {"cuStreamQuery", kLaunchTimedOut, "the GPU did not answer in time"};
    return false;
  }
  return EDGE_RT_DRIVER_CALL(*driver_, cuCtxSetCurrent, error, context_);
}

bool CudaDevice::load(DriverError* error) {
  if (!modules_.empty()) return true;
  const KernelImages images = kernel_images(number_);
  if (images.empty()) {
    *error = {"cuModuleLoadData", 0, "no kernels were compiled for GPU " + std::to_string(number_)};
    return false;
  }
  for (const auto& [source, image] : images) {
    CUmodule module = nullptr;
    if (!EDGE_RT_DRIVER_CALL(*driver_, cuModuleLoadData, error, &module, image.data())) {
      error->name += " for the kernels of " + source;
      for (CUmodule loaded : modules_) driver_->cuModuleUnload(loaded);
      modules_.clear();
      return false;
    }
    modules_.push_back(module);
  }
  return true;
}

bool CudaDevice::find(const char* kernel, GpuFunction* out, DriverError* error) {
  const std::lock_guard<std::mutex> guard(lock_);
  const auto known = functions_.find(kernel);
  if (known != functions_.end()) {
    *out = known->second;
    return true;
  }
  if (!load(error)) return false;
  CUresult code = kNotFound;
  for (size_t i = 0; code == kNotFound && i < modules_.size(); ++i) {
    code = driver_->cuModuleGetFunction(&out->function, modules_[i], kernel);
  }
  if (!keep_error(*driver_, code, "cuModuleGetFunction", error)) {
    error->name += std::string(" for kernel ") + kernel;
    return false;
  }
  if (!EDGE_RT_DRIVER_CALL(*driver_, cuFuncGetAttribute, error, &out->threads, kMaxThreadsOfBlock, out->function)) {
    return false;
  }
  functions_.emplace(kernel, *out);
  return true;
}

void* CudaDevice::allocate(size_t bytes, GpuError* error) {
  DriverError failed;
  CUdeviceptr memory = 0;
  const auto take = [&] {
    return enter(&failed) && EDGE_RT_DRIVER_CALL(*driver_, cuMemAlloc, &failed, &memory, bytes);
  };
  bool is_done = take();
  if (failed.fault() == Fault::kOutOfMemory && make_room()) {
    failed = {};
    is_done = take();
  }
  failed.tell(error);
  const std::lock_guard<std::mutex> guard(failure_lock_);
  failure_ = is_done || failed.fault() == Fault::kOutOfMemory ? GpuError{} : *error;
  return is_done ? pointer(memory) : nullptr;
}

GpuError CudaDevice::failure() const {
  const std::lock_guard<std::mutex> guard(failure_lock_);
  return failure_;
}

void CudaDevice::free(void* memory) { give_back({memory, false}); }

void CudaDevice::give_back(const Freed& freed) {
  {
    const std::lock_guard<std::mutex> guard(passes_lock_);
    const bool is_alone = std::all_of(passes_.begin(), passes_.end(),
                                      [](const auto& pass) { return pass.second == std::this_thread::get_id(); });
    if (!is_alone) {
      freed_.push_back(freed);
      return;
    }
  }
  drop(freed);
}

void CudaDevice::drop(const Freed& freed) {
  DriverError ignored;
  enter(&ignored);
  // It would wait for a device that hangs.
  if (has_hung_) return;
  if (freed.is_of_host) {
    driver_->cuMemFreeHost(freed.memory);
  } else {
    driver_->cuMemFree(address(freed.memory));
  }
}

void CudaDevice::begin_pass(CUstream stream) {
  const std::lock_guard<std::mutex> guard(passes_lock_);
  passes_[stream] = std::this_thread::get_id();
}

void CudaDevice::end_pass(CUstream stream) {
  std::vector<Freed> freed;
  {
    const std::lock_guard<std::mutex> guard(passes_lock_);
    passes_.erase(stream);
    if (passes_.empty()) freed.swap(freed_);
  }
  for (const Freed& one : freed) drop(one);
}

// Where memory is short, passes that keep what was freed are waited for; whether there was any.
bool CudaDevice::make_room() {
  std::vector<Freed> freed;
  {
    const std::lock_guard<std::mutex> guard(passes_lock_);
    freed.swap(freed_);
  }
  if (freed.empty()) return false;
  GpuError ignored;
  if (!settle(&ignored)) {
    const std::lock_guard<std::mutex> guard(passes_lock_);
    freed_.insert(freed_.end(), freed.begin(), freed.end());
    return false;
  }
  for (const Freed& one : freed) drop(one);
  return true;
}

void* CudaDevice::allocate_host(size_t bytes, void** device, GpuError* error) {
  DriverError failed;
  void* memory = nullptr;
  const auto take = [&] {
    if (enter(&failed)) EDGE_RT_DRIVER_CALL(*driver_, cuMemHostAlloc, &failed, &memory, bytes, 0);
  };
  take();
  if (failed.fault() == Fault::kOutOfMemory && make_room()) {
    failed = {};
    take();
  }
  // Both sides know it by the same address.
  *device = memory;
  return failed.tell(error) ? nullptr : memory;
}

void CudaDevice::free_host(void* memory) { give_back({memory, true}); }

bool CudaDevice::budget(MemoryBudget* out, GpuError* error) {
  DriverError failed;
  if (enter(&failed)) EDGE_RT_DRIVER_CALL(*driver_, cuMemGetInfo, &failed, &out->free, &out->total);
  return !failed.tell(error);
}

std::unique_ptr<GpuQueue> CudaDevice::open_queue(GpuError* error) {
  DriverError failed;
  std::unique_ptr<GpuQueue> made;
  if (CUstream stream = make_stream(&failed)) made = std::make_unique<CudaQueue>(shared_from_this(), stream);
  failed.tell(error);
  return made;
}

// A device that draws no screen is watched by nobody: longer than any pass takes. Tests wait for less.
std::chrono::milliseconds CudaDevice::longest_wait = std::chrono::seconds(60);

bool CudaDevice::wait(CUstream stream, DriverError* error) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  for (;;) {
    const CUresult code = driver_->cuStreamQuery(stream);
    if (code != kNotReady) return keep_error(*driver_, code, "cuStreamQuery", error);
    const auto waited = Clock::now() - begin;
    if (waited > longest_wait) {
      has_hung_ = true;
      return enter(error);
    }
    // As the driver's own waiting does; who waits for so long is in no hurry.
    if (waited < std::chrono::seconds(1)) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

CUstream CudaDevice::make_stream(DriverError* error) {
  CUstream stream = nullptr;
  if (!enter(error) || !EDGE_RT_DRIVER_CALL(*driver_, cuStreamCreate, error, &stream, kStreamNonBlocking))
    return nullptr;
  const std::lock_guard<std::mutex> guard(lock_);
  streams_.insert(stream);
  return stream;
}

void CudaDevice::destroy_stream(CUstream stream) {
  {
    const std::lock_guard<std::mutex> guard(lock_);
    streams_.erase(stream);
  }
  DriverError ignored;
  if (enter(&ignored)) wait(stream, &ignored);
  if (!has_hung_) driver_->cuStreamDestroy(stream);
}

bool CudaDevice::settle_all(std::unique_lock<std::mutex>* guard, DriverError* error) {
  if (is_capturing_ && capturer_ == std::this_thread::get_id()) {
    *error = {"cuStreamQuery", kCaptureUnsupported, "a pass with copies between host and device cannot be captured"};
    return false;
  }
  captured_.wait(*guard, [this] { return !is_capturing_; });
  for (CUstream stream : streams_) {
    if (!wait(stream, error)) return false;
  }
  return true;
}

bool CudaDevice::settle(GpuError* error) {
  DriverError failed;
  if (enter(&failed)) {
    std::unique_lock<std::mutex> guard(lock_);
    settle_all(&guard, &failed);
  }
  return !failed.tell(error);
}

bool CudaDevice::copy(Way way, void* to, const void* from, size_t bytes, GpuError* error) {
  if (bytes == 0) return true;
  DriverError failed;
  if (enter(&failed)) {
    std::unique_lock<std::mutex> guard(lock_);
    // ONNX Runtime takes a node for done when its kernel returns, but by then it was only started.
    if (settle_all(&guard, &failed)) copy_settled(way, to, from, bytes, &failed);
  }
  return !failed.tell(error);
}

bool CudaDevice::copy_pieces(const std::vector<Piece>& pieces, GpuError* error) {
  DriverError failed;
  if (enter(&failed)) {
    std::unique_lock<std::mutex> guard(lock_);
    if (settle_all(&guard, &failed)) {
      for (const Piece& piece : pieces) {
        if (piece.bytes > 0 && !EDGE_RT_DRIVER_CALL(*driver_, cuMemcpyDtoDAsync, &failed, address(piece.to),
                                                    address(piece.from), piece.bytes, copies_)) {
          break;
        }
      }
      wait(copies_, &failed);
    }
  }
  return !failed.tell(error);
}

void CudaDevice::copy_settled(Way way, void* to, const void* from, size_t bytes, DriverError* error) {
  switch (way) {
    case Way::kToDevice:
      EDGE_RT_DRIVER_CALL(*driver_, cuMemcpyHtoDAsync, error, address(to), from, bytes, copies_);
      break;
    case Way::kToHost:
      EDGE_RT_DRIVER_CALL(*driver_, cuMemcpyDtoHAsync, error, to, address(from), bytes, copies_);
      break;
    case Way::kOnDevice:
      EDGE_RT_DRIVER_CALL(*driver_, cuMemcpyDtoDAsync, error, address(to), address(from), bytes, copies_);
      break;
  }
  // Also behind a failure: nothing may be under way when the memory is given back.
  wait(copies_, error);
}

bool CudaDevice::begin_capture(CUstream stream, DriverError* error) {
  if (!enter(error)) return false;
  std::unique_lock<std::mutex> guard(lock_);
  captured_.wait(guard, [this] { return !is_capturing_; });
  if (!EDGE_RT_DRIVER_CALL(*driver_, cuStreamBeginCapture, error, stream, kCaptureRelaxed)) return false;
  is_capturing_ = true;
  capturer_ = std::this_thread::get_id();
  return true;
}

bool CudaDevice::end_capture(CUstream stream, CUgraph* out, DriverError* error) {
  *out = nullptr;
  enter(error);
  const bool is_whole = EDGE_RT_DRIVER_CALL(*driver_, cuStreamEndCapture, error, stream, out);
  const std::lock_guard<std::mutex> guard(lock_);
  is_capturing_ = false;
  captured_.notify_all();
  return is_whole && *out != nullptr;
}

}  // namespace edge_rt::gpu
