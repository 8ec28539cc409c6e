#include "gpu/vulkan/vulkan_device.h"

#include <algorithm>
#include <cstring>

#include "common/float_mode.h"
#include "gpu/vulkan/self_test.h"
#include "gpu/vulkan/vulkan_commands.h"
#include "gpu/vulkan/vulkan_queue.h"

namespace edge_rt::gpu {
namespace {

using namespace vk;  // NOLINT: names of Vulkan's own

constexpr size_t kStaged = 4 << 20;

// Whatever the reason, what is under way cannot be waited for any more: but on a lost device it may go on for ever, and
// nothing that it uses can be given back.
GpuError never_ends(GpuError error) {
  if (error.fault != Fault::kLost) error.fault = Fault::kHung;
  return error;
}

}  // namespace

VulkanDevice::VulkanDevice(std::shared_ptr<VulkanInstance> instance, KernelCode kernels, const VulkanLimits& limits,
                           std::string file)
    : limits_(limits), link_(std::move(instance)), pipelines_(&link_, std::move(kernels), std::move(file)),
      memory_(&link_) {}

std::shared_ptr<VulkanDevice> VulkanDevice::open(int number, KernelCode kernels, const VulkanLimits& limits,
                                                 GpuError* error, std::string file) {
  std::shared_ptr<VulkanInstance> instance = VulkanInstance::open(error);
  if (instance == nullptr) return nullptr;
  std::shared_ptr<VulkanDevice> made(
      new VulkanDevice(std::move(instance), std::move(kernels), limits, std::move(file)));
  if (!made->link_.find(number, error)) return nullptr;
  if (!made->link_.open(error)) return nullptr;
  made->link_.limit(limits.maps_memory, limits.reads_memory);
  return made->try_arithmetic(error) ? made : nullptr;
}

bool VulkanDevice::try_arithmetic(GpuError* error) {
  if (!pipelines_.has(kSelfTestKernel)) {
    pipelines_.restart(kMendsAll);
    self_test_.has_cpu_bits = false;  // nobody knows
    return true;
  }
  // The device belongs to nobody yet, and queues hold it by a shared pointer.
  const std::shared_ptr<VulkanDevice> self(this, [](VulkanDevice*) {});
  VulkanQueue queue(self);
  const auto restart = [this](uint32_t mended) { pipelines_.restart(mended); };
  uint32_t mends = 0;
  const bool is_done = run_self_test(this, &queue, restart, &self_test_, &mends, error);
  if (error->fault == Fault::kRefused) error->sentence = link_.facts().name + ": " + error->sentence;
  restart(mends);
  return is_done;
}

VulkanDevice::~VulkanDevice() = default;

Traits VulkanDevice::traits() const { return {size_t{16} << 10, false}; }

bool VulkanDevice::is_lost() const {
  GpuError ignored;
  return !link_.is_well(&ignored);
}

// --- memory ----------------------------------------------------------------------------------------------------------

// Where memory is short, what was freed behind passes is given back once these are done.
void* VulkanDevice::take(const std::function<void*(GpuError*)>& taken, GpuError* error) {
  GpuError failed;
  void* memory = taken(&failed);
  if (failed.fault == Fault::kOutOfMemory) {
    GpuError ignored;
    const uint64_t now = moment_;
    if (settle(&ignored) && memory_.drop_freed(now)) {
      failed = {};
      memory = taken(&failed);
    }
  }
  if (failed) *error = failed;
  return memory;
}

void* VulkanDevice::allocate(size_t bytes, GpuError* error) {
  return take([&](GpuError* failed) { return memory_.allocate(bytes, failed); }, error);
}

// Kernels that were started may still use it: if a pass runs it is given back behind that.
void VulkanDevice::free(void* memory) {
  const std::lock_guard<std::mutex> guard(passes_lock_);
  if (passes_.empty()) {
    memory_.free(memory);
  } else {
    memory_.free_later(memory, moment_++);
  }
}

uint64_t VulkanDevice::begin_pass() {
  const std::lock_guard<std::mutex> guard(passes_lock_);
  passes_.insert(moment_);
  return moment_++;
}

void VulkanDevice::end_pass(uint64_t begun) {
  const std::lock_guard<std::mutex> guard(passes_lock_);
  passes_.erase(begun);
  memory_.drop_freed(passes_.empty() ? VulkanMemory::kAll : *passes_.begin());
}

void* VulkanDevice::allocate_host(size_t bytes, void** device, GpuError* error) {
  return take([&](GpuError* failed) { return memory_.allocate_host(bytes, device, failed); }, error);
}

void VulkanDevice::free_host(void* memory) {
  if (void* const address = memory_.take_host(memory)) free(address);
}

ImportRules VulkanDevice::import_rules() const { return memory_.import_rules(); }

void* VulkanDevice::import(void* host, size_t bytes, GpuError* error) {
  return take([&](GpuError* failed) { return memory_.import(host, bytes, failed); }, error);
}

bool VulkanDevice::free_import(void* address) {
  memory_.free(address);
  return !link_.has_hung();
}

GpuError VulkanDevice::failure() const { return memory_.failure(); }

bool VulkanDevice::budget(MemoryBudget* out, GpuError* error) { return memory_.budget(out, error); }

// --- work ------------------------------------------------------------------------------------------------------------

bool VulkanDevice::submit(const std::vector<VkCommandBuffer>& buffers, VkFence fence, size_t* sent, GpuError* error) {
  const DefaultFloatMode mode;  // of threads that a software device starts now
  const std::lock_guard<std::mutex> guard(submit_lock_);
  // One call each: drivers may make one piece of work of what is in a call.
  for (*sent = 0; *sent < buffers.size(); ++*sent) {
    VkSubmitInfo info;
    info.pCommandBuffers = &buffers[*sent];
    const VkFence told = *sent + 1 == buffers.size() ? fence : VkFence{};
    if (!link_.keep(link_.call.vkQueueSubmit(link_.queue(), 1, &info, told), "vkQueueSubmit", error)) break;
  }
  if (*sent == 0 || *sent == buffers.size()) return *sent != 0;
  // Those that went before a failure are waited for: they use memory that is given back behind it.
  GpuError of_wait;
  if (link_.keep(link_.call.vkQueueSubmit(link_.queue(), 0, nullptr, fence), "vkQueueSubmit", &of_wait)) return false;
  link_.lose(never_ends(of_wait));
  *sent = 0;
  return false;
}

bool VulkanDevice::run(const std::vector<VkCommandBuffer>& buffers, VkFence fence, GpuError* error) {
  if (!link_.is_well(error)) return false;
  size_t sent = 0;
  const bool is_sent = submit(buffers, fence, &sent, error);
  if (sent == 0) return false;
  GpuError of_wait;
  // Software makes a kernel's code when it first runs it, while somebody waits.
  const bool is_software = link_.facts().type == vk::VK_PHYSICAL_DEVICE_TYPE_CPU;
  const auto answer = static_cast<uint64_t>(limits_.answer.count()) * (is_software ? 10 : 1);
  const uint64_t most = answer + sent * uint64_t{1000000000};
  const bool has_ended =
      link_.keep(link_.call.vkWaitForFences(link_.handle(), 1, &fence, 1, most), "vkWaitForFences", &of_wait);
  if (!has_ended) of_wait = never_ends(of_wait);
  if (!has_ended || !link_.keep(link_.call.vkResetFences(link_.handle(), 1, &fence), "vkResetFences", &of_wait)) {
    link_.lose(of_wait);
    if (!*error) *error = of_wait;
    return false;
  }
  return is_sent;
}

std::unique_ptr<GpuQueue> VulkanDevice::open_queue(GpuError* error) {
  if (!link_.is_well(error)) return nullptr;
  auto made = std::make_unique<VulkanQueue>(shared_from_this());
  const std::lock_guard<std::mutex> guard(queues_lock_);
  queues_[made.get()] = 0;
  return made;
}

void VulkanDevice::forget(VulkanQueue* queue) {
  std::unique_lock<std::mutex> guard(queues_lock_);
  let_go_.wait(guard, [&] {
    const auto found = queues_.find(queue);
    return found == queues_.end() || found->second == 0;
  });
  queues_.erase(queue);
}

// Nobody who opens or closes another queue waits meanwhile: this one may hang.
bool VulkanDevice::settle(GpuError* error) {
  std::unique_lock<std::mutex> guard(queues_lock_);
  std::vector<VulkanQueue*> open;
  for (const auto& [queue, users] : queues_) open.push_back(queue);
  bool are_settled = true;
  for (VulkanQueue* queue : open) {
    const auto found = queues_.find(queue);
    if (found == queues_.end()) continue;  // closed by now
    ++found->second;
    guard.unlock();
    are_settled = queue->settle(error) && are_settled;
    guard.lock();
    --found->second;
    let_go_.notify_all();
  }
  return are_settled && link_.is_well(error);
}

bool VulkanDevice::copy(Way way, void* to, const void* from, size_t bytes, GpuError* error) {
  return bytes == 0 || (settle(error) && copy_settled(way, to, from, bytes, error));
}

bool VulkanDevice::copy_settled(Way way, void* to, const void* from, size_t bytes, GpuError* error) {
  // What is copied must lie in memory of the device, also where it is copied as the host's.
  VulkanMemory::Place place;
  if (way != Way::kToDevice && !memory_.find(from, bytes, &place, error)) return false;
  if (way != Way::kToHost && !memory_.find(to, bytes, &place, error)) return false;
  const void* const read = way == Way::kToDevice ? from : link_.facts().is_cached ? memory_.mapped(from) : nullptr;
  void* const written = way == Way::kToHost ? to : memory_.mapped(to);
  if (read == nullptr || written == nullptr) return copy_staged(way, to, from, bytes, error);
  std::memmove(written, read, bytes);
  return true;
}

bool VulkanDevice::copy_pieces(const std::vector<Piece>& pieces, GpuError* error) {
  if (!settle(error)) return false;
  std::vector<Command> copies;
  for (const Piece& piece : pieces) {
    Command copy;
    copy.bytes = piece.bytes;
    copy.is_independent = true;
    if (piece.bytes == 0) continue;
    if (!memory_.find(piece.from, piece.bytes, &copy.from, error) ||
        !memory_.find(piece.to, piece.bytes, &copy.to, error)) {
      return false;
    }
    const void* const read = link_.facts().is_cached ? memory_.mapped(piece.from) : nullptr;
    void* const written = memory_.mapped(piece.to);
    if (read != nullptr && written != nullptr) {
      std::memcpy(written, read, piece.bytes);
    } else {
      copies.push_back(copy);
    }
  }
  if (copies.empty()) return true;
  const std::lock_guard<std::mutex> guard(copy_lock_);
  if (copies_ == nullptr) copies_ = std::make_unique<CommandBuffers>(this);
  Nanoseconds took{0};
  return copies_->reset(error) && copies_->add(copies.data(), copies.data() + copies.size(), error) &&
         copies_->run(&took, error);
}

bool VulkanDevice::copy_staged(Way way, void* to, const void* from, size_t bytes, GpuError* error) {
  const std::lock_guard<std::mutex> guard(copy_lock_);
  if (copies_ == nullptr) copies_ = std::make_unique<CommandBuffers>(this);
  if (way != Way::kOnDevice && staged_ == nullptr) staged_ = allocate_host(kStaged, &staged_address_, error);
  if (way != Way::kOnDevice && staged_ == nullptr) return false;
  const size_t step = way == Way::kOnDevice ? bytes : kStaged;
  for (size_t at = 0; at < bytes; at += step) {
    char* const target = static_cast<char*>(to) + at;
    const char* const source = static_cast<const char*>(from) + at;
    Command copy;
    copy.bytes = std::min(step, bytes - at);
    if (way == Way::kToDevice) std::memcpy(staged_, source, copy.bytes);
    Nanoseconds took{0};
    if (!memory_.find(way == Way::kToDevice ? staged_address_ : source, copy.bytes, &copy.from, error) ||
        !memory_.find(way == Way::kToHost ? staged_address_ : target, copy.bytes, &copy.to, error) ||
        !copies_->reset(error) || !copies_->add(&copy, &copy + 1, error) || !copies_->run(&took, error)) {
      return false;
    }
    if (way == Way::kToHost) std::memcpy(target, staged_, copy.bytes);
  }
  return true;
}

}  // namespace edge_rt::gpu
