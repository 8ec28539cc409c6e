// The symbols of the library: ONNX Runtime calls the first two, edge-rt's Python the others.
#include <memory>
#include <string>

#include "common/export.h"
#include "gpu/driver.h"
#include "gpu/provider_factory.h"

// The header that defines edge_rt::gpu::GpuOps; the library of tests has one of its own.
#ifndef EDGE_RT_GPU_OPS_HEADER
#define EDGE_RT_GPU_OPS_HEADER "gpu/gpu_ops.h"
#endif
#include EDGE_RT_GPU_OPS_HEADER

namespace edge_rt::gpu {
namespace {

// Number of the calls below: the Python half refuses a library of another one.
constexpr int kAbiVersion = 1;

abi::Status* create_factory(const abi::ApiBase* base, abi::EpFactory** out) {
  ProviderApi api;
  if (const char* why = connect(base, &api)) {
    // Errors are as old as the interface: slot 0 of any table can carry the sentence.
    if (api.ort.table == nullptr && base != nullptr && base->table != nullptr) api.ort.table = base->table(1);
    return api.ort.table == nullptr ? nullptr : ort::make_status(api.ort, "%s", why);
  }
  return guarded(api, "the provider", [&]() -> abi::Status* {
    auto factory = std::make_unique<ProviderFactory>(api);
    if (abi::Status* bad = factory->create(GpuOps{})) return bad;
    *out = factory.release();
    return nullptr;
  });
}

std::string describe() {
  DriverError error;
  const Driver* const driver = open_driver(&error);
  int version = 0, count = 0;
  if (driver == nullptr || !EDGE_RT_DRIVER_CALL(*driver, cuDriverGetVersion, &error, &version) ||
      !EDGE_RT_DRIVER_CALL(*driver, cuDeviceGetCount, &error, &count)) {
    return "error\t" + std::to_string(error.code) + "\t" + error.sentence() + "\n";
  }
  std::string lines = "driver\t" + std::to_string(version) + "\n";
  for (int number = 0; number < count; ++number) {
    GpuFacts facts;
    if (!read_facts(*driver, number, &facts, &error)) {
      return "error\t" + std::to_string(error.code) + "\t" + error.sentence() + "\n";
    }
    lines += "gpu\t" + std::to_string(number) + "\t" + std::to_string(facts.compute) + "\t" +
             std::to_string(facts.bytes) + "\t" + (facts.is_integrated ? "1" : "0") + "\t" + facts.name + "\n";
  }
  return lines;
}

}  // namespace
}  // namespace edge_rt::gpu

EDGE_RT_EXPORT edge_rt::abi::Status* CreateEpFactories(const char*, const edge_rt::abi::ApiBase* base, const void*,
                                                       edge_rt::abi::EpFactory** out, size_t most, size_t* count) {
  *count = 0;
  if (most == 0) return nullptr;
  edge_rt::abi::Status* const bad = edge_rt::gpu::create_factory(base, &out[0]);
  if (bad == nullptr) *count = 1;
  return bad;
}

EDGE_RT_EXPORT edge_rt::abi::Status* ReleaseEpFactory(edge_rt::abi::EpFactory* factory) {
  delete static_cast<edge_rt::gpu::ProviderFactory*>(factory);
  return nullptr;
}

EDGE_RT_EXPORT int edge_rt_gpu_abi_version() { return edge_rt::gpu::kAbiVersion; }

// What GPUs there are, in lines of fields with tabs between them: "driver" and its version, such as 13000; then for
// each GPU "gpu", its number, 10 * major + minor of its architecture, its bytes, 1 if it shares the machine's memory,
// and its name. Or one line: "error", the driver's code or 0, and a sentence. Valid until the thread's next call.
EDGE_RT_EXPORT const char* edge_rt_gpu_describe() {
  static thread_local std::string lines;
  lines = edge_rt::gpu::describe();
  return lines.c_str();
}

// Hands over kernels, a cubin for the GPU of that number, compiled out of a source file of that name: a GPU that is
// opened from now on has them.
EDGE_RT_EXPORT void edge_rt_gpu_set_kernels(int number, const char* source, const void* image, size_t bytes) {
  edge_rt::gpu::set_kernels(number, source, image, bytes);
}

// Bytes that are free on a GPU, and all it has. Returns 0, or the driver's code, or -1 where there is no driver.
EDGE_RT_EXPORT int edge_rt_gpu_memory(int number, size_t* free, size_t* total) {
  edge_rt::gpu::DriverError error;
  const auto context = edge_rt::gpu::GpuContext::open(number, &error);
  if (context != nullptr && context->enter(&error) &&
      EDGE_RT_DRIVER_CALL(context->driver(), cuMemGetInfo, &error, free, total)) {
    return 0;
  }
  return error.code != 0 ? error.code : -1;
}
