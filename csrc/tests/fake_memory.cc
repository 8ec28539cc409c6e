#include <new>

#include "tests/check.h"
#include "tests/fake_ort.h"
#include "tests/pages.h"

namespace edge_rt::fake {
namespace {

constexpr size_t kLine = 64;

}  // namespace

Memory::Memory(size_t bytes, size_t alignment, Place place) : bytes_(bytes) {
  if (place == Place::kNothing && bytes == 0) return;
  if (place == Place::kGuarded) {
    const size_t page = pages::page_bytes();
    const size_t used = (bytes + page - 1) / page * page;
    mapped_ = used + page;
    char* memory = pages::reserve(mapped_);
    pages::open(memory, used);
    base_ = memory;
    data_ = reinterpret_cast<uint8_t*>(memory) + used - bytes;
    return;
  }
  const size_t shift = alignment < kLine ? alignment : 0;
  base_ = ::operator new(bytes + shift, std::align_val_t{kLine});
  data_ = static_cast<uint8_t*>(base_) + shift;
}

Memory::~Memory() {
  if (mapped_ > 0) {
    pages::give_back(static_cast<char*>(base_), mapped_);
  } else {
    ::operator delete(base_, std::align_val_t{kLine});
  }
}

}  // namespace edge_rt::fake
