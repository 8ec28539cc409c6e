// gpu/weights_file.h on devices that are made up: which stretches of a file they take, and what is copied.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "gpu/weights_file.h"
#include "tests/check.h"

namespace edge_rt::gpu {
namespace {

// A device whose memory is the host's, so that addresses can be followed.
class HostDevice : public GpuDevice {
 public:
  int number() const override { return 3; }
  Traits traits() const override { return {}; }
  void* allocate(size_t bytes, GpuError* error) override {
    if (room == 0) {
      *error = {Fault::kOutOfMemory, 2, "no memory"};
      return nullptr;
    }
    --room;
    own.emplace_back(std::malloc(bytes), bytes);
    return own.back().first;
  }
  void free(void* memory) override {
    for (size_t i = 0; i < own.size(); ++i) {
      if (own[i].first != memory) continue;
      std::free(memory);
      own.erase(own.begin() + static_cast<std::ptrdiff_t>(i));
      return;
    }
    CHECK(false);
  }
  void* allocate_host(size_t, void**, GpuError*) override { return nullptr; }
  void free_host(void*) override {}
  GpuError failure() const override { return {}; }
  bool budget(MemoryBudget*, GpuError*) override { return false; }
  bool settle(GpuError*) override { return true; }
  bool copy(Way way, void* to, const void* from, size_t bytes, GpuError* error) override {
    CHECK(way == Way::kToDevice);
    if (bytes > largest_copy) largest_copy = bytes;
    if (loses_copies) {
      *error = {Fault::kLost, 1, "lost"};
      return false;
    }
    std::memcpy(to, from, bytes);
    return true;
  }
  bool copy_pieces(const std::vector<Piece>&, GpuError*) override { return false; }
  std::unique_ptr<GpuQueue> open_queue(GpuError*) override { return nullptr; }
  ImportRules import_rules() const override { return rules; }
  void* import(void* host, size_t bytes, GpuError* error) override {
    ++asked;
    if (refusal != Fault::kNone) {
      *error = {refusal, 4, "refused"};
      return nullptr;
    }
    CHECK(reinterpret_cast<uintptr_t>(host) % rules.alignment == 0 && bytes % rules.alignment == 0);
    CHECK(bytes <= rules.largest);
    // All of it can be read, also behind the end of the file.
    int sum = 0;
    for (size_t i = 0; i < bytes; i += 4096) sum += static_cast<volatile char*>(host)[i];
    CHECK(sum != -1234567);
    if (rules.must_be_writable) static_cast<volatile char*>(host)[0] = static_cast<volatile char*>(host)[0];
    taken.emplace_back(host, bytes);
    return host;
  }
  bool free_import(void* address) override {
    for (size_t i = 0; i < taken.size(); ++i) {
      if (taken[i].first != address) continue;
      taken.erase(taken.begin() + static_cast<std::ptrdiff_t>(i));
      return !hangs;
    }
    CHECK(false);
    return false;
  }
  size_t taken_bytes() const {
    size_t all = 0;
    for (const auto& [memory, bytes] : taken) all += bytes;
    return all;
  }

  ImportRules rules;
  Fault refusal = Fault::kNone;
  bool loses_copies = false, hangs = false;
  size_t room = 1000, largest_copy = 0;
  int asked = 0;
  std::vector<std::pair<void*, size_t>> own, taken;
};

std::shared_ptr<HostDevice> device;

constexpr size_t kSize = (size_t{11} << 20) + 777;

char byte_at(size_t offset) { return static_cast<char>((offset * 2654435761u) >> 13); }

// A file of numbers that can be told apart, gone with the object.
struct File {
  File() {
    char name[] = "/tmp/edge_rt_weights_XXXXXX";
    const int file = mkstemp(name);
    CHECK(file >= 0);
    path = name;
    std::vector<char> data(kSize);
    for (size_t i = 0; i < kSize; ++i) data[i] = byte_at(i);
    CHECK(write(file, data.data(), kSize) == static_cast<ssize_t>(kSize));
    close(file);
  }
  ~File() { unlink(path.c_str()); }
  std::string path;
};

const std::vector<FilePart> kParts = {
    {0, 100},
    {128, 4096},
    {1000, 30},  // does not begin at a multiple of 64
    {64 << 10, 5 << 20},
    {(size_t{10} << 20) + 64, (size_t{1} << 20)},
    {kSize - 777 + 64, 777 - 64},
};

void check(const WeightsFile& file) {
  for (const FilePart& part : kParts) {
    const char* const found = static_cast<const char*>(file.address(part));
    CHECK(found != nullptr);
    for (size_t i = 0; i < part.bytes; ++i) CHECK(found[i] == byte_at(part.offset + i));
  }
}

std::shared_ptr<WeightsFile> placed(const File& on_disk) {
  GpuError error;
  std::shared_ptr<WeightsFile> file = WeightsFile::open(3, on_disk.path, kSize, &error);
  CHECK(file != nullptr && file->place(kParts, &error));
  check(*file);
  return file;
}

uint64_t all_bytes() {
  uint64_t all = 0;
  for (const FilePart& part : kParts) all += part.bytes;
  return all;
}

void begin(const ImportRules& rules) {
  device = std::make_shared<HostDevice>();
  device->rules = rules;
}

// Stretches of the files above that are mapped, where the system tells that.
int mapped() {
  int count = 0;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) count += line.find("edge_rt_weights_") != std::string::npos;
  return count;
}

// Nothing is held, nor mapped.
void end() { CHECK(device->own.empty() && device->taken.empty() && device.use_count() == 1 && mapped() == 0); }

void test_copied() {
  const File on_disk;
  begin({});
  {
    const auto file = placed(on_disk);
    CHECK(file->bytes(false) == all_bytes() && file->bytes(true) == 0 && device->own.size() == kParts.size());
    CHECK(device->largest_copy <= size_t{4} << 20);
    // For another model nothing more; a gap between has an end.
    CHECK(placed(on_disk) == file && device->own.size() == kParts.size());
    GpuError error;
    CHECK(file->address({0, 99}) == nullptr);
    CHECK(!file->place({{kSize - 5, 6}}, &error) && error.fault == Fault::kRefused);
    CHECK(!file->place({{~uint64_t{0}, 2}}, &error));
  }
  end();
}

void test_imported() {
  for (const size_t alignment : {size_t{4096}, size_t{64} << 10}) {
    for (const bool is_written : {false, true}) {
      const File on_disk;
      begin({alignment, size_t{1} << 30, is_written});
      {
        const auto file = placed(on_disk);
        CHECK(file->bytes(false) == 30 && file->bytes(true) == all_bytes() - 30);
        // More than a mebibyte that nobody reads lies between the tensors: two stretches.
        CHECK(device->taken.size() == 2 && device->own.size() == 1);
        CHECK(device->taken_bytes() <= all_bytes() + (size_t{1} << 20) + 4 * alignment);
        CHECK(placed(on_disk) == file && device->asked == 2);
      }
      end();
    }
  }
}

// A tensor larger than what is taken at once is copied, the others are taken in several stretches.
void test_large() {
  const File on_disk;
  begin({4096, size_t{2} << 20, false});
  {
    const auto file = placed(on_disk);
    CHECK(file->bytes(false) == (size_t{5} << 20) + 30 && device->taken.size() == 2);
  }
  end();
}

void test_refused() {
  const File on_disk;
  for (const Fault fault : {Fault::kOutOfMemory, Fault::kOther, Fault::kRefused}) {
    begin({4096, size_t{1} << 30, false});
    device->refusal = fault;
    {
      const auto file = placed(on_disk);
      CHECK(file->bytes(false) == all_bytes() && device->asked == 1);
    }
    end();
  }
  begin({4096, size_t{1} << 30, false});
  device->refusal = Fault::kLost;
  {
    GpuError error;
    const auto file = WeightsFile::open(3, on_disk.path, kSize, &error);
    CHECK(file != nullptr && !file->place(kParts, &error) && error.fault == Fault::kLost);
  }
  end();
}

// Memory that is refused at any tensor, and a device that is lost in a copy: nothing stays.
void test_failures() {
  const File on_disk;
  for (size_t room = 0; room < kParts.size(); ++room) {
    begin({});
    device->room = room;
    {
      GpuError error;
      const auto file = WeightsFile::open(3, on_disk.path, kSize, &error);
      CHECK(file != nullptr && !file->place(kParts, &error) && error.fault == Fault::kOutOfMemory);
      device->room = 1000;
      CHECK(file->place(kParts, &error));
      check(*file);
    }
    end();
  }
  begin({});
  device->loses_copies = true;
  {
    GpuError error;
    const auto file = WeightsFile::open(3, on_disk.path, kSize, &error);
    CHECK(file != nullptr && !file->place(kParts, &error) && error.fault == Fault::kLost);
  }
  end();
}

// A file that is gone is read on; one that is shorter, or another one of the same name, is not taken for it.
void test_files() {
  begin({});
  {
    GpuError error;
    CHECK(WeightsFile::open(3, "/nowhere/weights.bin", kSize, &error) == nullptr && error.fault == Fault::kRefused);
    const File on_disk;
    const auto file = WeightsFile::open(3, on_disk.path, kSize, &error);
    CHECK(file != nullptr);
    unlink(on_disk.path.c_str());
    CHECK(file->place(kParts, &error));
    check(*file);
    const File shorter;
    const auto begun = WeightsFile::open(3, shorter.path, kSize, &error);
    CHECK(begun != nullptr && begun != file);
    CHECK(truncate(shorter.path.c_str(), 8 << 20) == 0);
    error = {};
    CHECK(!begun->place(kParts, &error) && error.sentence.find("shorter") != std::string::npos);
    error = {};
    CHECK(WeightsFile::open(3, shorter.path, kSize, &error) == nullptr &&
          error.sentence.find("shorter") != std::string::npos);
  }
  end();
}

// What a device that hangs may read stays mapped.
void test_hangs() {
  const File on_disk;
  begin({4096, size_t{1} << 30, false});
  int before = 0;
  {
    const auto file = placed(on_disk);
    device->hangs = true;
    before = mapped();
  }
  CHECK(device->taken.empty() && mapped() == before);
}

}  // namespace

std::shared_ptr<GpuDevice> open_gpu(int number, GpuError*) {
  CHECK(number == 3);
  return device;
}

}  // namespace edge_rt::gpu

int main() {
  using namespace edge_rt::gpu;  // NOLINT: the function has to be outside
  test_copied();
  test_imported();
  test_large();
  test_refused();
  test_failures();
  test_files();
  test_hangs();  // the last: it leaves something
  return 0;
}
