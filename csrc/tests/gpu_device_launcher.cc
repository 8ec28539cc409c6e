#include "tests/gpu_device_launcher.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "tests/gpu_pinned_heap.h"

namespace edge_rt::gpu {

// Behind a kernel's own arguments, at a multiple of 16 bytes: tests/vulkan/held.glsl.
struct DeviceLauncher::HeldArgs {
  const void *heap, *held, *report;
  uint32_t heap_bytes, args_bytes;
};

namespace {

constexpr char kHeldFunction[] = "check_held(";
constexpr size_t kReportWords = 16;  // of which the first is used

bool report(const char* what, const GpuError& error) {
  std::fprintf(stderr, "%s: %s\n", what, error.sentence.c_str());
  return false;
}

}  // namespace

bool DeviceLauncher::hand_over(const std::string& path) {
  namespace fs = std::filesystem;
  if (fs::is_directory(path)) {
    for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
      if (entry.path().extension() == ".spv" && !hand_over(entry.path().string())) return false;
    }
    return true;
  }
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> image((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (image.empty()) {
    std::fprintf(stderr, "%s cannot be read, or is empty\n", path.c_str());
    return false;
  }
  asks_for_held_ |= std::search(image.begin(), image.end(), kHeldFunction, std::end(kHeldFunction) - 1) != image.end();
  const std::string name = fs::path(path).stem().string();
  set_kernels(0, name, image.data(), image.size());
  kernels_.insert(name);
  return true;
}

DeviceLauncher* DeviceLauncher::open_for_cases(int argc, char** argv, bool* all) {
  *all = argc == 3 && std::strcmp(argv[2], "all") == 0;
  if (argc == 2 || *all) return open(1, argv + 1, kLargeHeapBytes);
  std::fprintf(stderr, "use: %s <folder of compiled kernels> [all]\n", argv[0]);
  return nullptr;
}

DeviceLauncher* DeviceLauncher::open(int count, const char* const* paths, size_t heap_bytes) {
  auto* const made = new DeviceLauncher;
  for (int i = 0; i < count; ++i) {
    if (!made->hand_over(paths[i])) return nullptr;
  }
  GpuError error;
  made->device_ = open_gpu(0, &error);
  if (made->device_ == nullptr) return report("GPU 0", error), nullptr;
  made->pages_ = made->device_->allocate_host(heap_bytes, &made->on_device_, &error);
  // Many GPUs give less at once: a gigabyte on a Raspberry Pi.
  while (made->pages_ == nullptr && heap_bytes > kHeapBytes) {
    heap_bytes /= 2;
    error = {};
    made->pages_ = made->device_->allocate_host(heap_bytes, &made->on_device_, &error);
  }
  if (made->pages_ == nullptr) return report("pinned memory", error), nullptr;
  made->queue_ = made->device_->open_queue(&error);
  if (made->queue_ == nullptr) return report("a queue", error), nullptr;
  made->heap_bytes_ = heap_bytes;
  if (made->asks_for_held_) {
    const size_t bytes = kReportWords * sizeof(uint32_t) + heap_bytes / 8 + sizeof(uint32_t);
    void* const memory = made->device_->allocate_host(bytes, &made->held_on_device_, &error);
    if (memory == nullptr) return report("memory for what is held", error), nullptr;
    made->held_ = static_cast<uint32_t*>(std::memset(memory, 0, bytes));
  }
  begin_pinned_heap(made->pages_, heap_bytes, made->held_ == nullptr ? nullptr : made->held_ + kReportWords);
  return made;
}

bool DeviceLauncher::launch(const Kernel& kernel, int grid_x, int grid_y, const void* args, size_t bytes) {
  if (skips_missing_ && kernels_.count(kernel.name) == 0) return is_missing_ = true;
  if (const int64_t place = find_foreign_address(args, bytes); place >= 0) {
    std::fprintf(stderr, "%s: byte %lld of its arguments is an address that no GPU can read\n", kernel.name,
                 static_cast<long long>(place));
    return false;
  }
  std::vector<char> own(bytes);
  if (bytes > 0) std::memcpy(own.data(), args, bytes);
  const auto begin = reinterpret_cast<uintptr_t>(pages_);
  for (size_t place = 0; place + sizeof(uintptr_t) <= bytes; place += sizeof(uintptr_t)) {
    uintptr_t word = 0;
    std::memcpy(&word, &own[place], sizeof word);
    if (word < begin || word > begin + heap_bytes_) continue;
    word += reinterpret_cast<uintptr_t>(on_device_) - begin;
    std::memcpy(&own[place], &word, sizeof word);
  }
  if (held_ != nullptr) {
    const auto* const known = static_cast<const uint32_t*>(held_on_device_);
    const HeldArgs behind{on_device_, known + kReportWords, known, static_cast<uint32_t>(heap_bytes_),
                          static_cast<uint32_t>(bytes)};
    own.resize((bytes + 15) / 16 * 16);
    own.insert(own.end(), reinterpret_cast<const char*>(&behind), reinterpret_cast<const char*>(&behind + 1));
  }
  GpuError error;
  if (!queue_->begin(false, &error) || !queue_->launch(kernel, grid_x, grid_y, own.data(), own.size(), &error) ||
      !queue_->end(nullptr, &error)) {
    return report(kernel.name, error);
  }
  if (held_ == nullptr) return true;
  if (looked_at_.insert(kernel.name).second) std::printf("looked at %s\n", kernel.name);
  return !find_stray(kernel.name);
}

bool DeviceLauncher::find_stray(const char* kernel) {
  if (held_[0] == 0) return false;
  std::fprintf(stderr, "%s: line %u, or that of a file it includes, reaches for %u bytes that nobody holds\n", kernel,
               held_[0] >> 8, held_[0] & 0xff);
  held_[0] = 0;
  return true;
}

void end_program(int code) {
  std::fflush(nullptr);
  std::_Exit(code);
}

}  // namespace edge_rt::gpu
