#include "gpu/weights_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <tuple>

#include "gpu/held_objects.h"

namespace edge_rt::gpu {
namespace {

constexpr size_t kPiece = 4 << 20;
// Kernels ask that weights begin at multiples of it. Those that do not in the file are copied.
constexpr uint64_t kAlignment = 64;
// Bytes between two tensors from which on they are taken apart: drivers keep in memory what they take.
constexpr uint64_t kGap = 1 << 20;

uint64_t down(uint64_t value, uint64_t step) { return value / step * step; }
uint64_t up(uint64_t value, uint64_t step) { return down(value + step - 1, step); }

GpuError of_system(const char* function) {
  return {Fault::kRefused, 0, std::string(function) + ": SystemError : " + std::to_string(errno)};
}

// Which device, which file, and whether it is as it was.
using Identity = std::tuple<int, dev_t, ino_t, off_t, int64_t, int64_t>;

Identity identity_of(int number, const struct stat& about) {
#ifdef __APPLE__
  const struct timespec& changed = about.st_mtimespec;
#else
  const struct timespec& changed = about.st_mtim;
#endif
  return {number, about.st_dev, about.st_ino, about.st_size, changed.tv_sec, changed.tv_nsec};
}

}  // namespace

std::shared_ptr<WeightsFile>& weights_of_next_session() {
  static thread_local std::shared_ptr<WeightsFile> weights;
  return weights;
}

std::shared_ptr<WeightsFile> WeightsFile::open(int number, const std::string& path, uint64_t bytes, GpuError* error) {
  std::shared_ptr<WeightsFile> made(new WeightsFile);
  made->path_ = path;
  made->bytes_ = bytes;
  struct stat about{};
  made->file_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (made->file_ < 0 || fstat(made->file_, &about) != 0) {
    *error = of_system("open");
    return nullptr;
  }
  if (static_cast<uint64_t>(about.st_size) < bytes) {
    *error = {Fault::kRefused, 0, "the file of weights is shorter than it was"};
    return nullptr;
  }
  made->device_ = open_gpu(number, error);
  if (made->device_ == nullptr) {
    error->sentence = "GPU " + std::to_string(number) + " cannot be opened: " + error->sentence;
    return nullptr;
  }
  static auto* const files = new HeldObjects<Identity, WeightsFile>;
  return files->get(
      identity_of(number, about), [&](const WeightsFile& found) { return found.device_ == made->device_; },
      [&] { return made; });
}

// Sessions that read it are gone.
WeightsFile::~WeightsFile() {
  for (const auto& [key, placed] : placed_) {
    if (!placed.is_mapped) device_->free(placed.address);
  }
  for (const Window& window : windows_) {
    if (device_->free_import(window.address)) munmap(window.mapped, window.reserved);
  }
  if (file_ >= 0) close(file_);
}

bool WeightsFile::place(const std::vector<FilePart>& parts, GpuError* error) {
  const std::lock_guard<std::mutex> guard(lock_);
  std::vector<FilePart> wanted;
  for (const FilePart& part : parts) {
    if (part.bytes > bytes_ || part.offset > bytes_ - part.bytes) {
      *error = {Fault::kRefused, 0, "a tensor lies outside of the file of weights"};
      return false;
    }
    if (part.bytes != 0 && placed_.count({part.offset, part.bytes}) == 0) wanted.push_back(part);
  }
  const auto is_before = [](const FilePart& a, const FilePart& b) {
    return std::tie(a.offset, a.bytes) < std::tie(b.offset, b.bytes);
  };
  std::sort(wanted.begin(), wanted.end(), is_before);
  if (!is_refused_ && !import(wanted, error)) return false;
  std::vector<char> piece;
  for (const FilePart& part : wanted) {
    if (placed_.count({part.offset, part.bytes}) == 0 && !upload(part, &piece, error)) return false;
  }
  return true;
}

// False: the device is lost. What it refuses is left to be copied.
bool WeightsFile::import(const std::vector<FilePart>& parts, GpuError* error) {
  ImportRules rules = device_->import_rules();
  if (rules.alignment == 0) return true;
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  rules.alignment = std::max<size_t>(rules.alignment, page);
  for (size_t first = 0; first < parts.size() && !is_refused_;) {
    Window window;
    window.begin = down(parts[first].offset, rules.alignment);
    uint64_t end = parts[first].offset;
    size_t behind = first;
    for (; behind < parts.size(); ++behind) {
      const uint64_t further = std::max(end, parts[behind].offset + parts[behind].bytes);
      if (parts[behind].offset > end + kGap || up(further, rules.alignment) - window.begin > rules.largest) break;
      end = further;
    }
    if (behind == first) {  // by itself too large
      ++first;
      continue;
    }
    window.end = up(end, rules.alignment);
    GpuError refused;
    if (!import_window(rules, &window, &refused)) {
      if (refused.fault == Fault::kLost || refused.fault == Fault::kHung) {
        *error = refused;
        return false;
      }
      is_refused_ = true;
      break;
    }
    windows_.push_back(window);
    for (; first < behind; ++first) {
      const FilePart& part = parts[first];
      if (part.offset % kAlignment != 0) continue;
      placed_[{part.offset, part.bytes}] = {static_cast<char*>(window.address) + (part.offset - window.begin), true};
    }
  }
  return true;
}

bool WeightsFile::import_window(const ImportRules& rules, Window* window, GpuError* error) {
  void* const host = map(rules, window);
  if (host == nullptr) {
    *error = of_system("mmap");
    return false;
  }
  window->address = device_->import(host, static_cast<size_t>(window->end - window->begin), error);
  if (window->address == nullptr) munmap(window->mapped, window->reserved);
  return window->address != nullptr;
}

// Maps the file at a place of the device's alignment; behind its last page lie empty ones.
void* WeightsFile::map(const ImportRules& rules, Window* window) const {
  const auto size = static_cast<size_t>(window->end - window->begin);
  const int access = rules.must_be_writable ? PROT_READ | PROT_WRITE : PROT_READ;
  window->reserved = size + rules.alignment;
  window->mapped = mmap(nullptr, window->reserved, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (window->mapped == MAP_FAILED) return nullptr;
  auto* const place = reinterpret_cast<void*>(up(reinterpret_cast<uintptr_t>(window->mapped), rules.alignment));
  const auto of_file = static_cast<size_t>(std::min(window->end, bytes_) - window->begin);
  if (mmap(place, of_file, access, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, file_, static_cast<off_t>(window->begin)) !=
      MAP_FAILED) {
    return place;
  }
  const int why = errno;
  munmap(window->mapped, window->reserved);
  errno = why;
  return nullptr;
}

bool WeightsFile::upload(const FilePart& part, std::vector<char>* piece, GpuError* error) {
  const auto bytes = static_cast<size_t>(part.bytes);
  void* const address = device_->allocate(bytes, error);
  if (address == nullptr) return false;
  piece->resize(kPiece);
  for (size_t done = 0; done < bytes; done += kPiece) {
    const size_t count = std::min(kPiece, bytes - done);
    if (!read(piece->data(), part.offset + done, count, error) ||
        !device_->copy(Way::kToDevice, static_cast<char*>(address) + done, piece->data(), count, error)) {
      device_->free(address);
      return false;
    }
  }
  placed_[{part.offset, part.bytes}] = {address, false};
  return true;
}

bool WeightsFile::read(void* to, uint64_t offset, size_t bytes, GpuError* error) const {
  for (size_t done = 0; done < bytes;) {
    const ssize_t got = pread(file_, static_cast<char*>(to) + done, bytes - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      *error = of_system("pread");
      return false;
    }
    if (got == 0) {
      *error = {Fault::kRefused, 0, "the file of weights is shorter than it was"};
      return false;
    }
    done += static_cast<size_t>(got);
  }
  return true;
}

void* WeightsFile::address(const FilePart& part) const {
  const std::lock_guard<std::mutex> guard(lock_);
  const auto found = placed_.find({part.offset, part.bytes});
  return found == placed_.end() ? nullptr : found->second.address;
}

uint64_t WeightsFile::bytes(bool is_mapped) const {
  const std::lock_guard<std::mutex> guard(lock_);
  uint64_t all = 0;
  for (const auto& [key, placed] : placed_) all += placed.is_mapped == is_mapped ? key.second : 0;
  return all;
}

}  // namespace edge_rt::gpu
