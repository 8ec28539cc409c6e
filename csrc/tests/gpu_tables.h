// GPU kernels in the places of the CPU's, for what runs ops by a table.
#pragma once

#include <functional>

#include "gpu/launcher.h"
#include "kernels/kernel_table.h"

namespace edge_rt::golden {

// QuantLinear, QuantEmbed and RowTopK by GPU kernels, started by a launcher that has finished each when it returns; all
// else is the CPU's. Functions of tables have no context: the launcher of the last call holds for all tables.
KernelTable gpu_kernels(gpu::Launcher* launcher);

// Starts kernels in the order of a seed, if whatever runs them has one; it holds until the next call.
using LauncherOf = std::function<gpu::Launcher*(uint64_t seed)>;

// On fibers (simt::launch).
gpu::Launcher* fiber_launcher(uint64_t seed);

}  // namespace edge_rt::golden
