#include "ops/decoder_layer/decoder_layer_op.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "kernels/kernel_table.h"
#include "ops/spec_attention/spec_attention_run.h"

namespace edge_rt {
namespace {

constexpr int kAttentionNorm = static_cast<int>(1 + std::size(kAttentionPorts)), kMlpNorm = kAttentionNorm + 3;
constexpr int kInputOf[] = {kAttentionNorm + 1, kAttentionNorm + 2, kMlpNorm + 1, kMlpNorm + 2};  // of the matrices
constexpr const char* kPrefixes[] = {"qkv_", "output_", "gate_up_", "down_"};
constexpr int kKeyConstants = kMlpNorm + 3;
constexpr int64_t kMaxIntermediate = int64_t{1} << 23;  // gate_up has twice as many rows

size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

abi::Status* DecoderLayer::create(ort::Attributes& attributes) {
  if (abi::Status* bad = attention_.create(attributes)) return bad;
  const int64_t hidden = attributes.integer("hidden"), intermediate = attributes.integer("intermediate");
  epsilon_ = attributes.real("epsilon", 1e-6f);
  if (intermediate < 1 || intermediate > kMaxIntermediate || intermediate % kTileRows != 0) {
    return attributes.error("intermediate is %lld, must be a multiple of %d, and at most %lld",
                            static_cast<long long>(intermediate), kTileRows, static_cast<long long>(kMaxIntermediate));
  }
  const int64_t queries = attention_.out_features(), keys = (attention_.qkv_features() - queries) / 2;
  const std::vector<int64_t> outs[] = {{queries, keys, keys}, {hidden}, {intermediate, intermediate}, {hidden}};
  const int64_t ins[] = {hidden, queries, hidden, intermediate};
  for (int i = 0; i < kMatrixCount; ++i) {
    if (abi::Status* bad = matrices_[i].create(attributes, kPrefixes[i], outs[i], ins[i])) return bad;
  }
  kernels_ = &kernel_table(attributes.isa()).quant_linear;
  return nullptr;
}

abi::Status* DecoderLayer::check(const ort::OpContext& context, int64_t rows, PackedParts* weights) const {
  const int64_t hidden = matrices_[kQkv].in_features;
  abi::Status* bad = nullptr;
  if ((bad = context.check_shape(0, {rows, hidden})) != nullptr ||
      (bad = context.check_shape(kAttentionNorm, {hidden})) != nullptr ||
      (bad = context.check_shape(kMlpNorm, {hidden})) != nullptr) {
    return bad;
  }
  for (int i = 0; i < kMatrixCount; ++i) {
    if ((bad = matrices_[i].view(context, kInputOf[i], &weights[i])) != nullptr) return bad;
  }
  weights[kGateUp].alternate = weights[kGateUp].count == 2;
  return nullptr;
}

abi::Status* DecoderLayer::compute(ort::OpContext& context) const {
  const int64_t rows = context.input(0).rank > 0 ? context.input(0).dims[0] : 0;
  PackedParts weights[kMatrixCount];
  if (abi::Status* bad = check(context, rows, weights)) return bad;
  SpecAttention::Depths depths(rows);
  AttentionPass pass;
  if (abi::Status* bad = attention_.check(context, rows, kKeyConstants, &pass, depths.data())) return bad;
  ort::TensorView y;
  if (abi::Status* bad = context.output(0, {rows, matrices_[kDown].out_features}, &y)) return bad;

  size_t widths[] = {0, 0, 0, 0}, activations = 0;
  const int64_t columns[] = {attention_.qkv_features(), attention_.out_features(), matrices_[kOutput].out_features,
                             matrices_[kDown].in_features};
  for (int i = 0; i < 4; ++i) widths[i] = aligned(sizeof(float) * static_cast<size_t>(rows * columns[i]));
  for (const PackedParts& weight : weights) {
    activations = std::max(activations, aligned(step_scratch_bytes(weight, rows)));
  }
  AttentionPlan plan(pass);
  ort::Scratch scratch;
  // The input of down is rounded while that of gate_up is still read.
  const size_t fed = aligned(activation_bytes(weights[kDown], rows));
  const size_t shared = widths[0] + widths[1] + widths[2] + widths[3] + activations + fed;
  if (abi::Status* bad = context.scratch(shared + plan.scratch_bytes(), &scratch)) return bad;
  char* at = scratch.as<char>();
  float* floats[4];
  for (int i = 0; i < 4; ++i, at += widths[i - 1]) floats[i] = reinterpret_cast<float*>(at);
  plan.place(at + activations + fed, &pass);
  pass.qkv = floats[0];
  pass.y = floats[1];

  const float* x = context.input(0).as<const float>();
  const float* attention_norm = context.input(kAttentionNorm).as<const float>();
  const float* mlp_norm = context.input(kMlpNorm).as<const float>();
  const int lanes = lanes_.load(std::memory_order_relaxed);
  const auto rounding = [&](Matrix which, const float* from, const float* norm) {
    const PackedParts& weight = weights[which];
    Activations out{rows, weight.blocks(), nullptr, nullptr, {}};
    if (which == kDown) {
      out = place_activations(weight, rows, at + activations);
    } else if (step_scratch_bytes(weight, rows) > 0) {
      out = place_activations(weight, rows, at);
    }
    return RoundRows{from, matrices_[which].in_features, norm, epsilon_, weight.rounds(), weight.kinds, out};
  };
  const auto product = [&](Matrix which, const RoundRows& rounded, const float* residual, float* to) {
    const bool paired = which == kGateUp;
    const int64_t out = matrices_[which].out_features;
    return LinearRows{weights[which], rounded.out, out,    paired ? out / 2 : out, paired, nullptr, nullptr,
                      residual,       to,          nullptr};
  };
  const RoundRows inputs[] = {rounding(kQkv, x, attention_norm), rounding(kOutput, floats[1], nullptr),
                              rounding(kGateUp, floats[2], mlp_norm), rounding(kDown, floats[3], nullptr)};
  LinearStep qkv(*kernels_, inputs[kQkv], product(kQkv, inputs[kQkv], nullptr, floats[0]), lanes);
  LinearStep output(*kernels_, inputs[kOutput], product(kOutput, inputs[kOutput], x, floats[2]), lanes);
  LinearStep gate_up(*kernels_, inputs[kGateUp], product(kGateUp, inputs[kGateUp], nullptr, floats[3]), lanes);
  LinearStep down(*kernels_, inputs[kDown], product(kDown, inputs[kDown], floats[2], y.as<float>()), lanes);
  gate_up.feed(&down);
  PhaseList phases;
  qkv.add_phases(&phases);
  plan.add_phases(attention_.kernels(), pass, &phases);
  output.add_phases(&phases);
  gate_up.add_phases(&phases);
  down.add_phases(&phases);
  run_phases(context.executor(), phases);
  lanes_.store(gate_up.workers(), std::memory_order_relaxed);
  const bool failed = qkv.failed() || output.failed() || gate_up.failed() || down.failed();
  return failed ? context.error("Failed to allocate memory for rounded rows") : nullptr;
}

}  // namespace edge_rt
