// Starts QuantEmbed's kernel; pointers inside the job are device memory.
#pragma once

#include <cstddef>

#include "gpu/launcher.h"
#include "ops/quant_embed/quant_embed.h"

namespace edge_rt::gpu {

// What the matrix must begin at a multiple of.
constexpr size_t kEmbedAlignment = 4;

// Ids are checked on the device: a row of one that does not exist becomes NaN. False: see Launcher.
bool enqueue_embed(Launcher* launcher, const EmbedRows& job);

}  // namespace edge_rt::gpu
