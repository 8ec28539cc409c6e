// The table of the driver: how it is filled, and that the emulated driver keeps the rules of the real one.
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "gpu/cuda/device.h"
#include "gpu/cuda/driver.h"
#include "tests/emulator/emulated_driver.h"
#include "tests/check.h"

namespace edge_rt::gpu {

struct ScaleArgs {
  const float* x;
  float* y;
  float factor;
  int64_t count;
};
EDGE_RT_KERNEL(driver_test_scale, 64, ScaleArgs) {
  const int64_t i = int64_t{block_x()} * 64 + thread();
  if (i < args.count) args.y[i] = args.x[i] * args.factor;
}

namespace {

constexpr int64_t kCount = 100;
constexpr size_t kBytes = kCount * sizeof(float);

const Driver* driver = nullptr;

// What a test begins with; nothing may be left of the one before.
void begin(uint64_t seed = 0) {
  CHECK(emulated::live().all() == 0);
  emulated::Settings settings;
  settings.seed = seed;
  emulated::configure(settings);
}

struct Device {
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  CUfunction scale = nullptr;
  CUstream stream = nullptr;

  Device() {
    CHECK(driver->cuDevicePrimaryCtxRetain(&context, 0) == 0);
    CHECK(driver->cuCtxSetCurrent(context) == 0);
    CHECK(driver->cuModuleLoadData(&module, "any image") == 0);
    CHECK(driver->cuModuleGetFunction(&scale, module, "driver_test_scale") == 0);
    CHECK(driver->cuStreamCreate(&stream, kStreamNonBlocking) == 0);
  }
  ~Device() {
    driver->cuStreamDestroy(stream);
    driver->cuModuleUnload(module);
    driver->cuDevicePrimaryCtxRelease(0);
  }

  CUresult launch(CUdeviceptr x, CUdeviceptr y, float factor, CUstream on) const {
    ScaleArgs args{reinterpret_cast<const float*>(x), reinterpret_cast<float*>(y), factor, kCount};
    void* arguments[] = {&args};
    return driver->cuLaunchKernel(scale, 2, 1, 1, 64, 1, 1, 0, on, arguments, nullptr);
  }
};

CUdeviceptr allocate(size_t bytes) {
  CUdeviceptr memory = 0;
  CHECK(driver->cuMemAlloc(&memory, bytes) == 0 && memory % 256 == 0);
  return memory;
}

std::vector<float> numbers() {
  std::vector<float> out;
  for (int64_t i = 0; i < kCount; ++i) out.push_back(static_cast<float>(i));
  return out;
}

void test_nothing_runs_before_somebody_waits() {
  begin();
  const Device device;
  const CUdeviceptr x = allocate(kBytes), y = allocate(kBytes);
  std::vector<float> values = numbers(), out(kCount, -1.0f);
  CHECK(driver->cuMemcpyHtoDAsync(x, values.data(), kBytes, device.stream) == 0);
  values.assign(kCount, 99.0f);  // pageable memory was read already
  CHECK(device.launch(x, y, 2.0f, device.stream) == 0);
  CHECK(driver->cuMemcpyDtoHAsync(out.data(), y, kBytes, device.stream) == 0);
  CHECK(out[1] == -1.0f && emulated::work_done().kernels == 0);
  CHECK(driver->cuStreamQuery(device.stream) == 0);
  CHECK(emulated::work_done().kernels == 1);
  for (int64_t i = 0; i < kCount; ++i) CHECK(out[static_cast<size_t>(i)] == 2.0f * static_cast<float>(i));
  CHECK(driver->cuMemFree(x) == 0 && driver->cuMemFree(y) == 0);
}

void test_pinned_memory_is_read_late() {
  begin();
  const Device device;
  const CUdeviceptr x = allocate(kBytes);
  void* pinned = nullptr;
  CHECK(driver->cuMemHostAlloc(&pinned, kBytes, 0) == 0);
  std::memset(pinned, 0, kBytes);
  CHECK(driver->cuMemcpyHtoDAsync(x, pinned, kBytes, device.stream) == 0);
  static_cast<float*>(pinned)[7] = 5.0f;
  std::vector<float> out(kCount);
  CHECK(driver->cuMemcpyDtoHAsync(out.data(), x, kBytes, device.stream) == 0);
  CHECK(driver->cuStreamQuery(device.stream) == 0);
  CHECK(out[7] == 5.0f);
  CHECK(driver->cuMemFreeHost(pinned) == 0 && driver->cuMemFree(x) == 0);
}

// A stream that is read before another one was waited for gives something else under some order.
bool is_right_under(uint64_t seed, bool waits) {
  begin(seed);
  const Device device;
  const CUdeviceptr x = allocate(kBytes), y = allocate(kBytes);
  CUstream other = nullptr;
  CHECK(driver->cuStreamCreate(&other, kStreamNonBlocking) == 0);
  const std::vector<float> values = numbers();
  std::vector<float> out(kCount);
  CHECK(driver->cuMemcpyHtoDAsync(x, values.data(), kBytes, device.stream) == 0);
  CHECK(device.launch(x, y, 3.0f, device.stream) == 0);
  if (waits) CHECK(driver->cuStreamQuery(device.stream) == 0);
  CHECK(driver->cuMemcpyDtoHAsync(out.data(), y, kBytes, other) == 0);
  CHECK(driver->cuStreamQuery(other) == 0);
  CHECK(driver->cuStreamQuery(device.stream) == 0);
  CHECK(driver->cuStreamDestroy(other) == 0);
  CHECK(driver->cuMemFree(x) == 0 && driver->cuMemFree(y) == 0);
  return out[9] == 27.0f;
}

void test_streams_take_turns_in_a_drawn_order() {
  constexpr int kSeeds = 32;
  int right = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    CHECK(is_right_under(seed, true));
    right += is_right_under(seed, false);
  }
  CHECK(0 < right && right < kSeeds);
  // In the order of calls only the stream that is waited for runs.
  CHECK(is_right_under(0, true) && !is_right_under(0, false));
}

void test_graphs_are_replayed() {
  begin();
  const Device device;
  const CUdeviceptr x = allocate(kBytes), y = allocate(kBytes);
  std::vector<float> values = numbers(), out(kCount, -1.0f);
  CHECK(driver->cuMemcpyHtoDAsync(x, values.data(), kBytes, device.stream) == 0);
  CHECK(driver->cuStreamQuery(device.stream) == 0);
  CHECK(driver->cuStreamBeginCapture(device.stream, kCaptureRelaxed) == 0);
  CHECK(device.launch(x, y, 2.0f, device.stream) == 0);
  CHECK(device.launch(y, x, 1.0f, device.stream) == 0);
  CUgraph graph = nullptr;
  CUgraphExec ready = nullptr;
  CHECK(driver->cuStreamEndCapture(device.stream, &graph) == 0);
  CHECK(driver->cuGraphInstantiate(&ready, graph, 0) == 0 && driver->cuGraphDestroy(graph) == 0);
  CHECK(emulated::work_done().kernels == 0);
  for (int i = 0; i < 3; ++i) CHECK(driver->cuGraphLaunch(ready, device.stream) == 0);
  CHECK(driver->cuMemcpyDtoHAsync(out.data(), x, kBytes, device.stream) == 0);
  CHECK(driver->cuStreamQuery(device.stream) == 0);
  CHECK(out[5] == 40.0f && emulated::work_done().kernels == 6 && emulated::work_done().graphs == 3);
  // Waiting for a stream that captures is an error, and ends the capture with one.
  CHECK(driver->cuStreamBeginCapture(device.stream, kCaptureRelaxed) == 0);
  CHECK(driver->cuStreamQuery(device.stream) == kCaptureUnsupported);
  CHECK(driver->cuStreamEndCapture(device.stream, &graph) == kCaptureInvalidated && graph == nullptr);
  CHECK(driver->cuGraphExecDestroy(ready) == 0);
  CHECK(driver->cuMemFree(x) == 0 && driver->cuMemFree(y) == 0);
}

void test_faults() {
  begin();
  const Device device;
  CUdeviceptr first = 0, second = 0;
  emulated::set_fault("cuMemAlloc", 1, kOutOfMemory);
  CHECK(driver->cuMemAlloc(&first, 8) == 0);
  CHECK(driver->cuMemAlloc(&second, 8) == kOutOfMemory);
  CHECK(emulated::live().allocations == 1 && emulated::live().bytes == 8);
  CHECK(driver->cuMemAlloc(&second, size_t{2} << 30) == kOutOfMemory);  // more than there is
  DriverError error;
  CHECK(!EDGE_RT_DRIVER_CALL(*driver, cuMemAlloc, &error, &second, size_t{2} << 30));
  CHECK(error.sentence() == "cuMemAlloc failed: CUDA_ERROR_OUT_OF_MEMORY (2)");
  CHECK(!EDGE_RT_DRIVER_CALL(*driver, cuMemFree, &error, 12345));
  CHECK(error.code == kOutOfMemory);  // the first error stays
  CHECK(driver->cuMemFree(first) == 0 && driver->cuMemFree(first) != 0);
  // A device that is lost stays so.
  emulated::set_fault("cuLaunchKernel", 0, kLaunchFailed);
  CHECK(device.launch(first, first, 1.0f, device.stream) == kLaunchFailed);
  CHECK(driver->cuMemAlloc(&first, 8) == kLaunchFailed);
  CHECK(driver->cuStreamQuery(device.stream) == kLaunchFailed);
}

void test_wrong_calls() {
  begin();
  const Device device;
  const CUdeviceptr x = allocate(kBytes);
  char host[8] = {};
  CHECK(driver->cuMemcpyHtoDAsync(x + kBytes - 4, host, 8, device.stream) == kInvalidValue);
  CHECK(driver->cuMemcpyDtoHAsync(host, 0, 8, device.stream) == kInvalidValue);
  CUfunction function = nullptr;
  CHECK(driver->cuModuleGetFunction(&function, device.module, "no such kernel") == kNotFound);
  int threads = 0;
  CHECK(driver->cuFuncGetAttribute(&threads, kMaxThreadsOfBlock, device.scale) == 0 && threads == 64);
  // Memory that is freed while work waits for it: the work fails.
  CHECK(driver->cuMemcpyHtoDAsync(x, host, 8, device.stream) == 0);
  CHECK(driver->cuMemFree(x) == 0);
  CHECK(driver->cuStreamQuery(device.stream) == kLaunchFailed);
}

// What a child process dies of when it does something.
template <class Body>
bool dies(Body body) {
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    std::freopen("/dev/null", "w", stderr);
    body();
    _exit(0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

void test_nobody_else_touches_device_memory() {
  begin();
  const CUdeviceptr x = allocate(kBytes);
  volatile char* const at = reinterpret_cast<volatile char*>(x);
  CHECK(dies([&] { at[0] = 1; }));
  CHECK(dies([&] { (void)at[kBytes - 1]; }));
  CHECK(!dies([] {}));
  CHECK(driver->cuMemFree(x) == 0);
}

void test_tables_out_of_libraries(const char* whole) {
  Driver found;
  DriverError error;
  CHECK(load_driver(whole, &found, &error));
  CHECK(!error && found.cuInit(0) == 0 && found.cuGraphDestroy(nullptr) == 0);
  CHECK(!load_driver("libm.so.6", &found, &error));
  CHECK(error.sentence() == "dlsym: libm.so.6 has no cuInit");
  error = {};
  CHECK(!load_driver("libno_such_driver.so.1", &found, &error));
  CHECK(error.sentence().find("libno_such_driver") != std::string::npos);
}

}  // namespace
}  // namespace edge_rt::gpu

// The argument is a library with all of the driver's functions.
int main(int count, char** arguments) {
  using namespace edge_rt::gpu;
  CHECK(count == 2);
  DriverError error;
  driver = open_driver(&error);
  CHECK(driver != nullptr && !error);
  test_nothing_runs_before_somebody_waits();
  test_pinned_memory_is_read_late();
  test_streams_take_turns_in_a_drawn_order();
  test_graphs_are_replayed();
  test_faults();
  test_wrong_calls();
  test_nobody_else_touches_device_memory();
  test_tables_out_of_libraries(arguments[1]);
  CHECK(emulated::live().all() == 0);
  return 0;
}
