// GPU kernels started by the driver, on a GPU or an emulated one, against the golden bits (gpu_golden.h).
//
//   gpu_golden_device <golden_bits> <cubin> ...      on GPU 0, with all its kernels
//   gpu_golden_emulated <golden_bits> <any file>     the same where there is no GPU
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "gpu/pass_stream.h"
#include "tests/gpu_golden.h"
#include "tests/gpu_pinned_heap.h"

namespace edge_rt::gpu {
namespace {

constexpr size_t kHeapBytes = size_t{256} << 20;

bool report(const char* what, const DriverError& error) {
  std::fprintf(stderr, "%s: %s\n", what, error.sentence().c_str());
  return false;
}

// Starts kernels on a stream, and waits for each.
class WaitingLauncher : public Launcher {
 public:
  explicit WaitingLauncher(PassStream* stream) : stream_(stream) {}

  using Launcher::launch;
  bool launch(const Kernel& kernel, int grid_x, int grid_y, const void* args, size_t bytes) override {
    if (const int64_t place = find_foreign_address(args, bytes); place >= 0) {
      std::fprintf(stderr, "%s: byte %lld of its arguments is an address that no GPU can read\n", kernel.name,
                   static_cast<long long>(place));
      return false;
    }
    DriverError error;
    if (!stream_->begin_pass(kNoGraph, &error)) return report(kernel.name, error);
    const bool has_started = stream_->launch(kernel, grid_x, grid_y, args, bytes);
    if (!has_started) return report(kernel.name, stream_->take_error());
    return stream_->end_pass(false, &error) || report(kernel.name, error);
  }

 private:
  PassStream* stream_;
};

bool hand_over_kernels(const char* path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> image((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (image.empty()) {
    std::fprintf(stderr, "%s cannot be read, or is empty\n", path);
    return false;
  }
  set_kernels(0, path, image.data(), image.size());
  return true;
}

int run(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "use: %s <file of expected bits> <cubin> ...\n", argv[0]);
    return 2;
  }
  for (int i = 2; i < argc; ++i) {
    if (!hand_over_kernels(argv[i])) return 2;
  }
  DriverError error;
  const std::shared_ptr<GpuContext> context = GpuContext::open(0, &error);
  if (context == nullptr || !context->enter(&error)) return report("GPU 0", error), 2;
  void* pages = nullptr;
  if (!EDGE_RT_DRIVER_CALL(context->driver(), cuMemHostAlloc, &error, &pages, kHeapBytes, 0)) {
    return report("pinned memory", error), 2;
  }
  const std::unique_ptr<PassStream> stream = PassStream::open(context, &error);
  if (stream == nullptr) return report("a stream", error), 2;
  begin_pinned_heap(pages, kHeapBytes);
  WaitingLauncher launcher(stream.get());
  const int code = golden::compare_gpu_cases(argv[1], &launcher);
  // No return: the driver takes the heap back with the context, and what is destroyed behind that lies in it.
  std::fflush(nullptr);
  std::_Exit(code);
}

}  // namespace
}  // namespace edge_rt::gpu

int main(int argc, char** argv) { return edge_rt::gpu::run(argc, argv); }
