// Starts the kernels of a checked pass on a GPU. Which numbers of a pass may change when a recorded graph is replayed:
// what `past`, row_map and parents point to, in device memory. Rows, nodes of earlier passes (`done`) and capacity may
// not, nor where anything lies.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/launcher.h"
#include "ops/spec_attention/spec_attention.h"

namespace edge_rt::gpu {

// What a cache must begin at a multiple of: kernels read 16 bytes at once.
constexpr size_t kCacheAlignment = 16;

// Bytes of the tree of a pass, which all layers of a pass share; `nodes` are those of earlier passes and its rows.
size_t attention_tree_bytes(int64_t nodes);
// Finds out what is to be known of the tree in `parents` [nodes]. False: the launcher says why.
bool enqueue_attention_tree(Launcher* launcher, const int32_t* parents, int64_t nodes, void* tree);

// Bytes of scratch memory that passes of this shape need, however long the context is. Looks at nothing that pointers
// point to.
size_t attention_scratch_bytes(const AttentionPass& pass);

// The pass with all its pointers to device memory, but without scratch memory and depths; `past` lies there too, and
// pass.past and pass.chain are not read. Scratch memory begins at a multiple of 64 bytes. The numbers
// must be those of a pass that SpecAttention::check would let through: kernels do not check them again.
bool enqueue_attention(Launcher* launcher, const AttentionPass& pass, const int32_t* past, const void* tree,
                       void* scratch);

}  // namespace edge_rt::gpu
