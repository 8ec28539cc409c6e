#include "common/file_pages.h"

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#endif

namespace edge_rt {

#if defined(__linux__)

namespace {

uintptr_t page_mask() { return static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)) - 1; }

}  // namespace

bool is_mapped_file(const void* data, size_t bytes) {
  std::FILE* const maps = std::fopen("/proc/self/maps", "r");
  if (maps == nullptr) return false;
  const auto begin = reinterpret_cast<uintptr_t>(data);
  bool found = false;
  unsigned long from = 0, to = 0, inode = 0;
  while (!found && std::fscanf(maps, "%lx-%lx %*s %*s %*s %lu%*[^\n]", &from, &to, &inode) == 3) {
    found = inode != 0 && begin >= from && begin + bytes <= to;
  }
  std::fclose(maps);
  return found;
}

void fetch_pages(const void* data, size_t bytes) {
  const uintptr_t mask = page_mask(), begin = reinterpret_cast<uintptr_t>(data) & ~mask;
  madvise(reinterpret_cast<void*>(begin), reinterpret_cast<uintptr_t>(data) + bytes - begin, MADV_WILLNEED);
}

void release_pages(const void* data, size_t bytes) {
  const uintptr_t mask = page_mask(), begin = (reinterpret_cast<uintptr_t>(data) + mask) & ~mask;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + bytes) & ~mask;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

#else

bool is_mapped_file(const void*, size_t) { return false; }
void fetch_pages(const void*, size_t) {}
void release_pages(const void*, size_t) {}

#endif

}  // namespace edge_rt
