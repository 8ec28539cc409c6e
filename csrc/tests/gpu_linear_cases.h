// Products that GPU kernels and the CPU's must give the same bits for.
#pragma once

#include "ops/quant_linear/weight_format.h"
#include "tests/gpu_tables.h"

namespace edge_rt::golden {

// Matrices of a format with every number of rows from 1 to 16 and some of prefill; steps before and behind products;
// and matrices of several formats, of which the first has this one. Inputs are so many that each stage of a kernel
// comes round three times. Kernels run in the orders of seeds 1 to `seeds`; the program ends where bits differ. Unless
// all are wanted, each format has some of the cases, and all formats together have every one.
void run_linear_cases(const LauncherOf& kernels, WeightFormat format, int seeds, bool all);

// A few rows of every kernel, in a format with minima and one whose blocks have two groups, as quickly as can be had.
void run_few_linear_cases(const LauncherOf& kernels, int seeds);

// QuantEmbed in a format, and RowTopK of awkward logits, in one order.
void run_embed_case(gpu::Launcher* launcher, WeightFormat format);
void run_top_k_case(gpu::Launcher* launcher, int k, int64_t width);

}  // namespace edge_rt::golden
