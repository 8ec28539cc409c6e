// The emulated driver: devices, memory and kernels that can be found.
#include <cstdlib>
#include <cstring>

#include "tests/emulator/emulated_state.h"

namespace edge_rt::gpu::emulated::calls {

CUresult cuInit(unsigned) {
  EDGE_RT_BEGIN(cuInit);
  return s.settings.devices > 0 ? 0 : kNoDevice;
}

CUresult cuDriverGetVersion(int* version) {
  EDGE_RT_BEGIN(cuDriverGetVersion);
  *version = s.settings.driver_version;
  return 0;
}

CUresult cuGetErrorName(CUresult error, const char** name) {
  constexpr struct {
    CUresult code;
    const char* name;
  } kNames[] = {{0, "CUDA_SUCCESS"},
                {kInvalidValue, "CUDA_ERROR_INVALID_VALUE"},
                {kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY"},
                {kNoDevice, "CUDA_ERROR_NO_DEVICE"},
                {kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT"},
                {kInvalidHandle, "CUDA_ERROR_INVALID_HANDLE"},
                {kNotFound, "CUDA_ERROR_NOT_FOUND"},
                {kLaunchFailed, "CUDA_ERROR_LAUNCH_FAILED"},
                {kCaptureUnsupported, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
                {kCaptureInvalidated, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"}};
  for (const auto& known : kNames) {
    if (known.code != error) continue;
    *name = known.name;
    return 0;
  }
  return kInvalidValue;
}

CUresult cuDeviceGetCount(int* count) {
  EDGE_RT_BEGIN(cuDeviceGetCount);
  *count = s.settings.devices;
  return 0;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  EDGE_RT_BEGIN(cuDeviceGet);
  if (ordinal < 0 || ordinal >= s.settings.devices) return kInvalidValue;
  *device = ordinal;
  return 0;
}

CUresult cuDeviceGetName(char* name, int size, CUdevice) {
  EDGE_RT_BEGIN(cuDeviceGetName);
  std::strncpy(name, "Emulated GPU", static_cast<size_t>(size) - 1);
  name[size - 1] = '\0';
  return 0;
}

CUresult cuDeviceGetAttribute(int* value, int attribute, CUdevice) {
  EDGE_RT_BEGIN(cuDeviceGetAttribute);
  switch (attribute) {
    case kComputeMajor: *value = s.settings.compute_major; return 0;
    case kComputeMinor: *value = s.settings.compute_minor; return 0;
    case kIsIntegrated: *value = 0; return 0;
    default: return kInvalidValue;
  }
}

CUresult cuDeviceTotalMem(size_t* bytes, CUdevice) {
  EDGE_RT_BEGIN(cuDeviceTotalMem);
  *bytes = s.settings.memory;
  return 0;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
  EDGE_RT_BEGIN(cuDevicePrimaryCtxRetain);
  ++s.contexts;
  *context = &s.context;
  return 0;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice) {
  State& s = state();
  const Guard guard(s.lock);
  --s.contexts;
  return 0;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  EDGE_RT_BEGIN(cuCtxSetCurrent);
  return context == &s.context || context == nullptr ? 0 : kInvalidContext;
}

CUresult cuMemGetInfo(size_t* free, size_t* total) {
  EDGE_RT_BEGIN(cuMemGetInfo);
  *total = s.settings.memory;
  *free = s.settings.memory - s.memory.bytes();
  return 0;
}

CUresult cuMemAlloc(CUdeviceptr* out, size_t bytes) {
  EDGE_RT_BEGIN(cuMemAlloc);
  if (bytes == 0) return kInvalidValue;
  if (bytes > s.settings.memory - s.memory.bytes()) return kOutOfMemory;
  *out = s.memory.allocate(bytes);
  return *out == 0 ? kOutOfMemory : 0;
}

// Whoever frees memory that queued work still uses has forgotten to wait, as with the real driver: the work fails.
CUresult cuMemFree(CUdeviceptr memory) {
  State& s = state();
  const Guard guard(s.lock);
  return s.memory.free(memory) ? s.lost : kInvalidValue;
}

CUresult cuMemHostAlloc(void** out, size_t bytes, unsigned) {
  EDGE_RT_BEGIN(cuMemHostAlloc);
  if (bytes == 0) return kInvalidValue;
  *out = std::malloc(bytes);
  if (*out == nullptr) return kOutOfMemory;
  s.host_blocks.emplace(static_cast<const char*>(*out), bytes);
  return 0;
}

CUresult cuMemFreeHost(void* memory) {
  State& s = state();
  const Guard guard(s.lock);
  if (s.host_blocks.erase(static_cast<const char*>(memory)) == 0) return kInvalidValue;
  std::free(memory);
  return s.lost;
}

CUresult cuModuleLoadData(CUmodule* out, const void* image) {
  EDGE_RT_BEGIN(cuModuleLoadData);
  if (image == nullptr) return kInvalidValue;
  *out = new CUmod_st;
  s.modules.insert(*out);
  return 0;
}

CUresult cuModuleUnload(CUmodule module) {
  State& s = state();
  const Guard guard(s.lock);
  if (s.modules.erase(module) == 0) return kInvalidHandle;
  delete module;
  return s.lost;
}

CUresult cuModuleGetFunction(CUfunction* out, CUmodule module, const char* name) {
  EDGE_RT_BEGIN(cuModuleGetFunction);
  if (s.modules.count(module) == 0) return kInvalidHandle;
  const simt::Kernel* const kernel = simt::find_kernel(name);
  if (kernel == nullptr) return kNotFound;
  *out = &module->functions.emplace(name, CUfunc_st{kernel}).first->second;
  return 0;
}

CUresult cuFuncGetAttribute(int* value, int attribute, CUfunction function) {
  EDGE_RT_BEGIN(cuFuncGetAttribute);
  if (attribute != kMaxThreadsOfBlock) return kInvalidValue;
  *value = function->kernel->threads;
  return 0;
}

}  // namespace edge_rt::gpu::emulated::calls
