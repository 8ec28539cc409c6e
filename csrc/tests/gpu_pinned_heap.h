// A program whose `operator new` hands out pinned memory, which a GPU reads and writes at the address that the process
// knows it by: what tests keep in vectors is within reach of kernels then.
#pragma once

#include <cstddef>
#include <cstdint>

namespace edge_rt::gpu {

// From now on new memory lies in these pages, which are never given back; what was allocated before stays where it is.
// The program ends with a message when they are full. `held`: a bit for each byte, all 0, which is 1 while somebody
// holds that byte; or nullptr.
void begin_pinned_heap(void* pages, size_t bytes, void* held = nullptr);

// The place of the first word of plain data that is an address of other memory of the process, which no GPU can read;
// -1: there is none. An emulated driver would not notice.
int64_t find_foreign_address(const void* data, size_t bytes);

}  // namespace edge_rt::gpu
