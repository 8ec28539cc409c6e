#include "ops/decoder_layer/decoder_layer_gpu_op.h"

#include <algorithm>

#include "gpu/alignment.h"
#include "ops/quant_linear/quant_linear_gpu.h"
#include "ops/quant_linear/quant_linear_run.h"
#include "ops/spec_attention/spec_attention_gpu.h"

namespace edge_rt::gpu {
namespace {

using Matrix = DecoderLayer::Matrix;

constexpr Matrix kMatrices[] = {DecoderLayer::kQkv, DecoderLayer::kOutput, DecoderLayer::kGateUp, DecoderLayer::kDown};

}  // namespace

abi::Status* GpuDecoderLayer::enqueue(ort::OpContext& context, PassStream& stream) const {
  DecoderLayer::Pass pass;
  GpuAttention attention;
  if (abi::Status* bad = op_.check(context, &pass)) return bad;
  if (abi::Status* bad = attention.check(context)) return bad;
  size_t activations = 0;
  for (const Matrix which : kMatrices) {
    if (abi::Status* bad = check_alignment(context, DecoderLayer::input_of(which), kLinearAlignment)) return bad;
    activations = std::max(activations, activation_bytes(pass.weights[which], pass.rows));
  }
  char *of_linear = nullptr, *of_attention = nullptr;
  const auto lay_out = [&](char* base) {
    Pieces pieces(base);
    op_.take_floats(&pieces, &pass);
    of_linear = pieces.take<char>(static_cast<int64_t>(activations));
    of_attention = pieces.take<char>(static_cast<int64_t>(GpuAttention::scratch_bytes(pass.attention)));
    return pieces.used();
  };
  ort::Scratch scratch;
  if (abi::Status* bad = context.scratch(lay_out(nullptr), &scratch)) return bad;
  lay_out(scratch.as<char>());
  op_.attention().point_to_rows(pass.qkv, pass.attended, &pass.attention);

  const auto multiply = [&](Matrix which) {
    const Activations in = place_activations(pass.weights[which], pass.rows, of_linear);
    return enqueue_round_rows(&stream, op_.rounding(context, pass, which, in)) &&
           enqueue_product(&stream, op_.product(context, pass, which, in));
  };
  // An error stays in the stream, where whoever runs the kernel finds it.
  if (attention.prepare(context, op_.attention().layer(), stream, &pass.attention) && multiply(DecoderLayer::kQkv) &&
      attention.enqueue(stream, pass.attention, of_attention) && multiply(DecoderLayer::kOutput) &&
      multiply(DecoderLayer::kGateUp)) {
    multiply(DecoderLayer::kDown);
  }
  return nullptr;
}

}  // namespace edge_rt::gpu
