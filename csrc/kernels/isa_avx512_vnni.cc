// All kernels for avx512_vnni.
#define EDGE_RT_ISA_NAMESPACE avx512_vnni
#include "kernels/kernel_table.h"
#include "kernels/simd_avx512.h"

namespace edge_rt::avx512_vnni {
namespace {
#include "kernels/simd_math.inl"
#include "ops/quant_linear/quant_linear_tile.inl"
#include "ops/quant_linear/quant_linear_tile_avx512.inl"
#include "ops/quant_linear/quant_linear_cpu.inl"
#include "ops/quant_embed/quant_embed_cpu.inl"
#include "ops/row_top_k/row_top_k_cpu.inl"
#include "ops/spec_attention/spec_attention_cpu.inl"
}  // namespace

extern const KernelTable kTable;
const KernelTable kTable{kQuantLinearKernels, kQuantEmbedKernels, kSpecAttentionKernels, kRowTopKKernels};

}  // namespace edge_rt::avx512_vnni
