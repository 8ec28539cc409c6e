#include "tests/gpu_pinned_heap.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>

namespace edge_rt::gpu {
namespace {

// Blocks of powers of two, each behind a header of its own, which keep the boundary of 64 bytes that golden cases ask
// for. Blocks that are given back wait in a list of their size.
constexpr size_t kBoundary = 64;
struct alignas(kBoundary) Header {
  Header* next;
  int size_class;
  size_t bytes;  // asked for
};
static_assert(sizeof(Header) == kBoundary);

std::mutex lock;
char *begin = nullptr, *unused = nullptr, *end = nullptr;
Header* given_back[64] = {};
unsigned char* held_bits = nullptr;

// Blocks begin at multiples of 8 bytes: no two have a byte of bits together.
void mark(const Header* header, bool is_held) {
  if (held_bits == nullptr) return;
  unsigned char* const first = held_bits + (reinterpret_cast<const char*>(header + 1) - begin) / 8;
  std::memset(first, is_held ? 0xff : 0, header->bytes / 8);
  if (const size_t rest = header->bytes % 8) first[header->bytes / 8] = is_held ? (1u << rest) - 1 : 0;
}

void* take(size_t bytes) {
  const std::lock_guard<std::mutex> guard(lock);
  if (begin == nullptr) return nullptr;
  int size_class = 7;
  while ((size_t{1} << size_class) < bytes + sizeof(Header)) ++size_class;
  Header*& first = given_back[size_class];
  Header* found = first;
  if (found != nullptr) {
    first = found->next;
  } else if ((size_t{1} << size_class) <= static_cast<size_t>(end - unused)) {
    found = reinterpret_cast<Header*>(unused);
    unused += size_t{1} << size_class;
  } else {
    std::fprintf(stderr, "%zu bytes of pinned memory are full\n", static_cast<size_t>(end - begin));
    std::abort();
  }
  found->size_class = size_class;
  found->bytes = bytes;
  mark(found, true);
  return found + 1;
}

bool give_back(void* memory) {
  const std::lock_guard<std::mutex> guard(lock);
  if (memory < begin || memory >= end) return false;
  Header* const header = static_cast<Header*>(memory) - 1;
  mark(header, false);
  header->next = given_back[header->size_class];
  given_back[header->size_class] = header;
  return true;
}

void* allocate(size_t bytes, size_t boundary) {
  if (boundary > kBoundary) std::abort();
  if (void* found = take(bytes)) return found;
  void* const found =
      std::aligned_alloc(kBoundary, (std::max(bytes, size_t{1}) + kBoundary - 1) / kBoundary * kBoundary);
  if (found == nullptr) throw std::bad_alloc();
  return found;
}

void release(void* memory) {
  if (memory != nullptr && !give_back(memory)) std::free(memory);
}

}  // namespace

void begin_pinned_heap(void* pages, size_t bytes, void* held) {
  const std::lock_guard<std::mutex> guard(lock);
  held_bits = static_cast<unsigned char*>(held);
  const size_t skipped = -reinterpret_cast<uintptr_t>(pages) % kBoundary;
  begin = unused = static_cast<char*>(pages) + skipped;
  end = begin + bytes - skipped;
}

int64_t find_foreign_address(const void* data, size_t bytes) {
  std::FILE* const maps = std::fopen("/proc/self/maps", "r");
  if (maps == nullptr) return -1;
  int64_t found = -1;
  unsigned long from = 0, to = 0;
  char rights[5] = {};
  while (found < 0 && std::fscanf(maps, "%lx-%lx %4s%*[^\n]", &from, &to, rights) == 3) {
    // The driver maps and reserves so much for the GPU that pairs of small numbers are addresses there.
    if (rights[0] != 'r' || rights[3] != 'p') continue;
    for (size_t place = 0; found < 0 && place + sizeof(uintptr_t) <= bytes; place += sizeof(uintptr_t)) {
      uintptr_t word = 0;
      std::memcpy(&word, static_cast<const char*>(data) + place, sizeof word);
      if ((word & 0xffffffff) < 64) continue;  // an enum, and whatever lies in the gap behind it
      const bool is_ours = word >= reinterpret_cast<uintptr_t>(begin) && word < reinterpret_cast<uintptr_t>(end);
      if (!is_ours && word >= from && word < to) found = static_cast<int64_t>(place);
    }
  }
  std::fclose(maps);
  return found;
}

}  // namespace edge_rt::gpu

void* operator new(size_t bytes) { return edge_rt::gpu::allocate(bytes, 1); }
void* operator new(size_t bytes, std::align_val_t boundary) {
  return edge_rt::gpu::allocate(bytes, static_cast<size_t>(boundary));
}
void operator delete(void* memory) noexcept { edge_rt::gpu::release(memory); }
void operator delete(void* memory, size_t) noexcept { edge_rt::gpu::release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { edge_rt::gpu::release(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { edge_rt::gpu::release(memory); }
