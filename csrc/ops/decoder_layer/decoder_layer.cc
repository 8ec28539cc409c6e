#include "ops/decoder_layer/decoder_layer_op.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "kernels/kernel_table.h"
#include "ops/quant_linear/quant_linear_run.h"
#include "ops/spec_attention/spec_attention_run.h"

namespace edge_rt {
namespace {

constexpr int kAttentionNorm = static_cast<int>(1 + std::size(kAttentionPorts)), kMlpNorm = kAttentionNorm + 3;
constexpr int kInputOf[] = {kAttentionNorm + 1, kAttentionNorm + 2, kMlpNorm + 1, kMlpNorm + 2};  // of the matrices
constexpr const char* kPrefixes[] = {"qkv_", "output_", "gate_up_", "down_"};
constexpr int kKeyConstants = kMlpNorm + 3;
constexpr int kBiases = kKeyConstants + static_cast<int>(std::size(kKeyConstantPorts));  // in the order of the matrices
constexpr int kAttentionPostNorm = kBiases + 4, kMlpPostNorm = kBiases + 5;
constexpr int kAttentionNormBias = kBiases + 7, kMlpNormBias = kBiases + 8;
constexpr SpecAttention::Places kPlaces{kKeyConstants, kBiases + 6, kMlpNormBias + 1};
constexpr int64_t kMaxIntermediate = int64_t{1} << 23;  // gate_up has twice as many rows

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
  const int64_t attended = attention_.out_features();
  std::vector<int64_t> outs[] = {attention_.qkv_parts(), {hidden}, {intermediate}, {hidden}};
  if (is_gated(activation_)) outs[kGateUp].push_back(intermediate);
  const int64_t ins[] = {hidden, attended, hidden, intermediate};
  for (int i = 0; i < kMatrixCount; ++i) {
    if (abi::Status* bad = matrices_[i].create(attributes, kPrefixes[i], outs[i], ins[i])) return bad;
    if (abi::Status* bad = matrices_[i].read_fine(attributes, kPrefixes[i])) return bad;
  }
  kernels_ = &kernel_table(attributes.isa()).quant_linear;
  return nullptr;
}

int DecoderLayer::input_of(Matrix which) { return kInputOf[which]; }

abi::Status* DecoderLayer::check_weights(const ort::OpContext& context, Pass* pass) const {
  const int64_t hidden = matrices_[kQkv].in_features;
  abi::Status* bad = nullptr;
  if ((bad = context.check_shape(0, {pass->rows, hidden})) != nullptr) return bad;
  for (const int norm : {kAttentionNorm, kMlpNorm, kAttentionPostNorm, kMlpPostNorm}) {
    if ((bad = context.check_shape(norm, {hidden})) != nullptr) return bad;
  }
  if ((bad = check_norm_bias(context, kAttentionNorm, kAttentionNormBias, hidden)) != nullptr ||
      (bad = check_norm_bias(context, kMlpNorm, kMlpNormBias, hidden)) != nullptr) {
    return bad;
  }
  for (int i = 0; i < kMatrixCount; ++i) {
    if ((bad = matrices_[i].view(context, kInputOf[i], &pass->weights[i])) != nullptr) return bad;
    if ((bad = context.check_shape(kBiases + i, {matrices_[i].out_features})) != nullptr) return bad;
  }
  pass->weights[kGateUp].alternate = pass->weights[kGateUp].count == 2;
  return nullptr;
}

abi::Status* DecoderLayer::check(ort::OpContext& context, Pass* pass) const {
  pass->rows = context.input(0).rank > 0 ? context.input(0).dims[0] : 0;
  if (abi::Status* bad = check_weights(context, pass)) return bad;
  if (abi::Status* bad = attention_.check(context, pass->rows, kPlaces, &pass->attention, &pass->depths)) return bad;
  ort::TensorView y;
  if (abi::Status* bad = context.output(0, {pass->rows, matrices_[kDown].out_features}, &y)) return bad;
  pass->x = context.input(0).as<const float>();
  pass->y = y.as<float>();
  return nullptr;
}

void DecoderLayer::take_floats(Pieces* pieces, Pass* pass) const {
  pass->qkv = pieces->take<float>(pass->rows * attention_.qkv_features());
  pass->attended = pieces->take<float>(pass->rows * attention_.out_features());
  pass->sum = pieces->take<float>(pass->rows * matrices_[kOutput].out_features);
  pass->hidden = pieces->take<float>(pass->rows * matrices_[kDown].in_features);
}

RoundRows DecoderLayer::rounding(const ort::OpContext& context, const Pass& pass, Matrix which,
                                 const Activations& to) const {
  const float* const from[] = {pass.x, pass.attended, pass.sum, pass.hidden};
  const PackedParts& weight = pass.weights[which];
  RoundRows job{from[which], matrices_[which].in_features, nullptr, epsilon_, weight.rounds(), weight.kinds, to};
  job.fine = weight.fine;
  if (which == kQkv || which == kGateUp) {
    const bool is_first = which == kQkv;
    job.norm_weight = context.input(is_first ? kAttentionNorm : kMlpNorm).as<const float>();
    job.norm_bias = context.input(is_first ? kAttentionNormBias : kMlpNormBias).as<const float>();
    job.is_layer_norm = job.norm_weight != nullptr && (is_layer_norm_ || job.norm_bias != nullptr);
  }
  return job;
}

LinearRows DecoderLayer::product(const ort::OpContext& context, const Pass& pass, Matrix which,
                                 const Activations& in) const {
  const float* const residual[] = {nullptr, pass.x, nullptr, pass.sum};
  float* const to[] = {pass.qkv, pass.sum, pass.hidden, pass.y};
  LinearRows job{};
  job.weight = pass.weights[which];
  job.in = in;
  job.out_features = matrices_[which].out_features;
  job.paired = which == kGateUp && is_gated(activation_);
  job.width = job.paired ? job.out_features / 2 : job.out_features;
  job.bias = context.input(kBiases + which).as<const float>();
  job.residual = residual[which];
  job.y = to[which];
  if (which == kGateUp) {
    job.steps.activation = activation_;
  } else if (job.residual != nullptr) {
    job.steps.residual_scale = residual_scale_;
    job.post_norm = context.input(which == kOutput ? kAttentionPostNorm : kMlpPostNorm).as<const float>();
    job.post_width = job.width;
    job.post_epsilon = epsilon_;
  }
  return job;
}

abi::Status* DecoderLayer::compute(ort::OpContext& context) const {
  Pass pass;
  if (abi::Status* bad = check(context, &pass)) return bad;
  size_t activations = 0;
  for (const PackedParts& weight : pass.weights) {
    activations = std::max(activations, step_scratch_bytes(weight, pass.rows));
  }
  // The input of down is rounded while that of gate_up is still read.
  const size_t fed = activation_bytes(pass.weights[kDown], pass.rows);
  AttentionPlans plans(pass.attention.data(), static_cast<int64_t>(pass.attention.size()));
  char *shared = nullptr, *of_down = nullptr, *of_attention = nullptr;
  const auto lay_out = [&](char* base) {
    Pieces pieces(base);
    take_floats(&pieces, &pass);
    shared = pieces.take<char>(static_cast<int64_t>(activations));
    of_down = pieces.take<char>(static_cast<int64_t>(fed));
    of_attention = pieces.take<char>(static_cast<int64_t>(plans.scratch_bytes()));
    return pieces.used();
  };
  ort::Scratch scratch;
  if (abi::Status* bad = context.scratch(lay_out(nullptr), &scratch)) return bad;
  lay_out(scratch.as<char>());
  attention_.point_to_rows(pass.qkv, pass.attended, &pass.attention);

  const int lanes = lanes_.load(std::memory_order_relaxed);
  const auto rounded = [&](Matrix which) {
    const PackedParts& weight = pass.weights[which];
    Activations out{pass.rows, weight.row_blocks(), nullptr, nullptr, {}};
    if (which == kDown) {
      out = place_activations(weight, pass.rows, of_down);
    } else if (step_scratch_bytes(weight, pass.rows) > 0) {
      out = place_activations(weight, pass.rows, shared);
    }
    return rounding(context, pass, which, out);
  };
  const RoundRows inputs[] = {rounded(kQkv), rounded(kOutput), rounded(kGateUp), rounded(kDown)};
  const auto job = [&](Matrix which) { return product(context, pass, which, inputs[which].out); };
  LinearStep qkv(*kernels_, inputs[kQkv], job(kQkv), lanes);
  LinearStep output(*kernels_, inputs[kOutput], job(kOutput), lanes);
  LinearStep gate_up(*kernels_, inputs[kGateUp], job(kGateUp), lanes);
  LinearStep down(*kernels_, inputs[kDown], job(kDown), lanes);
  gate_up.feed(&down);
  PhaseList phases;
  qkv.add_phases(&phases);
  plans.add_phases(of_attention, attention_.kernels(), &phases);
  output.add_phases(&phases);
  gate_up.add_phases(&phases);
  down.add_phases(&phases);
  run_phases(process_crew(), phases);
  lanes_.store(gate_up.workers(), std::memory_order_relaxed);
  const bool failed = plans.failed() || qkv.failed() || output.failed() || gate_up.failed() || down.failed();
  return failed ? context.error("Failed to allocate memory for rounded rows or attention") : nullptr;
}

}  // namespace edge_rt
