// What kernels of a pass share, what is asked of memory, and how kernels are found, on the emulated driver.
#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpu/alignment.h"
#include "gpu/cuda/cuda_device.h"
#include "gpu/cuda/device.h"
#include "tests/emulator/emulated_driver.h"
#include "gpu/pass_stream.h"
#include "tests/check.h"
#include "tests/fake_ort.h"

namespace edge_rt::gpu {

struct NoArgs {};
EDGE_RT_KERNEL(pass_test_nothing, 64, NoArgs) {}

namespace {

using Numbers = std::vector<int32_t>;

std::unique_ptr<PassStream> open_stream() {
  emulated::configure({});
  GpuError error;
  std::shared_ptr<GpuDevice> device = open_gpu(0, &error);
  CHECK(device != nullptr);
  std::unique_ptr<PassStream> stream = PassStream::open(device, nullptr, &error);
  CHECK(stream != nullptr);
  CHECK(stream->begin_pass(kNoGraph, &error));
  return stream;
}

size_t bytes_of(const Numbers& numbers) { return numbers.size() * sizeof(int32_t); }

Numbers read(PassStream& stream, const void* memory, size_t count) {
  Numbers out(count);
  GpuError error;
  CHECK(stream.device().copy(Way::kToHost, out.data(), memory, bytes_of(out), &error));
  return out;
}

void bytes_are_copied_once_while_they_stay() {
  const std::unique_ptr<PassStream> stream = open_stream();
  Numbers rows{1, 2, 3};
  const Numbers elsewhere = rows;
  const void* const first = stream->inputs().upload(rows.data(), bytes_of(rows));
  CHECK(first != nullptr);
  CHECK(stream->inputs().upload(rows.data(), bytes_of(rows)) == first);
  CHECK(stream->inputs().upload(rows.data(), bytes_of(rows) - sizeof rows[0]) != first);
  CHECK(stream->inputs().upload(elsewhere.data(), bytes_of(rows)) != first);
  // The memory of one value may be that of another behind it.
  rows[1] = 9;
  const void* const second = stream->inputs().upload(rows.data(), bytes_of(rows));
  CHECK(second != nullptr && second != first);
  CHECK((read(*stream, first, 3) == Numbers{1, 2, 3}));
  CHECK((read(*stream, second, 3) == Numbers{1, 9, 3}));
}

void what_is_derived_is_made_once_a_pass() {
  const std::unique_ptr<PassStream> stream = open_stream();
  const Numbers rows{1, 2};
  int made = 0;
  const auto derive = [&](const void* of) {
    return stream->inputs().derive({of}, 8, [&](void*) { return ++made > 0; });
  };
  for (int pass = 1; pass <= 2; ++pass) {
    const void* const of = stream->inputs().upload(rows.data(), bytes_of(rows));
    const void* const derived = derive(of);
    CHECK(derived != nullptr && derived != of && derive(of) == derived && made == pass);
    CHECK(stream->inputs().is_first({1, 2}) && !stream->inputs().is_first({1, 2}));
    CHECK(stream->inputs().is_first({1, 2, 0}));
    const int64_t allocations = emulated::live().allocations;
    GpuError error;
    CHECK(stream->end_pass(false, &error) && stream->begin_pass(kNoGraph, &error));
    CHECK(emulated::live().allocations == allocations && allocations == 1);
  }
}

void what_fails_is_not_taken_for_done() {
  const std::unique_ptr<PassStream> stream = open_stream();
  const Numbers rows{4, 5};
  PassInputs& inputs = stream->inputs();
  for (const char* function : {"cuMemAlloc", "cuMemcpyHtoDAsync"}) {
    emulated::set_fault(function, 0, kOutOfMemory);
    CHECK(inputs.upload(rows.data(), bytes_of(rows)) == nullptr);
    emulated::set_fault(nullptr, -1, 0);
    CHECK(stream->take_error().fault == Fault::kOutOfMemory);
  }
  const void* const of = inputs.upload(rows.data(), bytes_of(rows));
  CHECK(of != nullptr && read(*stream, of, 2) == rows);
  CHECK(inputs.derive({of}, 8, [](void*) { return false; }) == nullptr);
  CHECK(inputs.derive({of}, 8, [](void*) { return true; }) != nullptr);
}

// Memory as a layer takes it, for so many rows: what goes in and comes out, and scratch in between.
void take_pass(MemoryPool& pool, size_t rows) {
  void* in = pool.allocate(rows * 576);
  for (int layer = 0; layer < 3; ++layer) {
    void* const out = pool.allocate(rows * 576);
    void* const scratch = pool.allocate(rows * 3000 + 100);
    CHECK(in != nullptr && out != nullptr && scratch != nullptr);
    pool.free(scratch);
    pool.free(std::exchange(in, out));
  }
  pool.free(in);
}

// What they need at once.
size_t bytes_of_pass(size_t rows) { return rows * (2 * 576 + 3000) + 100 + 3 * 256; }

void next_pass(PassStream& stream, int number = kNoGraph) {
  GpuError error;
  CHECK(stream.end_pass(false, &error) && stream.begin_pass(number, &error));
}

// Growing passes, which nobody has planned, and others between.
void passes_of_any_size_do_not_add_up() {
  constexpr size_t kMost = 3000, kRounded = 64 << 10;
  for (uint32_t seed = 1; seed <= 100; ++seed) {
    const std::unique_ptr<PassStream> stream = open_stream();
    std::mt19937 random(seed);
    size_t largest = 0, rows = 1;
    for (int pass = 0; pass < 60; ++pass) {
      rows = std::min(kMost, rows + rows * (random() % 40) / 100 + 1);
      const size_t now = random() % 3 == 0 ? 1 + random() % rows : rows;
      largest = std::max(largest, now);
      next_pass(*stream);
      take_pass(stream->memory(), now);
      CHECK(stream->memory().bytes() <= 2 * bytes_of_pass(largest) + 6 * kRounded);
    }
    // Afterwards nothing is taken or given back, whatever comes.
    next_pass(*stream);
    const size_t held = stream->memory().bytes();
    for (const size_t again : {largest, size_t{1}, largest / 2, largest}) {
      take_pass(stream->memory(), again);
      next_pass(*stream);
      CHECK(stream->memory().bytes() == held);
    }
  }
}

// One block, whatever passes of several sessions take of it in which order.
void planned_passes_share_what_was_planned() {
  emulated::configure({});
  GpuError error;
  const std::shared_ptr<GpuDevice> device = open_gpu(0, &error);
  constexpr size_t kMost = 500;
  std::vector<std::unique_ptr<PassStream>> streams;
  for (int i = 0; i < 2; ++i) {
    streams.push_back(PassStream::open(device, PassArena::of(3, device, bytes_of_pass(kMost)), &error));
  }
  CHECK(emulated::live().allocations == 0);
  std::mt19937 random(7);
  for (int pass = 0; pass < 200; ++pass) {
    PassStream& stream = *streams[random() % 2];
    CHECK(stream.begin_pass(kNoGraph, &error));
    take_pass(stream.memory(), pass == 0 ? 1 : 1 + random() % kMost);
    CHECK(stream.end_pass(false, &error));
    CHECK(emulated::live().allocations == 1 && emulated::live().bytes == (bytes_of_pass(kMost) + 255) / 256 * 256);
  }
  streams.clear();
  CHECK(emulated::live().allocations == 0);
  // Then it is another one that has this number.
  CHECK(PassArena::of(3, device, 100)->bytes() == 0);
}

// What the device does not give as one block is had as several, and not asked for again and again.
void blocks_that_are_refused_are_several() {
  emulated::configure({});
  GpuError error;
  const std::shared_ptr<GpuDevice> device = open_gpu(0, &error);
  PassArena arena(device, 1 << 20);
  const auto pass = [&] {
    arena.join();
    void* const memory[] = {arena.allocate(60 << 10), arena.allocate(50 << 10)};
    for (void* const one : memory) CHECK(one != nullptr && arena.free(one));
  };
  emulated::set_fault("cuMemAlloc", 0, kOutOfMemory);
  pass();
  emulated::set_fault(nullptr, -1, 0);
  CHECK(arena.bytes() == 128 << 10);
  pass();
  CHECK(arena.generation() == 1 && emulated::live().allocations == 1);
  const auto large_pass = [&] {
    arena.join();
    void* const memory[] = {arena.allocate(128 << 10), arena.allocate(128 << 10)};
    for (void* const one : memory) CHECK(one != nullptr && arena.free(one));
  };
  large_pass();
  emulated::set_fault("cuMemAlloc", 0, kOutOfMemory);
  pass();
  emulated::set_fault(nullptr, -1, 0);
  CHECK(arena.generation() == 2 && arena.bytes() == 128 << 10);
  for (int i = 0; i < 3; ++i) large_pass();
  CHECK(arena.generation() == 3 && arena.bytes() == 256 << 10 && emulated::live().allocations == 2);
}

// Neighbours that are idle are one again, in whatever order they were given back.
void pieces_are_joined() {
  emulated::configure({});
  GpuError error;
  const std::shared_ptr<GpuDevice> device = open_gpu(0, &error);
  PassArena arena(device, 64 << 10);
  std::mt19937 random(3);
  for (int round = 0; round < 50; ++round) {
    std::vector<char*> held;
    for (size_t left = 256; left > 0;) {
      const size_t pages = std::min<size_t>(left, 1 + random() % 40);
      held.push_back(static_cast<char*>(arena.allocate(256 * pages - random() % 256)));
      CHECK(held.back() != nullptr);
      left -= pages;
    }
    CHECK(arena.bytes() == 64 << 10);
    std::shuffle(held.begin(), held.end(), random);
    for (char* const memory : held) CHECK(arena.free(memory) && !arena.free(memory));
  }
}

void recordings_are_void_when_their_memory_is_gone() {
  const std::unique_ptr<PassStream> stream = open_stream();
  for (int pass = 0; pass < 3; ++pass) {
    next_pass(*stream, 5);
    CHECK(stream->has_graph(5) == (pass == 2));
    take_pass(stream->memory(), 3);
  }
  next_pass(*stream);
  take_pass(stream->memory(), 100);
  CHECK(stream->has_graph(5));
  next_pass(*stream);
  GpuError error;
  CHECK(!stream->has_graph(5) && !stream->replay(5, &error));
  // Its first pass has run before: it is recorded at once.
  next_pass(*stream, 5);
  next_pass(*stream);
  CHECK(stream->has_graph(5));
}

// The message about an input that begins at a multiple of so many bytes and of no more.
std::string refusal(size_t boundary) {
  static constexpr ort::Port kInputs[] = {{"cache", abi::kUint8, abi::kOptional}};
  static constexpr ort::OpShape kShape{"Test", kInputs, 1, nullptr, 0};
  fake::Fault none;
  fake::Run run{{}, {}, &none, 0, fake::Place::kHeap};
  run.inputs.emplace_back();
  if (boundary > 0) {
    auto memory = std::make_unique<fake::Memory>(64, boundary, fake::Place::kHeap);
    run.inputs[0] = std::make_unique<fake::Tensor>(fake::Tensor{abi::kUint8, {64}, std::move(memory), &none});
  }
  ort::Api api;
  CHECK(ort::connect(fake::newest_release(), &api) == nullptr);
  ort::OpContext context(api, reinterpret_cast<abi::KernelContext*>(&run), kShape, nullptr);
  CHECK(context.read_inputs() == nullptr);
  abi::Status* const bad = check_alignment(context, 0, 16);
  return bad == nullptr ? "" : fake::take_message(bad);
}

void memory_must_be_aligned() {
  for (const size_t good : {16, 32, 0}) CHECK(refusal(good).empty());
  for (const size_t bad : {1, 8}) {
    CHECK(refusal(bad).find("Test: cache does not begin at a multiple of 16 bytes") != std::string::npos);
  }
}

void arrays_are_copied_on_the_device() {
  const std::unique_ptr<PassStream> stream = open_stream();
  GpuDevice& device = stream->device();
  const Numbers numbers{1, 2, 3};
  GpuError error;
  auto* const from = static_cast<char*>(device.allocate(2 * bytes_of(numbers), &error));
  CHECK(from != nullptr);
  char* const to = from + bytes_of(numbers);
  CHECK(device.copy(Way::kToDevice, from, numbers.data(), bytes_of(numbers), &error));
  CHECK(device.copy(Way::kOnDevice, to, from, bytes_of(numbers), &error));
  CHECK(read(*stream, to, 3) == numbers && !error);
  emulated::set_fault("cuMemcpyDtoDAsync", 0, kInvalidValue);
  CHECK(!device.copy(Way::kOnDevice, from, to, bytes_of(numbers), &error));
  CHECK(error.sentence == "cuMemcpyDtoDAsync failed: CUDA_ERROR_INVALID_VALUE (1)");
  emulated::set_fault(nullptr, -1, 0);
  device.free(from);
}

void pieces_are_copied_on_the_device() {
  const std::unique_ptr<PassStream> stream = open_stream();
  GpuDevice& device = stream->device();
  const Numbers numbers{1, 2, 3};
  GpuError error;
  auto* const from = static_cast<char*>(device.allocate(2 * bytes_of(numbers), &error));
  CHECK(from != nullptr);
  char* const to = from + bytes_of(numbers);
  constexpr size_t kEach = sizeof(numbers[0]);
  CHECK(device.copy(Way::kToDevice, from, numbers.data(), bytes_of(numbers), &error));
  const std::vector<Piece> pieces{{to, from + kEach, 2 * kEach}, {to, from, 0}, {to + 2 * kEach, from, kEach}};
  CHECK(device.copy_pieces(pieces, &error) && !error);
  CHECK(read(*stream, to, 3) == (Numbers{2, 3, 1}));
  emulated::set_fault("cuMemcpyDtoDAsync", 1, kInvalidValue);
  CHECK(!device.copy_pieces(pieces, &error));
  CHECK(error.sentence == "cuMemcpyDtoDAsync failed: CUDA_ERROR_INVALID_VALUE (1)");
  emulated::set_fault(nullptr, -1, 0);
  device.free(from);
}

void what_was_not_recorded_is_not_replayed() {
  const std::unique_ptr<PassStream> stream = open_stream();
  GpuError error;
  CHECK(!stream->replay(7, &error));
  CHECK(error.sentence == "no pass was recorded under number 7");
}

void kernels_are_found_or_the_error_says_why() {
  const std::unique_ptr<PassStream> stream = open_stream();
  auto& device = static_cast<CudaDevice&>(stream->device());
  GpuFunction found;
  const auto why_not = [&](const char* kernel) {
    DriverError error;
    CHECK(!device.find(kernel, &found, &error));
    return error.sentence();
  };
  CHECK(why_not("pass_test_nothing") == "cuModuleLoadData: no kernels were compiled for GPU 0");
  for (const char* source : {"first", "second"}) set_kernels(0, source, "image", 5);
  emulated::set_fault("cuModuleLoadData", 1, kInvalidValue);
  CHECK(why_not("pass_test_nothing") ==
        "cuModuleLoadData failed: CUDA_ERROR_INVALID_VALUE for the kernels of second (1)");
  CHECK(emulated::live().modules == 0);
  emulated::set_fault(nullptr, -1, 0);
  CHECK(why_not("none") == "cuModuleGetFunction failed: CUDA_ERROR_NOT_FOUND for kernel none (500)");
  DriverError error;
  CHECK(device.find("pass_test_nothing", &found, &error) && found.threads == 64);
}

// What others free while a pass runs is given back behind it, or when memory is short: the driver would wait for it.
void others_free_behind_a_pass() {
  emulated::Settings settings;
  settings.memory = 1 << 20;
  emulated::configure(settings);
  GpuError error;
  const std::shared_ptr<GpuDevice> device = open_gpu(0, &error);
  const std::unique_ptr<GpuQueue> queue = device->open_queue(&error);
  const auto others = [&](const auto& act) { std::thread(act).join(); };
  const auto allocate = [&] { return device->allocate(settings.memory / 2 + 1, &error); };
  void* const first = allocate();
  void* const own = device->allocate(256, &error);
  void* host_address = nullptr;
  void* const host = device->allocate_host(256, &host_address, &error);
  CHECK(first != nullptr && own != nullptr && host != nullptr && queue->begin(false, &error));
  others([&] { device->free(first), device->free_host(host); });
  CHECK(emulated::live().allocations == 2 && emulated::live().host_allocations == 1);
  device->free(own);
  CHECK(emulated::live().allocations == 1);
  void* second = nullptr;
  others([&] { second = allocate(); });
  CHECK(second != nullptr && !error && emulated::live().allocations == 1 && emulated::live().host_allocations == 0);
  others([&] { device->free(second); });
  CHECK(emulated::live().allocations == 1 && queue->end(nullptr, &error) && emulated::live().allocations == 0);
}

}  // namespace
}  // namespace edge_rt::gpu

int main() {
  using namespace edge_rt::gpu;  // NOLINT: a program, not a header
  others_free_behind_a_pass();
  bytes_are_copied_once_while_they_stay();
  what_is_derived_is_made_once_a_pass();
  what_fails_is_not_taken_for_done();
  passes_of_any_size_do_not_add_up();
  planned_passes_share_what_was_planned();
  blocks_that_are_refused_are_several();
  pieces_are_joined();
  recordings_are_void_when_their_memory_is_gone();
  memory_must_be_aligned();
  arrays_are_copied_on_the_device();
  pieces_are_copied_on_the_device();
  what_was_not_recorded_is_not_replayed();
  kernels_are_found_or_the_error_says_why();
  CHECK(emulated::live().all() == 0);
  return 0;
}
