#include "gpu/gpu_context.h"

#include <cstring>

namespace edge_rt::gpu {
namespace {

struct Shared {
  std::mutex lock;
  std::map<int, std::weak_ptr<GpuContext>> open;
  std::map<int, std::map<std::string, std::vector<char>>> images;
};

Shared& shared() {
  static auto* const made = new Shared;  // sessions may outlive static objects
  return *made;
}

CUdeviceptr address(const void* memory) { return static_cast<CUdeviceptr>(reinterpret_cast<uintptr_t>(memory)); }

}  // namespace

bool read_facts(const Driver& driver, int number, GpuFacts* out, DriverError* error) {
  CUdevice device = 0;
  char name[128] = {};
  int major = 0, minor = 0, is_integrated = 0;
  if (!EDGE_RT_DRIVER_CALL(driver, cuDeviceGet, error, &device, number) ||
      !EDGE_RT_DRIVER_CALL(driver, cuDeviceGetName, error, name, static_cast<int>(sizeof name), device) ||
      !EDGE_RT_DRIVER_CALL(driver, cuDeviceGetAttribute, error, &major, kComputeMajor, device) ||
      !EDGE_RT_DRIVER_CALL(driver, cuDeviceGetAttribute, error, &minor, kComputeMinor, device) ||
      !EDGE_RT_DRIVER_CALL(driver, cuDeviceGetAttribute, error, &is_integrated, kIsIntegrated, device) ||
      !EDGE_RT_DRIVER_CALL(driver, cuDeviceTotalMem, error, &out->bytes, device)) {
    return false;
  }
  out->name = name;
  out->compute = 10 * major + minor;
  out->is_integrated = is_integrated != 0;
  return true;
}

void set_kernels(int number, const std::string& source, const void* image, size_t bytes) {
  const std::lock_guard<std::mutex> guard(shared().lock);
  const char* const begin = static_cast<const char*>(image);
  // The driver reads PTX up to a zero.
  std::vector<char> copied(begin, begin + bytes);
  copied.push_back('\0');
  shared().images[number][source] = std::move(copied);
}

std::shared_ptr<GpuContext> GpuContext::open(int number, DriverError* error) {
  const std::lock_guard<std::mutex> guard(shared().lock);
  std::weak_ptr<GpuContext>& known = shared().open[number];
  if (std::shared_ptr<GpuContext> found = known.lock()) return found;
  const Driver* const driver = open_driver(error);
  if (driver == nullptr) return nullptr;
  std::shared_ptr<GpuContext> made(new GpuContext);
  made->driver_ = driver;
  made->number_ = number;
  if (!EDGE_RT_DRIVER_CALL(*driver, cuDeviceGet, error, &made->device_, number) ||
      !EDGE_RT_DRIVER_CALL(*driver, cuDevicePrimaryCtxRetain, error, &made->context_, made->device_) ||
      !made->enter(error) || !EDGE_RT_DRIVER_CALL(*driver, cuStreamCreate, error, &made->copies_, kStreamNonBlocking)) {
    return nullptr;
  }
  known = made;
  return made;
}

GpuContext::~GpuContext() {
  if (context_ == nullptr) return;
  DriverError ignored;  // a lost device cannot give anything back
  enter(&ignored);
  if (copies_ != nullptr) driver_->cuStreamDestroy(copies_);
  for (CUmodule module : modules_) driver_->cuModuleUnload(module);
  driver_->cuDevicePrimaryCtxRelease(device_);
}

bool GpuContext::enter(DriverError* error) const {
  return EDGE_RT_DRIVER_CALL(*driver_, cuCtxSetCurrent, error, context_);
}

bool GpuContext::load(DriverError* error) {
  if (!modules_.empty()) return true;
  std::map<std::string, std::vector<char>> images;
  {
    const std::lock_guard<std::mutex> guard(shared().lock);
    images = shared().images[number_];
  }
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

bool GpuContext::find(const char* kernel, GpuFunction* out, DriverError* error) {
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

CUdeviceptr GpuContext::allocate(size_t bytes, DriverError* error) const {
  CUdeviceptr memory = 0;
  const bool is_done = enter(error) && EDGE_RT_DRIVER_CALL(*driver_, cuMemAlloc, error, &memory, bytes);
  const std::lock_guard<std::mutex> guard(failure_lock_);
  failure_ = is_done || error->code == kOutOfMemory ? DriverError{} : *error;
  return is_done ? memory : 0;
}

DriverError GpuContext::failure() const {
  const std::lock_guard<std::mutex> guard(failure_lock_);
  return failure_;
}

void GpuContext::free(CUdeviceptr memory) const {
  DriverError ignored;
  enter(&ignored);
  driver_->cuMemFree(memory);
}

CUstream GpuContext::make_stream(DriverError* error) {
  CUstream stream = nullptr;
  if (!enter(error) || !EDGE_RT_DRIVER_CALL(*driver_, cuStreamCreate, error, &stream, kStreamNonBlocking))
    return nullptr;
  const std::lock_guard<std::mutex> guard(lock_);
  streams_.insert(stream);
  return stream;
}

void GpuContext::destroy_stream(CUstream stream) {
  {
    const std::lock_guard<std::mutex> guard(lock_);
    streams_.erase(stream);
  }
  DriverError ignored;
  enter(&ignored);
  driver_->cuStreamSynchronize(stream);
  driver_->cuStreamDestroy(stream);
}

bool GpuContext::settle_all(std::unique_lock<std::mutex>* guard, DriverError* error) {
  if (is_capturing_ && capturer_ == std::this_thread::get_id()) {
    *error = {"cuStreamSynchronize", kCaptureUnsupported,
              "a pass with copies between host and device cannot be captured"};
    return false;
  }
  captured_.wait(*guard, [this] { return !is_capturing_; });
  for (CUstream stream : streams_) {
    if (!EDGE_RT_DRIVER_CALL(*driver_, cuStreamSynchronize, error, stream)) return false;
  }
  return true;
}

bool GpuContext::settle(DriverError* error) {
  if (!enter(error)) return false;
  std::unique_lock<std::mutex> guard(lock_);
  return settle_all(&guard, error);
}

bool GpuContext::copy(Way way, void* to, const void* from, size_t bytes, DriverError* error) {
  if (bytes == 0) return true;
  if (!enter(error)) return false;
  std::unique_lock<std::mutex> guard(lock_);
  // ONNX Runtime takes a node for done when its kernel returns, but by then it was only started.
  if (!settle_all(&guard, error)) return false;
  bool is_done = false;
  switch (way) {
    case Way::kToDevice:
      is_done = EDGE_RT_DRIVER_CALL(*driver_, cuMemcpyHtoDAsync, error, address(to), from, bytes, copies_);
      break;
    case Way::kToHost:
      is_done = EDGE_RT_DRIVER_CALL(*driver_, cuMemcpyDtoHAsync, error, to, address(from), bytes, copies_);
      break;
    case Way::kOnDevice:
      is_done = EDGE_RT_DRIVER_CALL(*driver_, cuMemcpyDtoDAsync, error, address(to), address(from), bytes, copies_);
      break;
  }
  // Also behind a failure: nothing may be under way when the memory is given back.
  return EDGE_RT_DRIVER_CALL(*driver_, cuStreamSynchronize, error, copies_) && is_done;
}

bool GpuContext::begin_capture(CUstream stream, DriverError* error) {
  if (!enter(error)) return false;
  std::unique_lock<std::mutex> guard(lock_);
  captured_.wait(guard, [this] { return !is_capturing_; });
  if (!EDGE_RT_DRIVER_CALL(*driver_, cuStreamBeginCapture, error, stream, kCaptureRelaxed)) return false;
  is_capturing_ = true;
  capturer_ = std::this_thread::get_id();
  return true;
}

bool GpuContext::end_capture(CUstream stream, CUgraph* out, DriverError* error) {
  *out = nullptr;
  enter(error);
  const bool is_whole = EDGE_RT_DRIVER_CALL(*driver_, cuStreamEndCapture, error, stream, out);
  const std::lock_guard<std::mutex> guard(lock_);
  is_capturing_ = false;
  captured_.notify_all();
  return is_whole && *out != nullptr;
}

}  // namespace edge_rt::gpu
