// What gpu_device.h asks of a kind of driver, for Vulkan.
#include <cstring>
#include <map>
#include <mutex>

#include "gpu/vulkan/vulkan_device.h"

namespace edge_rt::gpu {
namespace {

struct Shared {
  std::mutex lock;
  std::map<int, std::weak_ptr<VulkanDevice>> open;
  std::map<int, KernelCode> kernels;
  std::map<int, std::string> files;  // of what drivers make of kernels
};

Shared& shared() {
  static auto* const made = new Shared;  // sessions may outlive static objects
  return *made;
}

std::string vendor_of(uint32_t number) {
  switch (number) {
    case 0x1002: return "AMD";
    case 0x10de: return "NVIDIA";
    case 0x8086: return "Intel";
    case 0x13b5: return "Arm";
    case 0x5143: return "Qualcomm";
    case 0x106b: return "Apple";
    case 0x1010: return "Imagination";
    case 0x14e4: return "Broadcom";
    case 0x10005: return "Mesa";
    default: return "vendor " + std::to_string(number);
  }
}

const char* type_of(int32_t type) {
  switch (type) {
    case vk::VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU: return "integrated";
    case vk::VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU: return "discrete";
    case vk::VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU: return "virtual";
    case vk::VK_PHYSICAL_DEVICE_TYPE_CPU: return "software";
    default: return "other";
  }
}

std::string version_text(uint32_t version) {
  return std::to_string(vk::version_major(version)) + "." + std::to_string(vk::version_minor(version));
}

std::shared_ptr<VulkanDevice> open_vulkan(int number, GpuError* error) {
  const std::lock_guard<std::mutex> guard(shared().lock);
  std::weak_ptr<VulkanDevice>& known = shared().open[number];
  if (std::shared_ptr<VulkanDevice> found = known.lock(); found != nullptr) {
    if (found->link().is_well(error)) return found;
    // Memory is known by its address, which may be that of something else on a device that is opened beside this one.
    error->sentence = "models that ran there are open, " + error->sentence;
    return nullptr;
  }
  std::shared_ptr<VulkanDevice> made =
      VulkanDevice::open(number, shared().kernels[number], {}, error, shared().files[number]);
  known = made;
  return made;
}

}  // namespace

const char* const kProviderName = "EdgeRtVulkanExecutionProvider";
const uint32_t kVendor = 0xed9e;  // of no one: devices of several vendors are this provider's

bool list_gpus(std::vector<GpuFacts>* out, GpuError* error) {
  const std::shared_ptr<VulkanInstance> instance = VulkanInstance::open(error);
  if (instance == nullptr) return false;
  for (vk::VkPhysicalDevice device : instance->devices()) {
    const VulkanFacts facts = instance->facts(device);
    GpuFacts told{facts.name, facts.bytes, facts.is_unified, facts.refusal, {}};
    told.more = {{"vendor", vendor_of(facts.vendor)},
                 {"type", type_of(facts.type)},
                 {"driver", facts.driver},
                 {"vulkan", version_text(facts.version)},
                 {"dots", facts.has_dots ? "1" : "0"},
                 {"fast_dots", facts.has_fast_dots ? "1" : "0"},
                 {"fused_multiply_add", facts.has_fma ? "1" : "0"},
                 {"keeps_subnormals", facts.keeps_denormals ? "1" : "0"},
                 {"largest_allocation", std::to_string(facts.largest)},
                 {"halves", facts.refusal.empty() ? "1" : "0"},
                 {"imports", facts.import_alignment != 0 ? "1" : "0"},
                 {"shared_bytes", std::to_string(facts.shared_bytes)}};
    out->push_back(std::move(told));
  }
  return true;
}

std::string driver_version() {
  GpuError ignored;
  const std::shared_ptr<VulkanInstance> instance = VulkanInstance::open(&ignored);
  return instance == nullptr ? "" : version_text(instance->version());
}

bool test_gpu(int number, SelfTest* out, GpuError* error) {
  const std::shared_ptr<VulkanDevice> device = open_vulkan(number, error);
  if (device != nullptr) *out = device->self_test();
  return device != nullptr;
}

std::shared_ptr<GpuDevice> open_gpu(int number, GpuError* error) { return open_vulkan(number, error); }

void keep_compiled(int number, const std::string& file) {
  const std::lock_guard<std::mutex> guard(shared().lock);
  shared().files[number] = file;
}

void set_kernels(int number, const std::string& name, const void* image, size_t bytes) {
  std::vector<uint32_t> words(bytes / sizeof(uint32_t));
  std::memcpy(words.data(), image, words.size() * sizeof(uint32_t));
  const std::lock_guard<std::mutex> guard(shared().lock);
  shared().kernels[number][name] = std::move(words);
}

}  // namespace edge_rt::gpu
