// Every operator that the provider has kernels for.
#pragma once

#include "ops/copy_rows/copy_rows_gpu_op.h"
#include "ops/decoder_layer/decoder_layer_gpu_op.h"
#include "ops/experts/experts_gpu_op.h"
#include "ops/gated_delta/gated_delta_gpu_op.h"
#include "ops/quant_embed/quant_embed_gpu_op.h"
#include "ops/quant_linear/quant_linear_gpu_op.h"
#include "ops/row_top_k/row_top_k_gpu_op.h"
#include "ops/short_conv/short_conv_gpu_op.h"
#include "ops/spec_attention/spec_attention_gpu_op.h"
#include "ops/ssm_scan/ssm_scan_gpu_op.h"
#include "ops/state_conv/state_conv_gpu_op.h"
#include "ort/registry.h"

namespace edge_rt::gpu {

using GpuOps = ort::OpList<GpuQuantLinear, GpuQuantEmbed, GpuRowTopK, GpuSpecAttention, GpuDecoderLayer, GpuShortConv,
                           GpuStateConv, GpuGatedDelta, GpuSsmScan, GpuExperts, GpuGather, GpuConcat, GpuSplit, GpuMul>;

}  // namespace edge_rt::gpu
