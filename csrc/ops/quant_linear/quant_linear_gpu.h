// Starts QuantLinear's kernels; knows nothing of ONNX Runtime or drivers. Pointers inside the jobs are device memory.
#pragma once

#include "gpu/launcher.h"
#include "ops/quant_linear/quant_linear.h"

namespace edge_rt::gpu {

// What packed matrices and Activations must begin at a multiple of: kernels read 8 bytes at once.
constexpr size_t kLinearAlignment = 16;

// Bits of Kernel::choices: the formats that a job's weights are read as, of which kernels of Vulkan take up to three,
// and steps that it has.
constexpr uint32_t format_choice(WeightFormat format) { return 1u << static_cast<int>(read_as(format)); }
uint32_t format_choices(const PackedParts& weight);
uint32_t step_choices(const LinearSteps& steps);

// Rows of x become Activations (with a norm, if there is one). False: see Launcher. Without rows or blocks, nothing
// is started.
bool enqueue_round_rows(Launcher* launcher, const RoundRows& job);

// Activations become y, with all steps, a post_norm too. Reads nothing of the job that changes from pass to pass but
// what its pointers point to. `job.unpacked` is not used.
bool enqueue_product(Launcher* launcher, const LinearRows& job);

}  // namespace edge_rt::gpu
