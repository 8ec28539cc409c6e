// Tensors of a file of weights in the memory of a GPU, once for all sessions and models there that read them.
//
// Where the device takes memory of the host as its own, they are read where the file is mapped: its pages are in memory
// once. Elsewhere memory of the device is allocated for each, and the file is read into it in pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "gpu/gpu_device.h"

namespace edge_rt::gpu {

// Bytes of a file.
struct FilePart {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

class WeightsFile {
 public:
  // The same object for all who ask while somebody holds it, the file is the same, and the device is not lost. nullptr:
  // the file cannot be read, or is not of `bytes` bytes, or the device cannot be opened.
  static std::shared_ptr<WeightsFile> open(int number, const std::string& path, uint64_t bytes, GpuError* error);
  ~WeightsFile();
  WeightsFile(const WeightsFile&) = delete;
  WeightsFile& operator=(const WeightsFile&) = delete;

  // Lays tensors into the device's memory, but those that lie there. After a failure some may.
  bool place(const std::vector<FilePart>& parts, GpuError* error);
  // Where a tensor lies that was placed; nullptr: that was not placed.
  void* address(const FilePart& part) const;

  int number() const { return device_->number(); }
  // Of the tensors: those that are read where the file is mapped, or those in memory of the device's own.
  uint64_t bytes(bool is_mapped) const;

 private:
  // A stretch of the file that the device reads.
  struct Window {
    uint64_t begin = 0, end = 0;  // of the file; `end` may lie behind its end
    void* mapped = nullptr;
    size_t reserved = 0;  // bytes from `mapped` on
    void* address = nullptr;
  };
  struct Placed {
    void* address = nullptr;
    bool is_mapped = false;
  };
  using Key = std::pair<uint64_t, uint64_t>;  // a tensor's offset and bytes

  WeightsFile() = default;
  bool import(const std::vector<FilePart>& parts, GpuError* error);
  bool import_window(const ImportRules& rules, Window* window, GpuError* error);
  void* map(const ImportRules& rules, Window* window) const;
  // By way of `piece`.
  bool upload(const FilePart& part, std::vector<char>* piece, GpuError* error);
  bool read(void* to, uint64_t offset, size_t bytes, GpuError* error) const;

  std::shared_ptr<GpuDevice> device_;
  std::string path_;
  uint64_t bytes_ = 0;
  int file_ = -1;
  mutable std::mutex lock_;
  bool is_refused_ = false;  // the device has refused what is mapped: it is not asked again
  std::vector<Window> windows_;
  std::map<Key, Placed> placed_;
};

// What the session that the thread opens next reads, and holds until its passes are done.
std::shared_ptr<WeightsFile>& weights_of_next_session();

}  // namespace edge_rt::gpu
