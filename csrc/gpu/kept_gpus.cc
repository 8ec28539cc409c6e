#include "gpu/kept_gpus.h"

#include <map>
#include <mutex>
#include <utility>

namespace edge_rt::gpu {
namespace {

struct Kept {
  std::mutex lock;
  std::map<int, std::shared_ptr<GpuDevice>> gpus;
};

Kept& kept() {
  static auto* const made = new Kept;  // a provider may outlive static objects
  return *made;
}

}  // namespace

std::shared_ptr<GpuDevice> keep_gpu(int number, GpuError* error) {
  drop_lost_gpu(number);
  const std::lock_guard<std::mutex> guard(kept().lock);
  std::shared_ptr<GpuDevice>& known = kept().gpus[number];
  if (known == nullptr) known = open_gpu(number, error);
  return known;
}

void drop_lost_gpu(int number) {
  const std::lock_guard<std::mutex> guard(kept().lock);
  std::shared_ptr<GpuDevice>& known = kept().gpus[number];
  if (known != nullptr && known->is_lost()) known = nullptr;
}

void drop_kept_gpus() {
  std::map<int, std::shared_ptr<GpuDevice>> gone;
  const std::lock_guard<std::mutex> guard(kept().lock);
  gone = std::exchange(kept().gpus, {});
}

}  // namespace edge_rt::gpu
