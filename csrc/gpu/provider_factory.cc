#include "gpu/provider_factory.h"

#include <cctype>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "gpu/kept_gpus.h"
#include "gpu/provider_session.h"

namespace edge_rt::gpu {
namespace {

// Metadata of a device: the driver's number of the GPU.
constexpr const char* kNumber = "gpu";
// Option of a session: "1" records passes that have a number as graphs.
constexpr const char* kRecords = "graphs";
// "7:1048576": the number of the memory of passes that it shares with other sessions, whose passes never run beside its
// own, and that memory's bytes, as they were planned.
constexpr const char* kPassMemory = "pass_memory";
// The number of the first layer that is computed here; those before it are left to the CPU.
constexpr const char* kFirstLayer = "first_layer";

// How ONNX Runtime hands over an option of a provider: in releases that do not keep the provider's name as it is.
std::string lower_prefix(std::string prefix) {
  for (char& letter : prefix) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  return prefix;
}

// What is known of a GPU under a name; empty: nothing.
std::string fact(const GpuFacts& facts, const std::string& name) {
  for (const auto& [key, value] : facts.more) {
    if (key == name) return value;
  }
  return "";
}

ProviderFactory& own(abi::EpFactory* self) { return *static_cast<ProviderFactory*>(self); }

// Key-value pairs that are released with the object.
class Pairs {
 public:
  explicit Pairs(const ProviderApi& api) : api_(api) {}
  ~Pairs() {
    if (pairs != nullptr) api_.call<abi::ReleaseKeyValuePairs>(pairs);
  }
  Pairs(const Pairs&) = delete;
  Pairs& operator=(const Pairs&) = delete;

  abi::KeyValuePairs* pairs = nullptr;

 private:
  const ProviderApi& api_;
};

}  // namespace

ProviderFactory::ProviderFactory(const ProviderApi& api) : abi::EpFactory{}, api_(api), kernels_(api_) {
  version = abi::kEpVersion;
  name = [](const abi::EpFactory*) { return kProviderName; };
  vendor = [](const abi::EpFactory*) { return "edge-rt"; };
  vendor_id = [](const abi::EpFactory*) { return kVendor; };
  release = [](const abi::EpFactory*) { return "1.0.0"; };
  is_stream_aware = [](const abi::EpFactory*) { return false; };
  supported_devices = [](abi::EpFactory* self, const abi::HardwareDevice* const*, size_t, abi::EpDevice** out,
                         size_t most, size_t* count) -> abi::Status* {
    *count = 0;
    return guarded(own(self).api_, "looking for GPUs", [&] { return own(self).list_devices(out, most, count); });
  };
  create_ep = [](abi::EpFactory* self, const abi::HardwareDevice* const*, const abi::KeyValuePairs* const* metadata,
                 size_t count, const abi::SessionOptions* options, const abi::Logger*, abi::Ep** out) -> abi::Status* {
    *out = nullptr;
    if (count != 1) return own(self).api_.error("a session runs on one GPU; " + std::to_string(count) + " were given");
    return guarded(own(self).api_, "a session", [&] { return own(self).create_session(metadata[0], options, out); });
  };
  release_ep = [](abi::EpFactory*, abi::Ep* ep) { delete static_cast<ProviderSession*>(ep); };
  create_allocator = [](abi::EpFactory* self, const abi::MemoryInfo* info, const abi::KeyValuePairs*,
                        abi::AllocatorImpl** out) -> abi::Status* {
    *out = nullptr;
    return guarded(own(self).api_, "an allocator", [&]() -> abi::Status* {
      const abi::MemoryDevice* const device = own(self).api_.ep_call<abi::MemoryInfoDevice>(info);
      const auto number = static_cast<int>(own(self).api_.ep_call<abi::MemoryDeviceNumber>(device));
      *out = new DeviceAllocator(info, [number](GpuError* error) { return keep_gpu(number, error); });
      return nullptr;
    });
  };
  release_allocator = [](abi::EpFactory*, abi::AllocatorImpl* allocator) {
    delete static_cast<DeviceAllocator*>(allocator);
  };
  create_data_transfer = [](abi::EpFactory* self, abi::DataTransfer** out) -> abi::Status* {
    return guarded(own(self).api_, "copies", [&]() -> abi::Status* {
      *out = new DeviceTransfer(own(self).api_, keep_gpu);
      return nullptr;
    });
  };
  custom_op_domain_count = [](abi::EpFactory*, size_t* count) -> abi::Status* {
    *count = 0;
    return nullptr;
  };
}

ProviderFactory::~ProviderFactory() {
  drop_kept_gpus();
  for (const std::unique_ptr<Gpu>& gpu : gpus_) {
    if (gpu->hardware != nullptr) api_.ep_call<abi::ReleaseHardwareDevice>(gpu->hardware);
  }
}

// No driver, or no GPU that will do: there are no devices, and `edge_rt_gpu_describe` says why.
abi::Status* ProviderFactory::list_devices(abi::EpDevice** out, size_t most, size_t* count) {
  std::vector<GpuFacts> found;
  GpuError ignored;
  if (!list_gpus(&found, &ignored)) return nullptr;
  for (size_t i = 0; i < found.size() && *count < most; ++i) {
    if (!found[i].refusal.empty()) continue;
    if (abi::Status* bad = add_device(static_cast<int>(i), found[i], &out[*count])) return bad;
    ++*count;
  }
  return nullptr;
}

abi::Status* ProviderFactory::add_device(int number, const GpuFacts& facts, abi::EpDevice** out) {
  while (static_cast<int>(gpus_.size()) <= number) gpus_.push_back(std::make_unique<Gpu>(api_));
  Gpu& gpu = *gpus_[static_cast<size_t>(number)];
  Pairs metadata(api_);
  api_.call<abi::CreateKeyValuePairs>(&metadata.pairs);
  api_.call<abi::AddKeyValuePair>(metadata.pairs, kNumber, std::to_string(number).c_str());
  api_.call<abi::AddKeyValuePair>(metadata.pairs, "name", facts.name.c_str());
  for (const auto& [key, value] : facts.more) {
    api_.call<abi::AddKeyValuePair>(metadata.pairs, key.c_str(), value.c_str());
  }
  if (gpu.memory.info() == nullptr) {
    if (abi::Status* bad = gpu.memory.create(number)) return bad;
  }
  // A device of our own: ONNX Runtime does not find the GPUs of every machine, and numbers them as it likes.
  if (gpu.hardware == nullptr) {
    abi::Status* bad = api_.ep_call<abi::CreateHardwareDevice>(
        static_cast<int>(abi::kHardwareGpu), kVendor, static_cast<uint32_t>(number), fact(facts, "vendor").c_str(),
        static_cast<const abi::KeyValuePairs*>(metadata.pairs), &gpu.hardware);
    if (bad != nullptr) return bad;
  }
  if (abi::Status* bad = api_.ep_call<abi::CreateEpDevice>(static_cast<abi::EpFactory*>(this),
                                                           static_cast<const abi::HardwareDevice*>(gpu.hardware),
                                                           static_cast<const abi::KeyValuePairs*>(metadata.pairs),
                                                           static_cast<const abi::KeyValuePairs*>(nullptr), out)) {
    return bad;
  }
  abi::Status* bad = api_.ep_call<abi::AddAllocatorInfo>(*out, gpu.memory.info());
  if (bad != nullptr) api_.ep_call<abi::ReleaseEpDevice>(std::exchange(*out, nullptr));
  return bad;
}

abi::Status* ProviderFactory::create_session(const abi::KeyValuePairs* metadata, const abi::SessionOptions* options,
                                             abi::Ep** out) {
  const char* const given = api_.call<abi::GetKeyValue>(metadata, kNumber);
  if (given == nullptr) return api_.error("the device is not one of this provider");
  const int number = std::atoi(given);
  Pairs entries(api_);
  if (abi::Status* bad = api_.call<abi::SessionConfigEntries>(options, &entries.pairs)) return bad;
  const auto* const read = static_cast<const abi::KeyValuePairs*>(entries.pairs);
  const std::string prefix = std::string("ep.") + kProviderName + ".", lower = lower_prefix(prefix);
  const auto option = [&](const std::string& key) {
    const char* const found = api_.call<abi::GetKeyValue>(read, (prefix + key).c_str());
    return found != nullptr ? found : api_.call<abi::GetKeyValue>(read, (lower + key).c_str());
  };
  const char* const records = option(kRecords);
  const char* const first_layer = option(kFirstLayer);
  const char* const pass_memory = option(kPassMemory);
  GpuError error;
  drop_lost_gpu(number);
  std::shared_ptr<GpuDevice> device = open_gpu(number, &error);
  if (device == nullptr) return api_.error("GPU " + std::to_string(number) + " cannot be opened", error);
  std::shared_ptr<PassArena> arena;
  if (pass_memory != nullptr) {
    char* bytes = nullptr;
    const auto shared = static_cast<int>(std::strtol(pass_memory, &bytes, 10));
    arena = PassArena::of(shared, device, *bytes == ':' ? std::strtoull(bytes + 1, nullptr, 10) : 0);
  }
  std::unique_ptr<PassStream> stream = PassStream::open(std::move(device), std::move(arena), &error);
  if (stream == nullptr) return api_.error("GPU " + std::to_string(number) + " has no stream for a session", error);
  *out = new ProviderSession(api_, kernels_, gpus_[static_cast<size_t>(number)]->memory,
                             std::exchange(weights_of_next_session(), nullptr), std::move(stream),
                             records != nullptr && std::strcmp(records, "1") == 0,
                             first_layer == nullptr ? 0 : std::atoi(first_layer));
  return nullptr;
}

}  // namespace edge_rt::gpu
