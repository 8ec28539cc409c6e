// Kernels of what multiplies packed matrices, and of what works on rows of scores. Compiled once per instruction set,
// with that set's flags and two definitions: EDGE_RT_ISA_NAMESPACE, the set's name, and EDGE_RT_SIMD_<NAME>, whose
// vectors it uses (kernels/simd.h).
#include <type_traits>

#include "ops/draft_head/draft_head.h"
#include "ops/experts/experts.h"
#include "ops/quant_embed/quant_embed.h"
#include "ops/quant_linear/quant_linear.h"
#include "ops/row_top_k/row_top_k.h"
#include "quantise/quantise.h"
#include "sampling/sampling_kernels.h"
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
// With the tiles of quant_linear.
#include "ops/experts/experts_cpu.inl"
#include "quantise/quantise_cpu.inl"
// With the minus infinity of row_top_k.
#include "sampling/sampling_cpu.inl"
}  // namespace

// What kernels.cc lists.
extern const QuantLinearKernels kQuantLinear;
const QuantLinearKernels kQuantLinear = kQuantLinearKernels;
extern const QuantEmbedKernels kQuantEmbed;
const QuantEmbedKernels kQuantEmbed = kQuantEmbedKernels;
extern const RowTopKKernels kRowTopK;
const RowTopKKernels kRowTopK = kRowTopKKernels;
extern const DraftHeadKernels kDraftHead;
const DraftHeadKernels kDraftHead = kDraftHeadKernels;
extern const ExpertsKernels kExperts;
const ExpertsKernels kExperts = kExpertsKernels;
extern const QuantiseKernels kQuantise;
const QuantiseKernels kQuantise = kQuantiseKernels;
extern const SamplingKernels kSampling;
const SamplingKernels kSampling = kSamplingKernels;

}  // namespace edge_rt::EDGE_RT_ISA_NAMESPACE
