// The part of NVIDIA's driver interface that edge-rt uses, declared here so that no CUDA header is needed.
//
// There are two fillings of the table: driver_library.cc takes the functions out of libcuda.so.1, and
// emulated_driver.cc, which is for tests and is not shipped, runs kernels on fibers. A library is linked with one of
// them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "gpu/gpu_device.h"

namespace edge_rt::gpu {

// The driver's names for its own types.
using CUresult = int;  // 0: it went well
using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUcontext = struct CUctx_st*;
using CUmodule = struct CUmod_st*;
using CUfunction = struct CUfunc_st*;
using CUstream = struct CUstream_st*;
using CUgraph = struct CUgraph_st*;
using CUgraphExec = struct CUgraphExec_st*;

// Results that are told apart.
constexpr CUresult kOutOfMemory = 2;
constexpr CUresult kNoDevice = 100;
constexpr CUresult kInvalidValue = 1;
constexpr CUresult kInvalidContext = 201;
constexpr CUresult kInvalidHandle = 400;
constexpr CUresult kNotFound = 500;
constexpr CUresult kNotReady = 600;        // of cuStreamQuery: not all is done
constexpr CUresult kLaunchTimedOut = 702;  // by the system, as for GPUs that draw a screen
constexpr CUresult kLaunchFailed = 719;
constexpr CUresult kCaptureUnsupported = 900;
constexpr CUresult kCaptureInvalidated = 901;

// Attributes of devices and functions.
constexpr int kComputeMajor = 75;
constexpr int kComputeMinor = 76;
constexpr int kIsIntegrated = 18;      // device and host share their memory
constexpr int kMaxThreadsOfBlock = 0;  // of a function; what __launch_bounds__ says

constexpr unsigned kStreamNonBlocking = 1;
constexpr int kCaptureRelaxed = 2;

// Field, symbol, arguments. All return CUresult. Symbols of later versions have other arguments than the plain ones.
// A driver that lacks one of them is refused as too old: no function is here that edge-rt does not call.
#define EDGE_RT_DRIVER_FUNCTIONS(F)                                                                                  \
  F(cuInit, "cuInit", (unsigned flags))                                                                              \
  F(cuDriverGetVersion, "cuDriverGetVersion", (int* version))                                                        \
  F(cuGetErrorName, "cuGetErrorName", (CUresult error, const char** name))                                           \
  F(cuDeviceGetCount, "cuDeviceGetCount", (int* count))                                                              \
  F(cuDeviceGet, "cuDeviceGet", (CUdevice * device, int ordinal))                                                    \
  F(cuDeviceGetName, "cuDeviceGetName", (char* name, int size, CUdevice device))                                     \
  F(cuDeviceGetAttribute, "cuDeviceGetAttribute", (int* value, int attribute, CUdevice device))                      \
  F(cuDeviceTotalMem, "cuDeviceTotalMem_v2", (size_t* bytes, CUdevice device))                                       \
  F(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (CUcontext * context, CUdevice device))                    \
  F(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", (CUdevice device))                                    \
  F(cuCtxSetCurrent, "cuCtxSetCurrent", (CUcontext context))                                                         \
  F(cuMemGetInfo, "cuMemGetInfo_v2", (size_t* free, size_t* total))                                                  \
  F(cuMemAlloc, "cuMemAlloc_v2", (CUdeviceptr * out, size_t bytes))                                                  \
  F(cuMemFree, "cuMemFree_v2", (CUdeviceptr memory))                                                                 \
  F(cuMemHostAlloc, "cuMemHostAlloc", (void** out, size_t bytes, unsigned flags))                                    \
  F(cuMemFreeHost, "cuMemFreeHost", (void* memory))                                                                  \
  F(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", (CUdeviceptr to, const void* from, size_t bytes, CUstream stream))    \
  F(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", (void* to, CUdeviceptr from, size_t bytes, CUstream stream))          \
  F(cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2", (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))    \
  F(cuStreamCreate, "cuStreamCreate", (CUstream * out, unsigned flags))                                              \
  F(cuStreamDestroy, "cuStreamDestroy_v2", (CUstream stream))                                                        \
  F(cuStreamQuery, "cuStreamQuery", (CUstream stream))                                                               \
  F(cuModuleLoadData, "cuModuleLoadData", (CUmodule * out, const void* image))                                       \
  F(cuModuleUnload, "cuModuleUnload", (CUmodule module))                                                             \
  F(cuModuleGetFunction, "cuModuleGetFunction", (CUfunction * out, CUmodule module, const char* name))               \
  F(cuFuncGetAttribute, "cuFuncGetAttribute", (int* value, int attribute, CUfunction function))                      \
  F(cuLaunchKernel, "cuLaunchKernel",                                                                                \
    (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,     \
     unsigned block_z, unsigned shared_bytes, CUstream stream, void** arguments, void** extra))                      \
  F(cuStreamBeginCapture, "cuStreamBeginCapture_v2", (CUstream stream, int mode))                                    \
  F(cuStreamEndCapture, "cuStreamEndCapture", (CUstream stream, CUgraph * out))                                      \
  F(cuGraphInstantiate, "cuGraphInstantiateWithFlags", (CUgraphExec * out, CUgraph graph, unsigned long long flags)) \
  F(cuGraphLaunch, "cuGraphLaunch", (CUgraphExec graph, CUstream stream))                                            \
  F(cuGraphExecDestroy, "cuGraphExecDestroy", (CUgraphExec graph))                                                   \
  F(cuGraphDestroy, "cuGraphDestroy", (CUgraph graph))

struct Driver {
#define EDGE_RT_FIELD(field, symbol, arguments) CUresult(*field) arguments = nullptr;
  EDGE_RT_DRIVER_FUNCTIONS(EDGE_RT_FIELD)
#undef EDGE_RT_FIELD
};

// The first call of a driver that failed; nothing has if `function` is null.
struct DriverError {
  const char* function = nullptr;
  CUresult code = 0;
  std::string name;  // the driver's, such as "CUDA_ERROR_OUT_OF_MEMORY"; or why there is no driver

  explicit operator bool() const { return function != nullptr; }
  // "cuMemAlloc failed: CUDA_ERROR_OUT_OF_MEMORY (2)".
  std::string sentence() const;
  Fault fault() const;
  // Writes it down for those who know no driver, if it is one; returns whether it is.
  bool tell(GpuError* error) const;
};

// Keeps an error of a call, if it is one; returns whether all went well.
bool keep_error(const Driver& driver, CUresult code, const char* function, DriverError* error);

// Calls a function of the table: call_driver(driver, cuMemFree, &error, memory).
#define EDGE_RT_DRIVER_CALL(driver, function, error, ...) \
  ::edge_rt::gpu::keep_error((driver), (driver).function(__VA_ARGS__), #function, (error))

// Fills the table out of a shared library, such as "libcuda.so.1".
bool load_driver(const char* library, Driver* out, DriverError* error);

// The driver of this library, initialised once; nullptr: there is none, and `error` says why.
const Driver* open_driver(DriverError* error);

}  // namespace edge_rt::gpu
