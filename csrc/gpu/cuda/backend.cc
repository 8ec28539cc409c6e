// NVIDIA's GPUs as the provider finds and opens them.
#include <mutex>

#include "gpu/cuda/cuda_device.h"

namespace edge_rt::gpu {
namespace {

struct Shared {
  std::mutex lock;
  std::map<int, std::weak_ptr<CudaDevice>> open;
  std::map<int, KernelImages> images;
};

Shared& shared() {
  static auto* const made = new Shared;  // sessions may outlive static objects
  return *made;
}

constexpr int kOldestCompute = 75;  // 10 * major + minor: integer products by tensor cores

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
  out->is_unified = is_integrated != 0;
  const int compute = 10 * major + minor;
  out->more = {{"vendor", "NVIDIA"}, {"compute", std::to_string(compute)}};
  if (compute < kOldestCompute) {
    out->refusal =
        "its architecture is " + std::to_string(compute) + ", must be " + std::to_string(kOldestCompute) + " or newer";
  }
  return true;
}

}  // namespace

const char* const kProviderName = "EdgeRtGpuExecutionProvider";
const uint32_t kVendor = 0x10de;

bool list_gpus(std::vector<GpuFacts>* out, GpuError* error) {
  out->clear();
  DriverError failed;
  const Driver* const driver = open_driver(&failed);
  int count = 0;
  if (driver != nullptr) EDGE_RT_DRIVER_CALL(*driver, cuDeviceGetCount, &failed, &count);
  for (int number = 0; !failed && number < count; ++number) read_facts(*driver, number, &out->emplace_back(), &failed);
  return !failed.tell(error);
}

std::string driver_version() {
  DriverError failed;
  const Driver* const driver = open_driver(&failed);
  int version = 0;
  if (driver == nullptr || !EDGE_RT_DRIVER_CALL(*driver, cuDriverGetVersion, &failed, &version)) return "";
  return std::to_string(version);
}

std::shared_ptr<GpuDevice> open_gpu(int number, GpuError* error) {
  const std::lock_guard<std::mutex> guard(shared().lock);
  std::weak_ptr<CudaDevice>& known = shared().open[number];
  if (std::shared_ptr<CudaDevice> found = known.lock()) return found;
  DriverError failed;
  const std::shared_ptr<CudaDevice> made = CudaDevice::open(number, &failed);
  failed.tell(error);
  known = made;
  return made;
}

// The order of operations is the CPU's, and each is IEEE's: nothing is left to a driver.
bool test_gpu(int, SelfTest* out, GpuError*) {
  *out = {};
  return true;
}

// They are compiled before they come here.
void keep_compiled(int, const std::string&) {}

void set_kernels(int number, const std::string& name, const void* image, size_t bytes) {
  const std::lock_guard<std::mutex> guard(shared().lock);
  const char* const begin = static_cast<const char*>(image);
  // The driver reads PTX up to a zero.
  std::vector<char> copied(begin, begin + bytes);
  copied.push_back('\0');
  shared().images[number][name] = std::move(copied);
}

KernelImages kernel_images(int number) {
  const std::lock_guard<std::mutex> guard(shared().lock);
  return shared().images[number];
}

}  // namespace edge_rt::gpu
