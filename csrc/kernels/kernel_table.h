// The kernels of one instruction set.
#pragma once

#include "common/isa.h"
#include "ops/draft_head/draft_head.h"
#include "ops/experts/experts.h"
#include "ops/gated_delta/gated_delta.h"
#include "ops/quant_embed/quant_embed.h"
#include "ops/quant_linear/quant_linear.h"
#include "ops/row_top_k/row_top_k.h"
#include "ops/short_conv/short_conv.h"
#include "ops/spec_attention/spec_attention.h"
#include "ops/ssm_scan/ssm_scan.h"
#include "ops/state_conv/state_conv.h"
#include "quantise/quantise.h"
#include "sampling/sampling_kernels.h"

namespace edge_rt {

struct KernelTable {
  const QuantLinearKernels& quant_linear;
  const QuantEmbedKernels& quant_embed;
  const SpecAttentionKernels& spec_attention;
  const ShortConvKernels& short_conv;
  const StateConvKernels& state_conv;
  const GatedDeltaKernels& gated_delta;
  const SsmScanKernels& ssm_scan;
  const ExpertsKernels& experts;
  const RowTopKKernels& row_top_k;
  const DraftHeadKernels& draft_head;
  const QuantiseKernels& quantise;
  const SamplingKernels& sampling;
};

// The table of a usable instruction set.
const KernelTable& kernel_table(Isa isa);

}  // namespace edge_rt
