#include "tests/emulator/emulated_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

namespace edge_rt::gpu::emulated {
namespace {

constexpr size_t kAlignment = 256;

size_t rounded(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

size_t page() {
  static const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

}  // namespace

DeviceMemory::~DeviceMemory() {
  for (const auto& [address, block] : blocks_) munmap(block.pages, block.page_bytes + page());
}

CUdeviceptr DeviceMemory::allocate(size_t bytes) {
  const size_t page_bytes = rounded(bytes, page());
  void* const pages = mmap(nullptr, page_bytes + page(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) return 0;
  const Block block{static_cast<char*>(pages), page_bytes, bytes};
  char* const begin = block.pages + page_bytes - rounded(bytes, kAlignment);
  // New memory holds anything.
  mprotect(block.pages, page_bytes, PROT_READ | PROT_WRITE);
  std::memset(begin, 0xCD, bytes);
  mprotect(block.pages, page_bytes, PROT_NONE);
  const auto address = static_cast<CUdeviceptr>(reinterpret_cast<uintptr_t>(begin));
  blocks_.emplace(address, block);
  bytes_ += bytes;
  return address;
}

bool DeviceMemory::free(CUdeviceptr memory) {
  const auto found = blocks_.find(memory);
  if (found == blocks_.end()) return false;
  munmap(found->second.pages, found->second.page_bytes + page());
  bytes_ -= found->second.bytes;
  blocks_.erase(found);
  return true;
}

bool DeviceMemory::holds(CUdeviceptr memory, size_t bytes) const {
  auto next = blocks_.upper_bound(memory);
  if (next == blocks_.begin()) return false;
  const auto& [address, block] = *--next;
  return memory - address <= block.bytes && bytes <= block.bytes - (memory - address);
}

void DeviceMemory::protect(bool is_open) const {
  for (const auto& [address, block] : blocks_) {
    mprotect(block.pages, block.page_bytes, is_open ? PROT_READ | PROT_WRITE : PROT_NONE);
  }
}

}  // namespace edge_rt::gpu::emulated
