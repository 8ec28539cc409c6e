// Every operator of the library, once.
#pragma once

#include "ops/decoder_layer/decoder_layer_op.h"
#include "ops/draft_head/draft_head_op.h"
#include "ops/experts/experts_op.h"
#include "ops/gated_delta/gated_delta_op.h"
#include "ops/quant_embed/quant_embed_op.h"
#include "ops/quant_linear/quant_linear_op.h"
#include "ops/row_top_k/row_top_k_op.h"
#include "ops/short_conv/short_conv_op.h"
#include "ops/spec_attention/spec_attention_op.h"
#include "ops/ssm_scan/ssm_scan_op.h"
#include "ops/state_conv/state_conv_op.h"
#include "ort/registry.h"

namespace edge_rt {

using AllOps = ort::OpList<QuantLinear, QuantEmbed, RowTopK, SpecAttention, ShortConv, StateConv, GatedDelta, SsmScan,
                           Experts, DecoderLayer, DraftHead>;

}  // namespace edge_rt
