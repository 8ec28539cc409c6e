// Pages of memory that tests protect.
#pragma once

#include <cstddef>

#if defined(_WIN32)
#include <windows.h>
#else
#include <sys/mman.h>
#include <unistd.h>
#endif

#include "tests/check.h"

namespace edge_rt::pages {

#if defined(_WIN32)

inline size_t page_bytes() {
  SYSTEM_INFO info;
  GetSystemInfo(&info);
  return info.dwPageSize;
}

// Zeros; nobody may touch them before `open`.
inline char* reserve(size_t bytes) {
  void* memory = VirtualAlloc(nullptr, bytes, MEM_RESERVE | MEM_COMMIT, PAGE_NOACCESS);
  CHECK(memory != nullptr);
  return static_cast<char*>(memory);
}

inline void open(char* memory, size_t bytes) {
  DWORD before;
  CHECK(bytes == 0 || VirtualProtect(memory, bytes, PAGE_READWRITE, &before) != 0);
}

inline void give_back(char* memory, size_t) { CHECK(VirtualFree(memory, 0, MEM_RELEASE) != 0); }

#else

inline size_t page_bytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

// Zeros; nobody may touch them before `open`.
inline char* reserve(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  return static_cast<char*>(memory);
}

// No bytes are none to ask about: emulators refuse them.
inline void open(char* memory, size_t bytes) {
  CHECK(bytes == 0 || mprotect(memory, bytes, PROT_READ | PROT_WRITE) == 0);
}

inline void give_back(char* memory, size_t bytes) { CHECK(munmap(memory, bytes) == 0); }

#endif

// So many bytes that end where a page begins that nobody may touch; never given back.
inline char* before_closed_page(size_t bytes) {
  const size_t room = (bytes + page_bytes() - 1) / page_bytes() * page_bytes();
  char* memory = reserve(room + page_bytes());
  open(memory, room);
  return memory + room - bytes;
}

}  // namespace edge_rt::pages
