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
#include "quantise/quantise.h"
#include "sampling/sampling_kernels.h"

namespace edge_rt {

struct KernelTable {
  QuantLinearKernels quant_linear;
  QuantEmbedKernels quant_embed;
  SpecAttentionKernels spec_attention;
  ShortConvKernels short_conv;
  GatedDeltaKernels gated_delta;
  SsmScanKernels ssm_scan;
  ExpertsKernels experts;
  RowTopKKernels row_top_k;
  DraftHeadKernels draft_head;
  QuantiseKernels quantise;
  SamplingKernels sampling;
};

// The table of a usable instruction set.
const KernelTable& kernel_table(Isa isa);

}  // namespace edge_rt
