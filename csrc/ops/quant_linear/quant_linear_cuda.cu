// QuantLinear on a GPU: see quant_linear.h for what is computed, and quant_linear_gpu.cc for how many blocks run.
#include <type_traits>

#include "gpu/cuda/block_rows.h"
#include "ops/quant_linear/quant_linear.h"

namespace edge_rt::gpu {
namespace {

#include "ops/quant_linear/quant_linear_codes.inl"
#include "ops/quant_linear/quant_linear_finish.inl"
#include "ops/quant_linear/quant_linear_round_cuda.inl"
#include "ops/quant_linear/quant_linear_block_cuda.inl"
#include "ops/quant_linear/quant_linear_tiles_cuda.inl"
#include "ops/quant_linear/quant_linear_floats_cuda.inl"

using Few2 = FewRows<2, 8, 32>;
using Few8 = FewRows<8, 4, 16>;
using Few16 = FewRows<16, 4, 8>;

}  // namespace

// Grid: rows, and stretches of as many blocks as quant_linear_gpu.cc gives to a block of threads. With few rows each
// half warp has one; with many the row's norm, which every block of threads needs, is computed less often.
EDGE_RT_DEVICE void round_stretch(const RoundRows& job, int64_t blocks) {
  if (job.is_layer_norm) {
    round_blocks_of<LayerNormedRow>(job, blocks);
  } else {
    round_blocks_of<NormedRow>(job, blocks);
  }
}
EDGE_RT_KERNEL(quant_linear_round_few, kRoundThreads, RoundRows) { round_stretch(args, 16); }
EDGE_RT_KERNEL(quant_linear_round, kRoundThreads, RoundRows) { round_stretch(args, 64); }

// Grid: tiles, or pairs of them. 16 warps are to fit a multiprocessor: fewer have too few loads under way.
EDGE_RT_KERNEL_OF_BLOCKS(quant_linear_rows_2, Few2::kThreads, 16 / Few2::kWarps, LinearRows) {
  EDGE_RT_SHARED Few2::Shared shared;
  multiply_few<Few2>(args, &shared);
}
EDGE_RT_KERNEL_OF_BLOCKS(quant_linear_rows_8, Few8::kThreads, 16 / Few8::kWarps, LinearRows) {
  EDGE_RT_SHARED Few8::Shared shared;
  multiply_few<Few8>(args, &shared);
}
EDGE_RT_KERNEL_OF_BLOCKS(quant_linear_rows_16, Few16::kThreads, 16 / Few16::kWarps, LinearRows) {
  EDGE_RT_SHARED Few16::Shared shared;
  multiply_few<Few16>(args, &shared);
}

// Grid: kManyWarps tiles or pairs, and kManyGroups groups of rows.
EDGE_RT_KERNEL(quant_linear_rows_many, 32 * kManyWarps, LinearRows) {
  EDGE_RT_SHARED Turned turned[kManyWarps];
  multiply_many(args, &turned[warp()]);
}

// Grid: tiles or pairs, and groups of rows.
EDGE_RT_KERNEL(quant_linear_floats, kFloatThreads, LinearRows) {
  EDGE_RT_SHARED FloatStage stage;
  multiply_floats(args, block_y(), &stage);
}

// Grid: rows, and groups of a row that are normed by themselves.
EDGE_RT_KERNEL(quant_linear_post_norm, 256, LinearRows) {
  const int64_t width = args.post_width, first = block_x() * args.width + block_y() * width;
  float* y = args.y + first;
  const VF rms = rms_scale(y, static_cast<int>(width), args.post_epsilon);
  for (int64_t i = thread() / 16 * 16; i < width; i += 256) {
    const int count = width - i < 16 ? static_cast<int>(width - i) : 16;
    const VF value = vf_mul(vf_mul(vf_load_n(y + i, count), rms), vf_load_n(args.post_norm + i, count));
    vf_store_n(y + i, add_residual(args, first + i, count, value), count);
  }
}

}  // namespace edge_rt::gpu
