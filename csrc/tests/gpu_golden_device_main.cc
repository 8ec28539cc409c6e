// GPU kernels started by a driver, on a GPU or an emulated one, against the golden bits (gpu_golden.h).
//
//   gpu_golden_device <golden_bits> <cubin> ...      on GPU 0, with all its kernels
//   gpu_golden_emulated <golden_bits> <any file>     the same where there is no GPU
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "gpu/gpu_device.h"
#include "tests/gpu_golden.h"
#include "tests/gpu_pinned_heap.h"

namespace edge_rt::gpu {
namespace {

constexpr size_t kHeapBytes = size_t{256} << 20;

bool report(const char* what, const GpuError& error) {
  std::fprintf(stderr, "%s: %s\n", what, error.sentence.c_str());
  return false;
}

// Memory of the host with the address that kernels know it by.
struct Heap {
  void* pages = nullptr;
  void* on_device = nullptr;
};

// Starts kernels on a queue, and waits for each.
class WaitingLauncher : public Launcher {
 public:
  WaitingLauncher(GpuDevice* device, GpuQueue* queue, const Heap& heap) : device_(device), queue_(queue), heap_(heap) {}

  Traits traits() const override { return device_->traits(); }
  using Launcher::launch;
  bool launch(const Kernel& kernel, int grid_x, int grid_y, const void* args, size_t bytes) override {
    if (const int64_t place = find_foreign_address(args, bytes); place >= 0) {
      std::fprintf(stderr, "%s: byte %lld of its arguments is an address that no GPU can read\n", kernel.name,
                   static_cast<long long>(place));
      return false;
    }
    const std::vector<char> own = with_own_addresses(args, bytes);
    GpuError error;
    return (queue_->begin(false, &error) && queue_->launch(kernel, grid_x, grid_y, own.data(), bytes, &error) &&
            queue_->end(nullptr, &error)) ||
           report(kernel.name, error);
  }

 private:
  // The arguments with what points into the heap as kernels know it.
  std::vector<char> with_own_addresses(const void* args, size_t bytes) const {
    std::vector<char> out(bytes);
    if (bytes > 0) std::memcpy(out.data(), args, bytes);
    const auto begin = reinterpret_cast<uintptr_t>(heap_.pages);
    for (size_t place = 0; place + sizeof(uintptr_t) <= bytes; place += sizeof(uintptr_t)) {
      uintptr_t word = 0;
      std::memcpy(&word, &out[place], sizeof word);
      if (word < begin || word > begin + kHeapBytes) continue;
      word += reinterpret_cast<uintptr_t>(heap_.on_device) - begin;
      std::memcpy(&out[place], &word, sizeof word);
    }
    return out;
  }

  GpuDevice* device_;
  GpuQueue* queue_;
  Heap heap_;
};

// A file is named as what it holds.
bool hand_over_kernels(const char* path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> image((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (image.empty()) {
    std::fprintf(stderr, "%s cannot be read, or is empty\n", path);
    return false;
  }
  set_kernels(0, std::filesystem::path(path).stem().string(), image.data(), image.size());
  return true;
}

int run(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "use: %s <file of expected bits> <compiled kernels> ...\n", argv[0]);
    return 2;
  }
  for (int i = 2; i < argc; ++i) {
    if (!hand_over_kernels(argv[i])) return 2;
  }
  GpuError error;
  const std::shared_ptr<GpuDevice> device = open_gpu(0, &error);
  if (device == nullptr) return report("GPU 0", error), 2;
  Heap heap;
  heap.pages = device->allocate_host(kHeapBytes, &heap.on_device, &error);
  if (heap.pages == nullptr) return report("pinned memory", error), 2;
  const std::unique_ptr<GpuQueue> queue = device->open_queue(&error);
  if (queue == nullptr) return report("a queue", error), 2;
  begin_pinned_heap(heap.pages, kHeapBytes);
  WaitingLauncher launcher(device.get(), queue.get(), heap);
  const int code = golden::compare_gpu_cases(argv[1], &launcher);
  // No return: the driver takes the heap back with the device, and what is destroyed behind that lies in it.
  std::fflush(nullptr);
  std::_Exit(code);
}

}  // namespace
}  // namespace edge_rt::gpu

int main(int argc, char** argv) { return edge_rt::gpu::run(argc, argv); }
