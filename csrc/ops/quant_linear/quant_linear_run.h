// How a checked product is spread over threads; knows nothing of ONNX Runtime.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/parallel.h"
#include "ops/quant_linear/quant_linear.h"

namespace edge_rt {

// Scratch memory for `rows` rows of a matrix's input.
size_t activation_bytes(WeightFormat format, int64_t rows, int64_t blocks);

// Points Activations into scratch memory of that size, 64-byte aligned.
Activations place_activations(WeightFormat format, int64_t rows, int64_t blocks, void* scratch);

// Scratch memory that run_linear needs: none for few rows, which every thread rounds into memory of its own.
size_t run_scratch_bytes(WeightFormat format, int64_t rows, int64_t blocks);

// Rounds the rows and multiplies them, in one fork and join. The activations of `job` and `rounding` lie in scratch
// memory of run_scratch_bytes, or nowhere if that is 0. `lanes` is the number of threads to plan for, which changes the
// speed only; returns how many took part.
int run_linear(const QuantLinearKernels& kernels, const RoundRows& rounding, const LinearRows& job,
               const Executor& executor, int lanes);

}  // namespace edge_rt
