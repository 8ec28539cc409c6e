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
constexpr int kBiases = kKeyConstants + static_cast<int>(std::size(kKeyConstantPorts));  // in the order of the matrices
constexpr int kAttentionPostNorm = kBiases + 4, kMlpPostNorm = kBiases + 5;
constexpr SpecAttention::Places kPlaces{kKeyConstants, kBiases + 6};
constexpr int kAttentionNormBias = kBiases + 7, kMlpNormBias = kBiases + 8;
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
  if (abi::Status* bad = read_activation(attributes, {"swiglu", "geglu", "relu2"}, &activation_)) return bad;
  if (abi::Status* bad = read_residual_scale(attributes, &residual_scale_)) return bad;
  if (abi::Status* bad = read_norm(attributes, &is_layer_norm_)) return bad;
  const int64_t queries = attention_.out_features(), keys = (attention_.qkv_features() - queries) / 2;
  std::vector<int64_t> outs[] = {{queries, keys, keys}, {hidden}, {intermediate}, {hidden}};
  if (is_gated(activation_)) outs[kGateUp].push_back(intermediate);
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
  if ((bad = context.check_shape(0, {rows, hidden})) != nullptr) return bad;
  for (const int norm : {kAttentionNorm, kMlpNorm, kAttentionPostNorm, kMlpPostNorm}) {
    if ((bad = context.check_shape(norm, {hidden})) != nullptr) return bad;
  }
  if ((bad = check_norm_bias(context, kAttentionNorm, kAttentionNormBias, hidden)) != nullptr ||
      (bad = check_norm_bias(context, kMlpNorm, kMlpNormBias, hidden)) != nullptr) {
    return bad;
  }
  for (int i = 0; i < kMatrixCount; ++i) {
    if ((bad = matrices_[i].view(context, kInputOf[i], &weights[i])) != nullptr) return bad;
    if ((bad = context.check_shape(kBiases + i, {matrices_[i].out_features})) != nullptr) return bad;
  }
  weights[kGateUp].alternate = weights[kGateUp].count == 2;
  return nullptr;
}

RoundRows DecoderLayer::rounding(const ort::OpContext& context, Matrix which, const PackedParts& weight,
                                 const float* from, const Activations& to) const {
  RoundRows job{from, matrices_[which].in_features, nullptr, epsilon_, weight.rounds(), weight.kinds, to};
  if (which == kQkv || which == kGateUp) {
    const bool is_first = which == kQkv;
    job.norm_weight = context.input(is_first ? kAttentionNorm : kMlpNorm).as<const float>();
    job.norm_bias = context.input(is_first ? kAttentionNormBias : kMlpNormBias).as<const float>();
    job.is_layer_norm = job.norm_weight != nullptr && (is_layer_norm_ || job.norm_bias != nullptr);
  }
  return job;
}

LinearRows DecoderLayer::product(const ort::OpContext& context, Matrix which, const PackedParts& weight,
                                 const RoundRows& rounded, const float* residual, float* to) const {
  LinearRows job{};
  job.weight = weight;
  job.in = rounded.out;
  job.out_features = matrices_[which].out_features;
  job.paired = which == kGateUp && is_gated(activation_);
  job.width = job.paired ? job.out_features / 2 : job.out_features;
  job.bias = context.input(kBiases + which).as<const float>();
  job.residual = residual;
  job.y = to;
  if (which == kGateUp) {
    job.steps.activation = activation_;
  } else if (residual != nullptr) {
    job.steps.residual_scale = residual_scale_;
    job.post_norm = context.input(which == kOutput ? kAttentionPostNorm : kMlpPostNorm).as<const float>();
    job.post_epsilon = epsilon_;
  }
  return job;
}

abi::Status* DecoderLayer::compute(ort::OpContext& context) const {
  const int64_t rows = context.input(0).rank > 0 ? context.input(0).dims[0] : 0;
  PackedParts weights[kMatrixCount];
  if (abi::Status* bad = check(context, rows, weights)) return bad;
  SpecAttention::Depths depths(rows);
  AttentionPass pass;
  if (abi::Status* bad = attention_.check(context, rows, kPlaces, &pass, depths.data())) return bad;
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
  const int lanes = lanes_.load(std::memory_order_relaxed);
  const auto prepared = [&](Matrix which, const float* from) {
    const PackedParts& weight = weights[which];
    Activations out{rows, weight.blocks(), nullptr, nullptr, {}};
    if (which == kDown) {
      out = place_activations(weight, rows, at + activations);
    } else if (step_scratch_bytes(weight, rows) > 0) {
      out = place_activations(weight, rows, at);
    }
    return rounding(context, which, weight, from, out);
  };
  const RoundRows inputs[] = {prepared(kQkv, x), prepared(kOutput, floats[1]), prepared(kGateUp, floats[2]),
                              prepared(kDown, floats[3])};
  const auto job = [&](Matrix which, const float* residual, float* to) {
    return product(context, which, weights[which], inputs[which], residual, to);
  };
  LinearStep qkv(*kernels_, inputs[kQkv], job(kQkv, nullptr, floats[0]), lanes);
  LinearStep output(*kernels_, inputs[kOutput], job(kOutput, x, floats[2]), lanes);
  LinearStep gate_up(*kernels_, inputs[kGateUp], job(kGateUp, nullptr, floats[3]), lanes);
  LinearStep down(*kernels_, inputs[kDown], job(kDown, floats[2], y.as<float>()), lanes);
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
