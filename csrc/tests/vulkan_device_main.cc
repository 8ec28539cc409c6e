// A device of the Vulkan backend: copies, recordings, queues beside each other, memory that there is not, code that is
// none, and passes that are cut.
//
//   vulkan_device_test <folder with copy_rows.spv> <folder with self_test.spv>
//
// Ends with 77 where there is no Vulkan device, or no such file.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "gpu/vulkan/spirv.h"
#include "gpu/vulkan/vulkan_device.h"
#include "ops/copy_rows/copy_rows.h"
#include "tests/check.h"

namespace edge_rt::gpu {
namespace {

constexpr int kSkipped = 77;
KernelCode code;    // copy_rows
int of_device = 0;  // the number

std::shared_ptr<VulkanDevice> open_device(const VulkanLimits& limits = {}) {
  GpuError error;
  std::shared_ptr<VulkanDevice> made = VulkanDevice::open(of_device, code, limits, &error);
  if (made == nullptr) std::fprintf(stderr, "%s\n", error.sentence.c_str());
  CHECK(made != nullptr);
  return made;
}

// Memory of a device that is given back.
class Memory {
 public:
  Memory(VulkanDevice* device, size_t bytes) : device_(device) {
    GpuError error;
    at_ = device->allocate(bytes, &error);
    CHECK(at_ != nullptr && reinterpret_cast<uintptr_t>(at_) % 256 == 0);
  }
  ~Memory() { device_->free(at_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  char* at(size_t byte = 0) const { return static_cast<char*>(at_) + byte; }
  float* floats() const { return static_cast<float*>(at_); }

 private:
  VulkanDevice* device_;
  void* at_;
};

void copy(VulkanDevice* device, Way way, void* to, const void* from, size_t bytes) {
  GpuError error;
  CHECK(device->copy(way, to, from, bytes, &error));
}

std::vector<uint8_t> some_bytes(size_t count, uint32_t seed) {
  std::vector<uint8_t> out(count);
  for (uint8_t& byte : out) byte = static_cast<uint8_t>((seed = seed * 1664525 + 1013904223) >> 24);
  return out;
}

// There, to another place and back, at odd places and sizes, also of several stretches of the staging memory.
void run_copies(bool maps_memory, bool reads_memory) {
  VulkanLimits limits;
  limits.maps_memory = maps_memory;
  limits.reads_memory = reads_memory;
  const auto device = open_device(limits);
  for (const size_t bytes : {size_t{1}, size_t{255}, size_t{4099}, (size_t{4} << 20) + 3, (size_t{9} << 20) + 1}) {
    const Memory first(device.get(), bytes + 64), second(device.get(), bytes + 64);
    const std::vector<uint8_t> from = some_bytes(bytes, static_cast<uint32_t>(bytes));
    std::vector<uint8_t> to(bytes);
    copy(device.get(), Way::kToDevice, first.at(7), from.data(), bytes);
    copy(device.get(), Way::kOnDevice, second.at(13), first.at(7), bytes);
    copy(device.get(), Way::kToHost, to.data(), second.at(13), bytes);
    CHECK(to == from);
    GpuError error;
    CHECK(!device->copy(Way::kToHost, to.data(), second.at(65), bytes, &error));
    CHECK(error.fault == Fault::kRefused && error.sentence.find(std::to_string(bytes)) != std::string::npos);
  }
}

// Many pieces at once, of any size, to other places in another order; none where one lies outside of the memory.
void run_pieces(bool maps_memory, bool reads_memory) {
  VulkanLimits limits;
  limits.maps_memory = maps_memory;
  limits.reads_memory = reads_memory;
  const auto device = open_device(limits);
  constexpr size_t kCount = 300;
  size_t bytes = 0;
  for (size_t i = 0; i < kCount; ++i) bytes += i % 37;
  const Memory first(device.get(), bytes), second(device.get(), bytes);
  const std::vector<uint8_t> from = some_bytes(bytes, 5);
  std::vector<uint8_t> wanted(bytes), found(bytes);
  std::vector<Piece> pieces;
  for (size_t i = 0, at = 0; i < kCount; ++i) {
    const size_t size = i % 37, to = bytes - at - size;
    pieces.push_back({second.at(to), first.at(at), size});
    std::copy_n(&from[0] + at, size, &wanted[0] + to);
    at += size;
  }
  copy(device.get(), Way::kToDevice, first.at(), from.data(), bytes);
  GpuError error;
  CHECK(device->copy_pieces(pieces, &error));
  copy(device.get(), Way::kToHost, found.data(), second.at(), bytes);
  CHECK(found == wanted);
  CHECK(device->copy_pieces({}, &error) && !error);
  CHECK(!device->copy_pieces({{second.at(), first.at(1), bytes}}, &error));
  CHECK(error.fault == Fault::kRefused);
}

// Rows of `from` in another memory.
struct Rows {
  Rows(VulkanDevice* device, int64_t number, int64_t wide)
      : rows(number), width(wide), from(device, bytes()), to(device, bytes()) {}
  size_t bytes() const { return static_cast<size_t>(rows * width) * sizeof(float); }
  bool launch(GpuQueue* queue, GpuError* error) const {
    const CopyRows job{from.floats(), nullptr, 0, 0, rows, width, to.floats(), width};
    return queue->launch("copy_rows", static_cast<int>(rows), static_cast<int>((width + 127) / 128), &job, sizeof job,
                         error);
  }
  std::vector<float> numbers(float first) const {
    std::vector<float> out(static_cast<size_t>(rows * width));
    for (float& number : out) number = first++;
    return out;
  }
  void check(VulkanDevice* device, const std::vector<float>& wanted) const {
    std::vector<float> found(wanted.size());
    copy(device, Way::kToHost, found.data(), to.at(), bytes());
    CHECK(found == wanted);
  }
  int64_t rows, width;
  Memory from, to;
};

// Kernels and copies read pages of a file.
void run_imports() {
  const auto device = open_device();
  const ImportRules rules = device->import_rules();
  if (rules.alignment == 0) {
    std::puts("the device takes no memory of the host");
    return;
  }
  CHECK(rules.alignment >= 4096 && (rules.alignment & (rules.alignment - 1)) == 0 && rules.largest > 0);
  const size_t bytes = std::max<size_t>(rules.alignment, size_t{128} << 10);
  const int64_t width = static_cast<int64_t>(bytes / sizeof(float));
  const Rows rows(device.get(), 1, width);
  const std::vector<float> numbers = rows.numbers(3);
  std::FILE* const file = std::tmpfile();
  CHECK(file != nullptr && std::fwrite(numbers.data(), 1, bytes, file) == bytes && std::fflush(file) == 0);
  const int access = rules.must_be_writable ? PROT_READ | PROT_WRITE : PROT_READ;
  void* const mapped = mmap(nullptr, bytes, access, MAP_PRIVATE, fileno(file), 0);
  CHECK(mapped != MAP_FAILED && reinterpret_cast<uintptr_t>(mapped) % rules.alignment == 0);
  GpuError error;
  void* const address = device->import(mapped, bytes, &error);
  if (address == nullptr) std::fprintf(stderr, "%s\n", error.sentence.c_str());
  CHECK(address != nullptr);
  const auto queue = device->open_queue(&error);
  const CopyRows job{static_cast<const float*>(address), nullptr, 0, 0, 1, width, rows.to.floats(), width};
  CHECK(queue != nullptr && queue->begin(false, &error) &&
        queue->launch("copy_rows", 1, static_cast<int>((width + 127) / 128), &job, sizeof job, &error) &&
        queue->end(nullptr, &error));
  rows.check(device.get(), numbers);
  std::vector<float> found(numbers.size());
  copy(device.get(), Way::kToHost, found.data(), address, bytes);
  CHECK(found == numbers);
  CHECK(device->free_import(address));
  CHECK(std::memcmp(mapped, numbers.data(), bytes) == 0);
  munmap(mapped, bytes);
  std::fclose(file);
}

void run_pass(GpuQueue* queue, const Rows& rows, const std::vector<float>& numbers, std::unique_ptr<Recording>* out) {
  GpuError error;
  const bool is_done = queue->begin(out != nullptr, &error) &&
                       queue->upload(rows.from.at(), numbers.data(), rows.bytes(), &error) &&
                       rows.launch(queue, &error) && queue->end(out, &error);
  if (!is_done) std::fprintf(stderr, "%s\n", error.sentence.c_str());
  CHECK(is_done);
}

// Two queues with recordings, replayed by two threads with other numbers each time.
void run_queues() {
  const auto device = open_device();
  const auto work = [&](float seed) {
    GpuError error;
    const auto queue = device->open_queue(&error);
    CHECK(queue != nullptr);
    const Rows rows(device.get(), 5, 300);
    std::vector<float> numbers = rows.numbers(seed);
    run_pass(queue.get(), rows, numbers, nullptr);
    std::unique_ptr<Recording> recording;
    run_pass(queue.get(), rows, numbers, &recording);
    for (int i = 0; i < 20; ++i) {
      for (float& number : numbers) number += seed;
      CHECK(queue->replay(*recording, &error));
      rows.check(device.get(), numbers);
    }
  };
  std::thread other(work, 3.0f);
  work(7.0f);
  other.join();
}

// While one thread records, others copy; the thread itself may not. What is thrown away has not run.
void run_settling() {
  const auto device = open_device();
  GpuError error;
  const auto queue = device->open_queue(&error);
  const Rows rows(device.get(), 3, 200);
  const std::vector<float> before = rows.numbers(1), numbers = rows.numbers(1000);
  copy(device.get(), Way::kToDevice, rows.to.at(), before.data(), rows.bytes());
  CHECK(queue->begin(true, &error) && queue->upload(rows.from.at(), numbers.data(), rows.bytes(), &error) &&
        rows.launch(queue.get(), &error));
  std::vector<float> found(numbers.size());
  CHECK(!device->copy(Way::kToHost, found.data(), rows.to.at(), rows.bytes(), &error));
  CHECK(error.fault == Fault::kRefused && error.sentence.find("recorded") != std::string::npos);
  std::thread([&] { rows.check(device.get(), before); }).join();
  error = {};
  CHECK(queue->end(nullptr, &error));
  rows.check(device.get(), before);
  // A pass that is not recorded has run by the time of a copy.
  CHECK(queue->begin(false, &error) && queue->upload(rows.from.at(), numbers.data(), rows.bytes(), &error) &&
        rows.launch(queue.get(), &error));
  std::thread([&] { rows.check(device.get(), numbers); }).join();
  CHECK(queue->end(nullptr, &error));
}

void run_too_much() {
  const auto device = open_device();
  GpuError error;
  CHECK(device->allocate(size_t{1} << 60, &error) == nullptr);
  CHECK((error.fault == Fault::kRefused || error.fault == Fault::kOutOfMemory) && !error.sentence.empty());
  CHECK((error.fault == Fault::kRefused) == static_cast<bool>(device->failure()));
  const Memory some(device.get(), 1000);
  CHECK(!device->failure());
  MemoryBudget budget;
  CHECK(device->budget(&budget, &error) && 0 < budget.free && budget.free <= budget.total);
  GpuError of_grid;
  const auto queue = device->open_queue(&of_grid);
  const Rows rows(device.get(), 1, 10);
  CHECK(queue->begin(false, &of_grid));
  const CopyRows job{rows.from.floats(), nullptr, 0, 0, 1, 10, rows.to.floats(), 10};
  CHECK(!queue->launch("copy_rows", 0, 1, &job, sizeof job, &of_grid) && of_grid.fault == Fault::kRefused);
  of_grid = {};
  CHECK(queue->end(nullptr, &of_grid));
}

// Code that is none is refused by us, before a driver sees it.
void run_wrong_code() {
  const KernelCode right = code;
  const std::vector<uint32_t>& words = right.at("copy_rows");
  std::vector<uint32_t> unknown = words;
  for (size_t at = 5; at < unknown.size(); at += unknown[at] >> 16) {
    if ((unknown[at] & 0xffff) == 17) {
      unknown[at + 1] = 5;  // OpCapability Kernel: of OpenCL
      break;
    }
  }
  code["nothing"] = {};
  code["noise"] = std::vector<uint32_t>(100, 0x12345678);
  code["half"] = std::vector<uint32_t>(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(words.size() / 2));
  code["header"] = std::vector<uint32_t>(words.begin(), words.begin() + 5);
  code["unknown"] = unknown;
  const auto device = open_device();
  code = right;
  GpuError error;
  const auto queue = device->open_queue(&error);
  CHECK(queue->begin(false, &error));
  const CopyRows job{};
  for (const char* name : {"nothing", "noise", "half", "header", "unknown", "absent"}) {
    GpuError refused;
    const bool is_started = queue->launch(name, 1, 1, &job, sizeof job, &refused);
    if (std::strcmp(name, "half") == 0 && is_started) continue;  // cut between two instructions
    CHECK(!is_started && refused.fault == Fault::kRefused && refused.sentence.find(name) != std::string::npos);
  }
  const Rows rows(device.get(), 2, 100);
  const std::vector<float> numbers = rows.numbers(5);
  CHECK(queue->end(nullptr, &error));
  run_pass(queue.get(), rows, numbers, nullptr);
  rows.check(device.get(), numbers);
}

// Counts what is handed over.
std::atomic<int> submits{0};
vk::VkResult (*submit)(vk::VkQueue, uint32_t, const vk::VkSubmitInfo*, vk::VkFence) = nullptr;
vk::VkResult count_submit(vk::VkQueue queue, uint32_t count, const vk::VkSubmitInfo* infos, vk::VkFence fence) {
  ++submits;
  return submit(queue, count, infos, fence);
}

// With a limit that every block exceeds, each is handed over by itself; without one, all at once.
void run_cut(bool is_cut) {
  VulkanLimits limits;
  limits.submit = is_cut ? std::chrono::nanoseconds(1) : std::chrono::nanoseconds(std::chrono::hours(1));
  const auto device = open_device(limits);
  GpuError error;
  const auto queue = device->open_queue(&error);
  const Rows rows(device.get(), 40, 700);
  submit = device->link().call.vkQueueSubmit;
  device->link().call.vkQueueSubmit = count_submit;
  for (int i = 0; i < 2; ++i) {
    const std::vector<float> numbers = rows.numbers(static_cast<float>(i + 5));
    std::unique_ptr<Recording> recording;
    submits = 0;
    run_pass(queue.get(), rows, numbers, i == 0 ? nullptr : &recording);
    // The first time the upload, a few blocks of 240 of a kernel that nobody knows, and the rest.
    const int least = is_cut ? 180 : 1, most = is_cut ? 242 : i == 0 ? 3 : 1;
    if (submits < least || submits > most) std::fprintf(stderr, "%d submits\n", submits.load());
    CHECK(least <= submits && submits <= most);
    rows.check(device.get(), numbers);
    if (recording == nullptr) continue;
    CHECK(queue->replay(*recording, &error));
    rows.check(device.get(), numbers);
  }
}

// Float modes and the fused multiply-add get into a module where a device has them.
void run_adapting() {
  constexpr uint32_t kCapability = 2 << 16 | 17, kImport = 6 << 16 | 11, kEntry = 5 << 16 | 15, kMode = 6 << 16 | 16,
                     kExtInst = 8 << 16 | 12, kGlFma = 50;
  const std::vector<uint32_t> name = {0x4c534c47, 0x6474732e, 0x3035342e, 0};  // GLSL.std.450
  std::vector<uint32_t> module = {0x07230203, 0x10500, 0, 100, 0, kCapability, 1, kImport, 1};
  module.insert(module.end(), name.begin(), name.end());
  const std::vector<uint32_t> rest = {kEntry, 5,        4, 0x6e69616d, 0, kMode,  4,  17, 64, 1,
                                      1,      kExtInst, 6, 9,          1, kGlFma, 10, 11, 12};
  module.insert(module.end(), rest.begin(), rest.end());
  VulkanFacts facts;
  std::vector<uint32_t> out;
  std::string problem;
  CHECK(adapt_module(module, facts, &out, &problem) && out == module);
  facts.keeps_denormals = facts.has_fma = true;
  std::vector<uint32_t> wanted = {0x07230203, 0x10500,     0,          100,         0,    kCapability,
                                  1,          kCapability, 4464,       kCapability, 6030, 4 << 16 | 10,
                                  0x5f565053, 0x5f52484b,  0x00616d66, kImport,     1};
  wanted.insert(wanted.end(), name.begin(), name.end());
  const std::vector<uint32_t> behind = {
      kEntry, 5, 4, 0x6e69616d, 0, 4 << 16 | 16, 4, 4459, 32, kMode, 4, 17, 64, 1, 1, 6 << 16 | 4427, 6, 9, 10, 11, 12};
  wanted.insert(wanted.end(), behind.begin(), behind.end());
  CHECK(adapt_module(module, facts, &out, &problem) && out == wanted);
}

// The mode of the thread that opens a device, and starts kernels, is not that of a software device's threads: a library
// built with -ffast-math sets one in which subnormal numbers are zeros.
void run_float_mode() {
#if defined(__x86_64__)
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0xe040);  // to zero, and subnormal results and operands are zeros
#endif
  const auto device = open_device();
  GpuError error;
  const auto queue = device->open_queue(&error);
  const Memory a(device.get(), 256), y(device.get(), 256);
  const std::vector<uint32_t> halves(64, 0x3f000000), smallest(64, 0x00800000);
  struct {
    void *a, *b, *c, *y;
    int32_t count, operation;
  } const product{a.at(), y.at(), a.at(), y.at(), 64, 1};
  copy(device.get(), Way::kToDevice, a.at(), halves.data(), 256);
  copy(device.get(), Way::kToDevice, y.at(), smallest.data(), 256);
  CHECK(queue->begin(false, &error) && queue->launch("self_test", 1, 1, &product, sizeof product, &error) &&
        queue->end(nullptr, &error));
#if defined(__x86_64__)
  _mm_setcsr(before);
#endif
  std::vector<uint32_t> found(64);
  copy(device.get(), Way::kToHost, found.data(), y.at(), 256);
  bool multiplies = false;
  for (const auto& [name, how] : device->self_test().operations) multiplies |= name == "multiply" && how == "as it is";
  // A device that is not as exact says so; processors are.
  CHECK(multiplies || device->link().facts().type != vk::VK_PHYSICAL_DEVICE_TYPE_CPU);
  CHECK(multiplies == (found == std::vector<uint32_t>(64, 0x00400000)));
  CHECK(!device->self_test().operations.empty());
}

int skip(const std::string& why) {
  std::printf("skipped: %s\n", why.c_str());
  return kSkipped;
}

bool read_code(const std::string& folder, const std::string& name) {
  std::ifstream file(folder + "/" + name + ".spv", std::ios::binary);
  const std::vector<char> image((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (image.empty()) return false;
  code[name].resize(image.size() / sizeof(uint32_t));
  std::memcpy(code[name].data(), image.data(), image.size());
  return true;
}

int run(int argc, char** argv) {
  run_adapting();
  if (argc != 3) return std::fprintf(stderr, "use: %s <folder of kernels> <another one>\n", argv[0]), 2;
  for (const char* const name : {"copy_rows", "self_test"}) {
    if (!read_code(argv[1], name) && !read_code(argv[2], name))
      return skip(std::string("there is no ") + name + ".spv");
  }
  std::vector<GpuFacts> gpus;
  GpuError error;
  if (!list_gpus(&gpus, &error)) return skip(error.sentence);
  while (static_cast<size_t>(of_device) < gpus.size() && !gpus[static_cast<size_t>(of_device)].refusal.empty()) {
    ++of_device;
  }
  if (static_cast<size_t>(of_device) == gpus.size()) return skip("no Vulkan device will do");
  run_float_mode();
  code.erase("self_test");  // which takes its time
  run_copies(true, true);
  run_pieces(true, true);
  run_copies(true, false);
  run_pieces(true, false);
  run_copies(false, false);
  run_pieces(false, false);
  run_imports();
  run_queues();
  run_settling();
  run_too_much();
  run_wrong_code();
  run_cut(true);
  run_cut(false);
  return 0;
}

}  // namespace
}  // namespace edge_rt::gpu

int main(int argc, char** argv) { return edge_rt::gpu::run(argc, argv); }
