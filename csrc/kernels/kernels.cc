// Every kernel. The build compiles this file once per instruction set, with that set's flags and two definitions:
// EDGE_RT_ISA_NAMESPACE, the set's name, and EDGE_RT_SIMD_<NAME>, whose vectors it uses (kernels/simd.h).
//
// What has kernels gets a line in each of the two lists below, and a member in kernel_table.h.
#include <type_traits>

#include "kernels/kernel_table.h"
#include "kernels/simd.h"

namespace edge_rt::EDGE_RT_ISA_NAMESPACE {
namespace {
#include "kernels/simd_math.inl"
#include "kernels/simd_rows.inl"
#include "ops/quant_linear/quant_linear_cpu.inl"
// Reads codes as the above defines them.
#include "ops/quant_embed/quant_embed_cpu.inl"
#include "ops/row_top_k/row_top_k_cpu.inl"
// Joins what the above finds.
#include "ops/draft_head/draft_head_cpu.inl"
#include "ops/spec_attention/spec_attention_cpu.inl"
#include "ops/short_conv/short_conv_cpu.inl"
#include "ops/recurrent/recurrent_cpu.inl"
#include "ops/gated_delta/gated_delta_cpu.inl"
#include "ops/ssm_scan/ssm_scan_cpu.inl"
// With the tiles of quant_linear.
#include "ops/experts/experts_cpu.inl"
#include "quantise/quantise_cpu.inl"
// With the minus infinity of row_top_k.
#include "sampling/sampling_cpu.inl"
}  // namespace

extern const KernelTable kTable;
const KernelTable kTable{
    kQuantLinearKernels, kQuantEmbedKernels, kSpecAttentionKernels, kShortConvKernels,
    kGatedDeltaKernels,  kSsmScanKernels,    kExpertsKernels,       kRowTopKKernels,
    kDraftHeadKernels,   kQuantiseKernels,   kSamplingKernels,
};

}  // namespace edge_rt::EDGE_RT_ISA_NAMESPACE
