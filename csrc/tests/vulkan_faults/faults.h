// What the layer is asked to do, and what it has counted: of the whole process, for all of its Vulkan devices.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace vulkan_faults {

// Values of VkResult.
constexpr int32_t kSuccess = 0, kNotReady = 1, kTimeout = 2, kIncomplete = 5, kOutOfHostMemory = -1,
                  kOutOfDeviceMemory = -2, kInitializationFailed = -3, kDeviceLost = -4;

class Faults {
 public:
  // Settings, with a blank between:
  //   FUNCTION=N:RESULT    call N of it from now on, from 0, has that result and does nothing; N+: all from there on.
  //                        vkQueueSubmit is every way to submit, vkImportMemory a vkAllocateMemory that takes memory of
  //                        the host. RESULT: memory, host, lost, hang, or a number. What is
  //                        lost, or hangs, does so for ever
  //   delay_us=N           every submit takes that much longer on the device
  //   hold=1               what is submitted is not done before that is taken back
  //   memory=N             devices have that many bytes of memory, and as much of a budget; 0: what they have
  //   type=N               devices are of that type (VkPhysicalDeviceType: 2 is a discrete GPU); 0: of their own
  //   grid=N               devices start at most so many blocks at once, in x and in y, and grids that have more are
  //                        complained of; 0: as many as they do
  //   swap=FROM:TO         instructions of kernels with one number of SPIR-V have another: the driver computes wrongly
  //   patience_s=N         waits take at least so long before they give up: compilers of software devices are slow
  //   strict=1             leaks and endless waits end the process
  // An empty text takes all of it back. False: it is not understood, and nothing has changed.
  bool set(const std::string& settings);

  // Of a call that is about to be made; kSuccess: it may be.
  int32_t take(const char* function);
  int64_t calls(const std::string& function);
  uint64_t delay_us();
  uint64_t patience_s();
  uint64_t memory();
  uint32_t type();
  uint32_t grid();
  bool holds();
  // What an instruction of SPIR-V becomes.
  uint32_t swapped(uint32_t opcode);

  // An object made (1) or given back (-1), and its bytes where it is memory.
  void count(const char* kind, int change, int64_t bytes = 0);
  // What is alive at the moment, such as "buffers 3, bytes 4096, devices 1"; empty: nothing.
  std::string live();
  int64_t live_bytes();
  // Bytes of the host's memory that a device takes as its own; negative: gives back.
  void import(int64_t bytes);
  int64_t imported();

  // A leak, a wait that would never end, or a grid that is too large: on standard error, and counted.
  void complain(const std::string& sentence);
  int64_t complaints();

 private:
  struct Plan {
    std::string function;  // empty: none fails
    int64_t number = 0;
    bool all = false;
    int32_t result = kSuccess;
    uint64_t delay_us = 0, patience_s = 0, memory = 0;
    uint32_t type = 0, grid = 0, from = 0, to = 0;
    bool strict = false, holds = false;
  };
  static bool understand(const std::string& setting, Plan* out);

  std::mutex mutex_;
  Plan plan_;
  std::map<std::string, int64_t> calls_, live_;
  int64_t complaints_ = 0, imported_ = 0;
};

Faults& faults();

}  // namespace vulkan_faults
