// The Vulkan backend on a device that fails, with the layer in vulkan_faults/: every call fails once, wherever it can
// fail. Then there is an error of the right kind, all is given back, and the next time it works.
//
//   vulkan_fault_test <the layer> <copy_rows.spv>     with the environment that vulkan_faults/layer.cc tells of
//   vulkan_fault_test out_of_bounds <copy_rows.spv>   a kernel that writes behind its memory: the validation layer must
//   see it
//
// Ends with 77 where there is no Vulkan device.
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpu/gpu_device.h"
#include "ops/copy_rows/copy_rows.h"
#include "tests/check.h"

namespace edge_rt::gpu {
namespace {

class Layer {
 public:
  explicit Layer(const char* path) : library_(dlopen(path, RTLD_NOW)) { CHECK(library_ != nullptr); }

  void set(const std::string& settings) const {
    CHECK(symbol<int (*)(const char*)>("edge_rt_vulkan_faults_set")(settings.c_str()) != 0);
  }
  int64_t calls(const std::string& function) const {
    return symbol<int64_t (*)(const char*)>("edge_rt_vulkan_faults_calls")(function.c_str());
  }
  std::string live() const {
    char text[512];
    symbol<void (*)(char*, size_t)>("edge_rt_vulkan_faults_live")(text, sizeof text);
    return text;
  }
  int64_t complaints() const { return symbol<int64_t (*)()>("edge_rt_vulkan_faults_complaints")(); }

 private:
  template <class Function>
  Function symbol(const char* name) const {
    void* found = dlsym(library_, name);
    CHECK(found != nullptr);
    return reinterpret_cast<Function>(found);
  }
  void* library_;
};

std::vector<char> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<char> image((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  CHECK(!image.empty());
  return image;
}

constexpr int64_t kWidth = 300;
constexpr size_t kBytes = kWidth * sizeof(float);

// Memory of a device, or of the host.
class Memory {
 public:
  Memory(GpuDevice* device, bool of_host, GpuError* error) : device_(device), of_host_(of_host) {
    memory_ = of_host ? device->allocate_host(kBytes, &address_, error) : device->allocate(kBytes, error);
    if (!of_host) address_ = memory_;
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() {
    if (memory_ == nullptr) return;
    of_host_ ? device_->free_host(memory_) : device_->free(memory_);
  }

  explicit operator bool() const { return memory_ != nullptr; }
  void* get() const { return memory_; }
  float* at_device() const { return static_cast<float*>(address_); }

 private:
  GpuDevice* device_;
  bool of_host_;
  void* memory_ = nullptr;
  void* address_ = nullptr;
};

std::vector<float> numbers(float first) {
  std::vector<float> out(kWidth);
  for (int64_t i = 0; i < kWidth; ++i) out[i] = first + static_cast<float>(i);
  return out;
}

// A pass that uploads numbers and copies them, recorded or not.
bool pass(GpuQueue* queue, const std::vector<float>& from, const Memory& first, const Memory& second,
          std::unique_ptr<Recording>* recording, GpuError* error) {
  if (!queue->begin(recording != nullptr, error)) return false;
  const CopyRows job{first.at_device(), nullptr, 0, 0, 1, kWidth, second.at_device(), kWidth};
  const bool is_started = queue->upload(first.get(), from.data(), kBytes, error) &&
                          queue->launch("copy_rows", 1, (kWidth + 127) / 128, &job, sizeof job, error);
  GpuError of_end;
  const bool has_ended = queue->end(is_started ? recording : nullptr, is_started ? error : &of_end);
  return is_started && has_ended;
}

bool holds(GpuDevice* device, const Memory& memory, const std::vector<float>& wanted, GpuError* error) {
  std::vector<float> found(kWidth);
  if (!device->copy(Way::kToHost, found.data(), memory.get(), kBytes, error)) return false;
  CHECK(found == wanted);
  return true;
}

// Everything that a session does, once.
bool work(GpuError* error) {
  const std::shared_ptr<GpuDevice> device = open_gpu(0, error);
  if (device == nullptr) return false;
  const Memory first(device.get(), false, error);
  if (!first) return false;
  const Memory second(device.get(), false, error);
  if (!second) return false;
  const Memory host(device.get(), true, error);
  if (!host) return false;
  const std::unique_ptr<GpuQueue> queue = device->open_queue(error);
  if (queue == nullptr) return false;
  std::vector<float> from = numbers(1);
  std::unique_ptr<Recording> recording;
  if (!pass(queue.get(), from, first, second, nullptr, error) || !holds(device.get(), second, from, error))
    return false;
  from = numbers(5);
  if (!pass(queue.get(), from, first, host, &recording, error) || !holds(device.get(), host, from, error)) return false;
  CHECK(recording != nullptr);
  const std::vector<float> others = numbers(9);
  std::copy(others.begin(), others.end(), from.begin());
  return queue->replay(*recording, error) && holds(device.get(), host, others, error) && device->settle(error);
}

// Lets each call of a function fail, one after the other, until none is left; the number of errors.
int sweep(const Layer& layer, const std::string& function, const std::string& result,
          const std::vector<Fault>& faults) {
  int errors = 0;
  for (int number = 0;; ++number) {
    CHECK(number < 500);
    const int64_t before = layer.calls(function);
    layer.set(function + "=" + std::to_string(number) + ":" + result);
    GpuError error;
    const bool is_done = work(&error);
    const bool has_failed = layer.calls(function) > before + number;
    layer.set("");
    if (!layer.live().empty() || layer.complaints() != 0) {
      std::fprintf(stderr, "%s, call %d: left behind: %s\n", function.c_str(), number, layer.live().c_str());
      std::exit(1);
    }
    if (!has_failed) {
      CHECK(is_done);
      break;
    }
    // What was refused in one kind of memory may be had in another.
    if (is_done) continue;
    ++errors;
    if (std::find(faults.begin(), faults.end(), error.fault) == faults.end()) {
      std::fprintf(stderr, "%s, call %d: an error of kind %d: %s\n", function.c_str(), number,
                   static_cast<int>(error.fault), error.sentence.c_str());
      std::exit(1);
    }
    CHECK(!error.sentence.empty());
    CHECK(work(&error));
  }
  std::printf("%-28s %-7s %3d errors\n", function.c_str(), result.c_str(), errors);
  return errors;
}

void test_every_call_fails(const Layer& layer) {
  const std::vector<Fault> memory{Fault::kOutOfMemory}, lost{Fault::kLost}, hung{Fault::kHung};
  const std::vector<Fault> any{Fault::kOutOfMemory, Fault::kOther, Fault::kRefused};
  CHECK(sweep(layer, "vkAllocateMemory", "memory", memory) > 0);
  CHECK(sweep(layer, "vkMapMemory", "-5", memory) > 0);  // memory cannot be mapped
  CHECK(sweep(layer, "vkQueueSubmit", "lost", lost) > 0);
  CHECK(sweep(layer, "vkWaitForFences", "lost", lost) > 0);
  for (const char* function :
       {"vkAllocateMemory", "vkCreateBuffer", "vkBindBufferMemory", "vkMapMemory", "vkCreateShaderModule",
        "vkCreatePipelineLayout", "vkCreateComputePipelines", "vkCreateCommandPool", "vkCreateFence",
        "vkCreateSemaphore", "vkAllocateCommandBuffers", "vkBeginCommandBuffer", "vkEndCommandBuffer",
        "vkResetCommandPool", "vkResetCommandBuffer", "vkResetFences", "vkCreateDevice", "vkCreateInstance"}) {
    sweep(layer, function, "host", any);
  }
  sweep(layer, "vkCreateDevice", "-3", any);
  // Last: a device that hangs is left with all it has, and the instance stays.
  CHECK(sweep(layer, "vkQueueSubmit", "hang", hung) > 0);
  CHECK(sweep(layer, "vkWaitForFences", "hang", hung) > 0);
}

// A lost device stays lost for whoever holds it, and is another one when it is opened again.
void test_lost_for_ever(const Layer& layer) {
  GpuError error;
  {
    const std::shared_ptr<GpuDevice> device = open_gpu(0, &error);
    CHECK(device != nullptr);
    const std::unique_ptr<GpuQueue> queue = device->open_queue(&error);
    CHECK(queue != nullptr);
    const Memory first(device.get(), false, &error), second(device.get(), false, &error);
    CHECK(first && second);
    layer.set("vkQueueSubmit=0:lost");
    for (int i = 0; i < 2; ++i) {
      CHECK(!pass(queue.get(), numbers(1), first, second, nullptr, &error) && error.fault == Fault::kLost);
      layer.set("");
    }
    CHECK(device->allocate(kBytes, &error) == nullptr ? error.fault == Fault::kLost : true);
  }
  CHECK(layer.live().empty());
  CHECK(work(&error));
}

// The budget is what the driver says, and more than it is refused.
void test_budget(const Layer& layer) {
  constexpr size_t kLimit = size_t{64} << 20;
  layer.set("memory=" + std::to_string(kLimit));
  {
    GpuError error;
    const std::shared_ptr<GpuDevice> device = open_gpu(0, &error);
    CHECK(device != nullptr);
    MemoryBudget before, after;
    CHECK(device->budget(&before, &error) && before.total == kLimit && before.free <= kLimit);
    void* const large = device->allocate(size_t{40} << 20, &error);
    CHECK(large != nullptr && device->budget(&after, &error));
    CHECK(after.free + (size_t{40} << 20) <= before.free);
    CHECK(device->allocate(size_t{40} << 20, &error) == nullptr && error.fault == Fault::kOutOfMemory);
    CHECK(!device->failure());
    device->free(large);
  }
  layer.set("");
}

// A slow device is waited for.
void test_delay(const Layer& layer) {
  GpuError error;
  layer.set("delay_us=50000");
  const auto begin = std::chrono::steady_clock::now();
  CHECK(work(&error));
  CHECK(std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(150));
  layer.set("");
}

// What another thread runs of a pass may fail and tell nobody: the pass has failed.
void test_settled_by_others(const Layer& layer) {
  GpuError error;
  const std::shared_ptr<GpuDevice> device = open_gpu(0, &error);
  CHECK(device != nullptr);
  const std::unique_ptr<GpuQueue> queue = device->open_queue(&error);
  const Memory first(device.get(), false, &error), second(device.get(), false, &error);
  CHECK(queue != nullptr && first && second);
  const std::vector<float> from = numbers(1);
  CHECK(pass(queue.get(), from, first, second, nullptr, &error));
  CHECK(queue->begin(false, &error) && queue->upload(first.get(), from.data(), kBytes, &error));
  layer.set("vkEndCommandBuffer=0:host");
  std::thread([&] { CHECK(device->settle(&error)); }).join();
  layer.set("");
  CHECK(!error && !queue->end(nullptr, &error) && error.fault == Fault::kOutOfMemory);
  error = {};
  CHECK(pass(queue.get(), from, first, second, nullptr, &error) && holds(device.get(), second, from, &error));
}

// What is freed while passes run is given back behind those that began before, or when memory is short; nothing waits.
void test_freed_behind_passes(const Layer& layer) {
  GpuError error;
  const std::shared_ptr<GpuDevice> device = open_gpu(0, &error);
  CHECK(device != nullptr);
  const std::unique_ptr<GpuQueue> queues[] = {device->open_queue(&error), device->open_queue(&error)};
  const Memory first(device.get(), false, &error), second(device.get(), false, &error);
  CHECK(first && second);
  const std::vector<float> from = numbers(1);
  CHECK(pass(queues[0].get(), from, first, second, nullptr, &error));
  CHECK(pass(queues[1].get(), from, first, second, nullptr, &error));
  CHECK(holds(device.get(), first, from, &error));  // with memory of the host's, where that has to be
  const std::string before = layer.live();
  void* memory = device->allocate(kBytes, &error);
  const std::string with_one = layer.live();
  CHECK(memory != nullptr && with_one != before);
  CHECK(queues[0]->begin(false, &error) && queues[0]->upload(first.get(), from.data(), kBytes, &error));
  const int64_t submits = layer.calls("vkQueueSubmit");
  device->free(memory);
  CHECK(layer.live() == with_one && layer.calls("vkQueueSubmit") == submits);
  // This one began later.
  CHECK(queues[1]->begin(false, &error) && queues[0]->end(nullptr, &error) && layer.live() == before);
  CHECK(queues[1]->end(nullptr, &error) && holds(device.get(), first, from, &error));
  CHECK(layer.live() == before);
}

// Memory of each kind is had once what was freed is given back.
void test_freed_when_short(const Layer& layer) {
  GpuError error;
  const std::shared_ptr<GpuDevice> device = open_gpu(0, &error);
  CHECK(device != nullptr);
  const std::unique_ptr<GpuQueue> queue = device->open_queue(&error);
  const Memory first(device.get(), false, &error), second(device.get(), false, &error);
  CHECK(queue != nullptr && first && second);
  const std::vector<float> from = numbers(1);
  CHECK(pass(queue.get(), from, first, second, nullptr, &error));
  const std::string before = layer.live();
  const size_t pages = std::max<size_t>(device->import_rules().alignment, 4096);
  const std::unique_ptr<void, void (*)(void*)> host(std::aligned_alloc(pages, pages), std::free);
  const auto run_short = [&](const char* function, const std::function<void*()>& take,
                             const std::function<void(void*)>& give) {
    void* const kept = device->allocate(kBytes, &error);
    CHECK(kept != nullptr && queue->begin(false, &error));
    CHECK(queue->upload(first.get(), from.data(), kBytes, &error));
    device->free(kept);
    CHECK(layer.live() != before);
    layer.set(std::string(function) + "=0:memory");
    void* const memory = take();
    layer.set("");
    CHECK(memory != nullptr && !error);
    give(memory);
    CHECK(queue->end(nullptr, &error) && layer.live() == before);
  };
  const auto free = [&](void* memory) { device->free(memory); };
  void* address = nullptr;
  run_short("vkAllocateMemory", [&] { return device->allocate(kBytes, &error); }, free);
  run_short(
      "vkAllocateMemory", [&] { return device->allocate_host(kBytes, &address, &error); },
      [&](void* memory) { device->free_host(memory); });
  if (device->import_rules().alignment == 0) return;
  run_short(
      "vkImportMemory", [&] { return device->import(host.get(), pages, &error); },
      [&](void* memory) { CHECK(device->free_import(memory)); });
}

// Who closes a queue does not wait for another one that somebody waits for.
void test_closed_beside(const Layer& layer) {
  GpuError error;
  const std::shared_ptr<GpuDevice> device = open_gpu(0, &error);
  CHECK(device != nullptr);
  std::unique_ptr<GpuQueue> slow = device->open_queue(&error), closed = device->open_queue(&error);
  const Memory first(device.get(), false, &error), second(device.get(), false, &error);
  CHECK(slow != nullptr && closed != nullptr && first && second);
  CHECK(pass(slow.get(), numbers(1), first, second, nullptr, &error));
  const std::vector<float> from = numbers(2);
  const int64_t submits = layer.calls("vkQueueSubmit");
  layer.set("hold=1");
  std::thread other([&] {
    GpuError failed;
    CHECK(slow->begin(false, &failed) && slow->upload(first.get(), from.data(), kBytes, &failed));
    CHECK(device->settle(&failed) && slow->end(nullptr, &failed));
  });
  while (layer.calls("vkQueueSubmit") == submits) std::this_thread::yield();
  std::atomic<bool> is_closed{false};
  std::thread closer([&] {
    closed.reset();
    closed = device->open_queue(&error);
    is_closed = true;
  });
  // Whoever waits for the other queue does so for ever.
  for (int i = 0; i < 6000 && !is_closed; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  const bool is_free = is_closed;
  layer.set("");
  closer.join();
  other.join();
  CHECK(is_free && closed != nullptr && !error);
}

// A recording that took long is cut anew, and runs as a whole behind a time that this failed.
void test_cut_again(const Layer& layer) {
  GpuError error;
  const std::shared_ptr<GpuDevice> device = open_gpu(0, &error);
  CHECK(device != nullptr);
  const std::unique_ptr<GpuQueue> queue = device->open_queue(&error);
  const Memory first(device.get(), false, &error), second(device.get(), false, &error);
  CHECK(queue != nullptr && first && second);
  std::vector<float> from = numbers(1);
  std::unique_ptr<Recording> recording;
  CHECK(pass(queue.get(), from, first, second, nullptr, &error));
  CHECK(pass(queue.get(), from, first, second, &recording, &error));
  layer.set("delay_us=250000");
  CHECK(queue->replay(*recording, &error) && !error);
  layer.set("");
  for (const char* function : {"vkResetCommandPool", "vkEndCommandBuffer"}) {
    layer.set(std::string(function) + "=0:host");
    CHECK(!queue->replay(*recording, &error) && error.fault == Fault::kOutOfMemory);
    error = {};
  }
  layer.set("");
  const std::vector<float> others = numbers(9);
  std::copy(others.begin(), others.end(), from.begin());
  CHECK(queue->replay(*recording, &error) && holds(device.get(), second, others, &error));
}

// Grids that are larger than what a device starts at once, in either direction or both, are run in parts.
void test_large_grids(const Layer& layer) {
  layer.set("grid=7");
  {
    GpuError error;
    const std::shared_ptr<GpuDevice> device = open_gpu(0, &error);
    CHECK(device != nullptr);
    const std::unique_ptr<GpuQueue> queue = device->open_queue(&error);
    CHECK(queue != nullptr);
    // The last two have as many cells in a direction as there may be.
    constexpr int kMost = 7 * 255;
    using Size = std::pair<int, int>;
    for (const auto& [rows, width] :
         {Size{7, 896}, {8, 100}, {3, 2000}, {40, 2000}, {200, 1000}, {kMost, 60}, {1, kMost * 128}}) {
      const size_t count = static_cast<size_t>(rows) * static_cast<size_t>(width), bytes = count * sizeof(float);
      void* const from = device->allocate(bytes, &error);
      void* const to = device->allocate(bytes, &error);
      CHECK(from != nullptr && to != nullptr);
      std::vector<float> sent(count), found(count);
      const CopyRows job{static_cast<float*>(from), nullptr, 0, 0, rows, width, static_cast<float*>(to), width};
      for (int pass = 0; pass < 2; ++pass) {
        for (size_t i = 0; i < count; ++i) sent[i] = static_cast<float>(i * (pass + 1));
        std::unique_ptr<Recording> recording;
        CHECK(queue->begin(pass == 1, &error) && queue->upload(from, sent.data(), bytes, &error));
        CHECK(queue->launch("copy_rows", rows, (width + 127) / 128, &job, sizeof job, &error));
        CHECK(queue->end(pass == 1 ? &recording : nullptr, &error));
        CHECK(device->copy(Way::kToHost, found.data(), to, bytes, &error) && found == sent);
      }
      device->free(from);
      device->free(to);
    }
    CHECK(layer.complaints() == 0);
    // There are so many cells, and no more.
    CHECK(queue->begin(false, &error));
    CHECK(!queue->launch("copy_rows", kMost + 1, 1, nullptr, 0, &error) && error.fault == Fault::kRefused);
    error = {};
    CHECK(queue->end(nullptr, &error));
  }
  layer.set("");
}

std::string outcome(const SelfTest& test, const std::string& operation) {
  for (const auto& [name, how] : test.operations) {
    if (name == operation) return how;
  }
  return "";
}

// What a driver computes wrongly is mended, or the device refused where nothing can be relied on. Numbers of
// instructions are those of SPIR-V.
void test_wrong_drivers(const Layer& layer, const std::string& folder) {
  for (const char* name : {"self_test", "self_test.dots"}) {
    const std::vector<char> image = read_file(folder + name + ".spv");
    set_kernels(0, name, image.data(), image.size());
  }
  SelfTest right, wrong;
  GpuError error;
  CHECK(test_gpu(0, &right, &error) && outcome(right, "exchange") == "as it is");
  const std::string dots = "dot of bytes";
  std::vector<GpuFacts> gpus;
  CHECK(list_gpus(&gpus, &error));
  const auto& more = gpus[0].more;
  if (std::find(more.begin(), more.end(), std::make_pair(std::string("dots"), std::string("1"))) != more.end()) {
    layer.set("swap=4450:4451");  // products of signed bytes become those of bytes without a sign
    CHECK(test_gpu(0, &wrong, &error) && outcome(wrong, dots) == "mended" && wrong.has_cpu_bits == right.has_cpu_bits);
    layer.set("vkCreateComputePipelines=0:-13");  // of the code with such products
    CHECK(test_gpu(0, &wrong, &error) && outcome(wrong, dots) == "as it is");
  }
  layer.set("swap=194:195");  // shifts copy the sign
  const bool is_refused = !test_gpu(0, &wrong, &error);
  layer.set("");
  CHECK(is_refused && error.fault == Fault::kRefused && error.sentence.find("integers") != std::string::npos);
  error = {};
  CHECK(layer.live().empty() && test_gpu(0, &wrong, &error));
}

int write_out_of_bounds() {
  GpuError error;
  const std::shared_ptr<GpuDevice> device = open_gpu(0, &error);
  CHECK(device != nullptr);
  const Memory first(device.get(), false, &error), second(device.get(), false, &error);
  CHECK(first && second);
  const std::unique_ptr<GpuQueue> queue = device->open_queue(&error);
  CHECK(queue != nullptr && queue->begin(false, &error));
  const CopyRows job{first.at_device(), nullptr, 0, 0, 2, kWidth, second.at_device(), kWidth};
  CHECK(queue->launch("copy_rows", 2, (kWidth + 127) / 128, &job, sizeof job, &error) && queue->end(nullptr, &error));
  return 0;
}

// A pass that nobody can wait for may be under way for ever: what it uses stays.
void test_cannot_wait(const Layer& layer) {
  {
    GpuError error;
    const std::shared_ptr<GpuDevice> device = open_gpu(0, &error);
    CHECK(device != nullptr);
    const std::unique_ptr<GpuQueue> queue = device->open_queue(&error);
    const Memory first(device.get(), false, &error), second(device.get(), false, &error);
    CHECK(queue != nullptr && first && second);
    layer.set("vkWaitForFences=0:host");
    CHECK(!pass(queue.get(), numbers(1), first, second, nullptr, &error) && error.fault == Fault::kHung);
    layer.set("");
  }
  CHECK(!layer.live().empty());
}

int run(int argc, char** argv) {
  CHECK(argc == 3);
  const std::vector<char> image = read_file(argv[2]);
  std::vector<GpuFacts> gpus;
  GpuError error;
  if (!list_gpus(&gpus, &error) || gpus.empty()) {
    std::fprintf(stderr, "no Vulkan device: %s\n", error.sentence.c_str());
    return 77;
  }
  // Not what firmware has set aside, where a GPU can use the machine's memory.
  CHECK(gpus[0].bytes > size_t{512} << 20);
  set_kernels(0, "copy_rows", image.data(), image.size());
  if (std::string(argv[1]) == "out_of_bounds") return write_out_of_bounds();
  const Layer layer(argv[1]);
  CHECK(work(&error));
  // Or the layer is not there, and nothing below would fail.
  CHECK(layer.calls("vkQueueSubmit") > 0);
  test_every_call_fails(layer);
  test_lost_for_ever(layer);
  test_budget(layer);
  test_delay(layer);
  test_cut_again(layer);
  test_settled_by_others(layer);
  test_freed_behind_passes(layer);
  test_freed_when_short(layer);
  test_closed_beside(layer);
  test_large_grids(layer);
  test_wrong_drivers(layer, std::string(argv[2], std::strlen(argv[2]) - std::strlen("copy_rows.spv")));
  test_cannot_wait(layer);  // last: what it leaves is counted
  return 0;
}

}  // namespace
}  // namespace edge_rt::gpu

int main(int argc, char** argv) { return edge_rt::gpu::run(argc, argv); }
