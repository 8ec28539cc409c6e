// One GPU, opened, as the host's code uses it. gpu/cuda and gpu/vulkan fill this interface; nothing else knows whose
// driver it is. A library is linked with one of them.
//
// Device memory is known by its address, as kernels see it, in a pointer that the host must not follow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpu/launcher.h"

namespace edge_rt::gpu {

// What an error means for whoever asked.
enum class Fault {
  kNone,
  kOutOfMemory,  // other work can go on
  kLost,         // the device: nothing on it can go on
  kHung,         // the device did not answer in time: as if it were lost
  kRefused,      // what was asked for, by our own checks
  kOther,        // that the driver reported
};

struct GpuError {
  Fault fault = Fault::kNone;
  int code = 0;          // the driver's; 0: it has none
  std::string sentence;  // such as "cuMemAlloc failed: CUDA_ERROR_OUT_OF_MEMORY (2)"

  explicit operator bool() const { return fault != Fault::kNone; }
};

// What can be asked of a GPU without opening it.
struct GpuFacts {
  std::string name;
  size_t bytes = 0;         // of its memory
  bool is_unified = false;  // it is the host's, too
  // Why kernels cannot run there; empty: they can.
  std::string refusal;
  // What else there is to know, such as {"compute", "87"}: ONNX Runtime's metadata, and lines of `describe`.
  std::vector<std::pair<std::string, std::string>> more;
};

// The driver's account of memory at present.
struct MemoryBudget {
  size_t free = 0;  // what this process may still take
  size_t total = 0;
};

// A pass that was recorded, to be started again.
class Recording {
 public:
  virtual ~Recording() = default;
};

// Work of one session: it runs in the order in which it was started. One thread at a time.
class GpuQueue {
 public:
  virtual ~GpuQueue() = default;

  // Begins a pass. With `records` nothing runs before `end`.
  virtual bool begin(bool records, GpuError* error) = 0;
  // Copies host memory, which must stay as it is until the pass ends, to the device behind all that was started before.
  // A recorded pass reads it again, at the same address, when it is replayed.
  virtual bool upload(void* to, const void* from, size_t bytes, GpuError* error) = 0;
  // As `Launcher::launch`.
  virtual bool launch(const Kernel& kernel, int grid_x, int grid_y, const void* args, size_t bytes,
                      GpuError* error) = 0;
  // Runs what was recorded, and waits for everything since `begin`. `out`, of a pass that records, gets the recording;
  // with nullptr what was recorded is thrown away without being run.
  virtual bool end(std::unique_ptr<Recording>* out, GpuError* error) = 0;
  // Runs a recording of this queue, and waits for it.
  virtual bool replay(const Recording& recording, GpuError* error) = 0;
};

enum class Way { kToDevice, kToHost, kOnDevice };

// A stretch of device memory that is copied to another place of it.
struct Piece {
  void* to;
  const void* from;
  size_t bytes;
};

// What memory of the host a device takes as its own.
struct ImportRules {
  size_t alignment = 0;          // of its begin and of its size, a power of two; 0: none can be taken
  size_t largest = 0;            // bytes at once
  bool must_be_writable = true;  // though it is only read
};

class GpuDevice {
 public:
  virtual ~GpuDevice() = default;

  virtual int number() const = 0;
  virtual Traits traits() const = 0;
  // Whether nothing on it can go on, but `open_gpu` may open it anew once nobody holds it.
  virtual bool is_lost() const { return false; }

  // nullptr: there is none. Addresses are multiples of 256.
  virtual void* allocate(size_t bytes, GpuError* error) = 0;
  virtual void free(void* memory) = 0;
  // Memory of the host that copies take at full speed, and kernels may read. `device` gets its address for kernels.
  virtual void* allocate_host(size_t bytes, void** device, GpuError* error) = 0;
  virtual void free_host(void* memory) = 0;
  // Why the last allocation failed, if that was for anything but too little memory: a device that is lost, for example.
  virtual GpuError failure() const = 0;
  virtual bool budget(MemoryBudget* out, GpuError* error) = 0;

  // Waits until all queues have done what they were given. Not by a thread whose queue records.
  virtual bool settle(GpuError* error) = 0;
  // The same, then copies, and returns when that is done.
  virtual bool copy(Way way, void* to, const void* from, size_t bytes, GpuError* error) = 0;
  // The same of many pieces on the device, in any order: none is written that another one is of, or is written to.
  virtual bool copy_pieces(const std::vector<Piece>& pieces, GpuError* error) = 0;

  virtual std::unique_ptr<GpuQueue> open_queue(GpuError* error) = 0;

  virtual ImportRules import_rules() const { return {}; }
  // Gives the address for kernels of memory of the host, by the rules above, which stays as it is until that address is
  // given back. nullptr: it is refused.
  virtual void* import(void* host, size_t bytes, GpuError* error) {
    (void)host, (void)bytes;
    *error = {Fault::kRefused, 0, "the device takes no memory of the host"};
    return nullptr;
  }
  // At once: nothing that was started may use it any more. False: the device hangs, and may read it for ever.
  virtual bool free_import(void* address) {
    (void)address;
    return true;
  }
};

// The GPUs that the driver tells of, by number; those that will not do have a refusal. False: there is no driver.
bool list_gpus(std::vector<GpuFacts>* out, GpuError* error);

// The driver's version in its own words, such as "13000"; empty: there is no driver.
std::string driver_version();

// What kernels that try out a GPU's arithmetic have found.
struct SelfTest {
  bool has_cpu_bits = true;  // of a row, once what differs is mended; false: rows are exact among themselves only
  // By operation, such as "fma": "as it is", "mended" or "differs".
  std::vector<std::pair<std::string, std::string>> operations;
};

// Tries a GPU, which is opened for it with the kernels it was given.
bool test_gpu(int number, SelfTest* out, GpuError* error);

// The same device for all who ask while somebody holds it, unless it is lost; nullptr on failure.
std::shared_ptr<GpuDevice> open_gpu(int number, GpuError* error);

// Code of kernels for the GPU of a number, out of a file of that name; a GPU that is opened from now on has it.
void set_kernels(int number, const std::string& name, const void* image, size_t bytes);

// A file for what the driver of the GPU of a number makes of its kernels, which is read when that is opened from now
// on, and written when there is more. What is in it that is not this driver's is of no effect.
void keep_compiled(int number, const std::string& file);

// Of this backend, for ONNX Runtime and for messages.
extern const char* const kProviderName;
extern const uint32_t kVendor;  // PCI number that device memory is told apart by

}  // namespace edge_rt::gpu
