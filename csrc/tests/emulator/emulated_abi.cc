// The emulated driver as Python tests reach it.
#include "common/export.h"
#include "tests/emulator/emulated_driver.h"
#include "gpu/cuda/cuda_device.h"

using namespace edge_rt::gpu;

EDGE_RT_EXPORT void edge_rt_gpu_emulated_configure(size_t memory, int devices, int compute, uint64_t seed) {
  emulated::Settings settings;
  settings.memory = memory;
  settings.devices = devices;
  settings.compute_major = compute / 10;
  settings.compute_minor = compute % 10;
  settings.seed = seed;
  emulated::configure(settings);
  for (int number = 0; number < devices; ++number) set_kernels(number, "any source", "any image", 9);
}

// See emulated::set_fault; an empty name stands for every function.
EDGE_RT_EXPORT void edge_rt_gpu_emulated_fault(const char* function, int64_t number, int code) {
  emulated::set_fault(*function == '\0' ? nullptr : function, number, code);
}

// After how many milliseconds a device that does not answer is taken for one that hangs.
EDGE_RT_EXPORT void edge_rt_gpu_emulated_longest_wait(int64_t milliseconds) {
  CudaDevice::longest_wait = std::chrono::milliseconds(milliseconds);
}

EDGE_RT_EXPORT int64_t edge_rt_gpu_emulated_calls() { return emulated::calls_counted(); }

// Objects that were made and not given back: allocations, pinned memory, streams, modules, graphs, contexts, and
// bytes of device memory.
EDGE_RT_EXPORT void edge_rt_gpu_emulated_live(int64_t* out) {
  const emulated::Live live = emulated::live();
  const int64_t counts[] = {live.allocations, live.host_allocations,           live.streams, live.modules, live.graphs,
                            live.contexts,    static_cast<int64_t>(live.bytes)};
  for (const int64_t count : counts) *out++ = count;
}

// Kernels and graphs that ran.
EDGE_RT_EXPORT void edge_rt_gpu_emulated_work(int64_t* out) {
  const emulated::Work work = emulated::work_done();
  out[0] = work.kernels;
  out[1] = work.graphs;
}
