// All kernels for scalar.
#if defined(__AVX__)
#error "The scalar kernels must run on every CPU: build without -march=native"
#endif

#define EDGE_RT_ISA_NAMESPACE scalar
#include "kernels/kernel_table.h"
#include "kernels/simd_scalar.h"

namespace edge_rt::scalar {
namespace {
#include "kernels/simd_math.inl"
#include "ops/quant_linear/quant_linear_tile.inl"
#include "ops/quant_linear/quant_linear_tile_scalar.inl"
#include "ops/quant_linear/quant_linear_cpu.inl"
#include "ops/quant_embed/quant_embed_cpu.inl"
#include "ops/row_top_k/row_top_k_cpu.inl"
#include "ops/spec_attention/spec_attention_cpu.inl"
}  // namespace

extern const KernelTable kTable;
const KernelTable kTable{kQuantLinearKernels, kQuantEmbedKernels, kSpecAttentionKernels, kRowTopKKernels};

}  // namespace edge_rt::scalar
