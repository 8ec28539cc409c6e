#include "common/own_memory.h"

namespace edge_rt {

uint8_t* own_memory(size_t bytes) {
  static thread_local OwnMemory memory;
  return memory.get(bytes);
}

}  // namespace edge_rt
