// What is submitted and waited for, and calls that can only fail.
#include <algorithm>
#include <thread>

#include "tests/vulkan_faults/owners.h"

namespace vulkan_faults {
namespace {

constexpr const char* kSubmits[] = {"vkQueueSubmit", "vkQueueSubmit2", "vkQueueSubmit2KHR"};

template <size_t I>
int32_t submit(void* queue, uint32_t number, const void* submits, uint64_t fence) {
  Owner& owner = owner_of(queue);
  const int32_t result = take(&owner, kSubmits[I]);
  if (owner.is_lost) return kDeviceLost;
  if (owner.hangs) return kSuccess;  // and the device never begins
  if (result != kSuccess) return result;
  {
    const std::lock_guard<std::mutex> lock(owners_mutex);
    owner.ready = std::max(owner.ready, Clock::now()) + std::chrono::microseconds(faults().delay_us());
  }
  return owner.below<decltype(&submit<I>)>(kSubmits[I])(queue, number, submits, fence);
}

// Before a wait of so many nanoseconds; kSuccess: the driver may be asked.
int32_t wait(Owner* owner, const char* function, uint64_t timeout) {
  const int32_t result = take(owner, function);
  if (owner->is_lost) return kDeviceLost;
  if (owner->hangs) {
    if (timeout == UINT64_MAX) {
      faults().complain(std::string(function) + " waits for ever for a device that hangs");
      return kDeviceLost;
    }
    // Not all of it: tests have no time. But whoever asks in a loop must not take all of a processor.
    std::this_thread::sleep_for(std::chrono::nanoseconds(std::min<uint64_t>(timeout, 1000000)));
    return kTimeout;
  }
  if (result != kSuccess) return result;
  for (const Clock::time_point begin = Clock::now(); faults().holds();) {
    if (Clock::now() - begin > std::chrono::nanoseconds(timeout)) return kTimeout;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  Clock::time_point ready;
  {
    const std::lock_guard<std::mutex> lock(owners_mutex);
    ready = owner->ready;
  }
  const Clock::duration left = ready - Clock::now();
  if (left > std::chrono::nanoseconds(timeout)) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(timeout));
    return kTimeout;
  }
  if (left > Clock::duration::zero()) std::this_thread::sleep_until(ready);
  return kSuccess;
}

int32_t wait_for_fences(void* device, uint32_t number, const uint64_t* fences, uint32_t all, uint64_t timeout) {
  Owner& owner = owner_of(device);
  const char* const name = "vkWaitForFences";
  timeout = std::max(timeout, faults().patience_s() * 1000000000);
  if (const int32_t result = wait(&owner, name, timeout); result != kSuccess) return result;
  return owner.below<decltype(&wait_for_fences)>(name)(device, number, fences, all, timeout);
}

int32_t wait_semaphores(void* device, const void* info, uint64_t timeout) {
  Owner& owner = owner_of(device);
  const char* const name = "vkWaitSemaphores";
  if (const int32_t result = wait(&owner, name, timeout); result != kSuccess) return result;
  return owner.below<decltype(&wait_semaphores)>(name)(device, info, timeout);
}

int32_t fence_status(void* device, uint64_t fence) {
  Owner& owner = owner_of(device);
  const char* const name = "vkGetFenceStatus";
  if (const int32_t result = wait(&owner, name, 0); result != kSuccess) return result == kTimeout ? kNotReady : result;
  return owner.below<decltype(&fence_status)>(name)(device, fence);
}

// No block of a grid lies behind those that the device starts at once, as settings have them: software starts any.
void check_grid(const char* function, uint32_t first_x, uint32_t first_y, uint32_t x, uint32_t y) {
  const uint64_t most = faults().grid(), end_x = uint64_t{first_x} + x, end_y = uint64_t{first_y} + y;
  if (most == 0 || (end_x <= most && end_y <= most)) return;
  faults().complain(std::string(function) + " of blocks up to " + std::to_string(end_x) + " x " +
                    std::to_string(end_y) + " on a device that starts " + std::to_string(most) + " x " +
                    std::to_string(most));
}

void dispatch(void* buffer, uint32_t x, uint32_t y, uint32_t z) {
  const char* const name = "vkCmdDispatch";
  check_grid(name, 0, 0, x, y);
  owner_of(buffer).below<decltype(&dispatch)>(name)(buffer, x, y, z);
}

void dispatch_base(void* buffer, uint32_t first_x, uint32_t first_y, uint32_t first_z, uint32_t x, uint32_t y,
                   uint32_t z) {
  const char* const name = "vkCmdDispatchBase";
  check_grid(name, first_x, first_y, x, y);
  owner_of(buffer).below<decltype(&dispatch_base)>(name)(buffer, first_x, first_y, first_z, x, y, z);
}

constexpr const char* kIdle[] = {"vkDeviceWaitIdle", "vkQueueWaitIdle"};

template <size_t I>
int32_t wait_idle(void* handle) {
  Owner& owner = owner_of(handle);
  if (const int32_t result = wait(&owner, kIdle[I], UINT64_MAX); result != kSuccess) return result;
  return owner.below<decltype(&wait_idle<I>)>(kIdle[I])(handle);
}

constexpr const char* kOthers[] = {"vkBindBufferMemory", "vkMapMemory",          "vkAllocateCommandBuffers",
                                   "vkResetCommandPool", "vkResetFences",        "vkBeginCommandBuffer",
                                   "vkEndCommandBuffer", "vkResetCommandBuffer", "vkGetMemoryHostPointerPropertiesEXT"};

template <size_t I, class... Args>
int32_t other(void* handle, Args... args) {
  Owner& owner = owner_of(handle);
  if (const int32_t result = take(&owner, kOthers[I]); result != kSuccess) return result;
  return owner.below<int32_t (*)(void*, Args...)>(kOthers[I])(handle, args...);
}

}  // namespace

void add_work(Tables* out) {
  out->of_devices.insert({
      {kSubmits[0], erased(&submit<0>)},
      {kSubmits[1], erased(&submit<1>)},
      {kSubmits[2], erased(&submit<2>)},
      {"vkWaitForFences", erased(&wait_for_fences)},
      {"vkWaitSemaphores", erased(&wait_semaphores)},
      {"vkWaitSemaphoresKHR", erased(&wait_semaphores)},
      {"vkGetFenceStatus", erased(&fence_status)},
      {"vkCmdDispatch", erased(&dispatch)},
      {"vkCmdDispatchBase", erased(&dispatch_base)},
      {"vkCmdDispatchBaseKHR", erased(&dispatch_base)},
      {kIdle[0], erased(&wait_idle<0>)},
      {kIdle[1], erased(&wait_idle<1>)},
      {kOthers[0], erased(&other<0, uint64_t, uint64_t, uint64_t>)},
      {kOthers[1], erased(&other<1, uint64_t, uint64_t, uint64_t, uint32_t, void**>)},
      {kOthers[2], erased(&other<2, const void*, void**>)},
      {kOthers[3], erased(&other<3, uint64_t, uint32_t>)},
      {kOthers[4], erased(&other<4, uint32_t, const uint64_t*>)},
      {kOthers[5], erased(&other<5, const void*>)},
      {kOthers[6], erased(&other<6>)},
      {kOthers[7], erased(&other<7, uint32_t>)},
      {kOthers[8], erased(&other<8, uint32_t, const void*, void*>)},
  });
}

}  // namespace vulkan_faults
