#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/check.h"
#include "tests/fake_ort.h"

namespace edge_rt::fake {
namespace {

constexpr size_t kLine = 64;

}  // namespace

Memory::Memory(size_t bytes, size_t alignment, Place place) : bytes_(bytes) {
  if (place == Place::kNothing && bytes == 0) return;
  if (place == Place::kGuarded) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t used = (bytes + page - 1) / page * page;
    mapped_ = used + page;
    base_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(base_ != MAP_FAILED);
    CHECK(mprotect(static_cast<char*>(base_) + used, page, PROT_NONE) == 0);
    data_ = static_cast<uint8_t*>(base_) + used - bytes;
    return;
  }
  const size_t shift = alignment < kLine ? alignment : 0;
  CHECK(posix_memalign(&base_, kLine, bytes + shift) == 0);
  data_ = static_cast<uint8_t*>(base_) + shift;
}

Memory::~Memory() {
  if (mapped_ > 0) {
    munmap(base_, mapped_);
  } else {
    std::free(base_);
  }
}

}  // namespace edge_rt::fake
