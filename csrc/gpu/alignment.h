// What kernels of a GPU ask of memory beside what those of a CPU do.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ort/op.h"

namespace edge_rt::gpu {

// Fails unless an input begins at a multiple of so many bytes. An absent input passes.
inline abi::Status* check_alignment(const ort::OpContext& context, int index, size_t bytes) {
  if (reinterpret_cast<uintptr_t>(context.input(index).data) % bytes == 0) return nullptr;
  return context.error("%s does not begin at a multiple of %zu bytes", context.input_name(index), bytes);
}

}  // namespace edge_rt::gpu
