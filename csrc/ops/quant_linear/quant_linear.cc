#include "ops/quant_linear/quant_linear_op.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <numeric>

#include "kernels/kernel_table.h"
#include "ops/quant_linear/quant_linear_run.h"

namespace edge_rt {
namespace {

// Larger matrices do not occur, and products of sizes below it fit 64 bits.
constexpr int64_t kMaxFeatures = int64_t{1} << 24;

}  // namespace

bool weight_format_from_name(const char* name, WeightFormat* out) {
  for (int i = 0; i < kWeightFormatCount; ++i) {
    if (std::strcmp(name, kWeightFacts[i].name) == 0) {
      *out = static_cast<WeightFormat>(i);
      return true;
    }
  }
  return false;
}

namespace {

std::vector<std::string> split_at_commas(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == ',') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

}  // namespace

abi::Status* PackedMatrix::create(ort::Attributes& attributes) {
  const int64_t outs = attributes.integer("out_features"), ins = attributes.integer("in_features");
  const std::string part_rows = attributes.text("part_rows", "");
  if (part_rows.empty()) return create(attributes, "", {outs}, ins);
  std::vector<int64_t> rows;
  for (const std::string& part : split_at_commas(part_rows)) {
    char* end = nullptr;
    rows.push_back(std::strtoll(part.c_str(), &end, 10));
    if (part.empty() || *end != '\0' || rows.back() < 1 || rows.back() > kMaxFeatures || rows.size() > kMaxParts) {
      return attributes.error("part_rows is '%.40s', must be up to %d numbers with commas between them",
                              part_rows.c_str(), kMaxParts);
    }
  }
  if (std::accumulate(rows.begin(), rows.end(), int64_t{0}) != outs) {
    return attributes.error("part_rows is '%.40s', must add up to out_features, %lld", part_rows.c_str(),
                            static_cast<long long>(outs));
  }
  return create(attributes, "", rows, ins);
}

abi::Status* PackedMatrix::create(ort::Attributes& attributes, const std::string& prefix,
                                  const std::vector<int64_t>& rows, int64_t ins) {
  const char* which = prefix.c_str();
  out_features = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  in_features = ins;
  if (out_features < 1 || out_features > kMaxFeatures || in_features < 1 || in_features > kMaxFeatures) {
    return attributes.error("%sout_features %lld and %sin_features %lld must be 1 to %lld", which,
                            static_cast<long long>(out_features), which, static_cast<long long>(in_features),
                            static_cast<long long>(kMaxFeatures));
  }
  const std::vector<std::string> names = split_at_commas(attributes.text((prefix + "format").c_str()));
  if (names.size() == 1) return add_part(attributes, which, names[0], out_features);
  if (names.size() != rows.size()) {
    return attributes.error("%sformat has %d names, must have 1 or %d", which, static_cast<int>(names.size()),
                            static_cast<int>(rows.size()));
  }
  for (size_t i = 0; i < names.size(); ++i) {
    if (abi::Status* bad = add_part(attributes, which, names[i], rows[i])) return bad;
  }
  return nullptr;
}

abi::Status* PackedMatrix::read_fine(ort::Attributes& attributes, const std::string& prefix) {
  const std::string text = attributes.text((prefix + "fine_blocks").c_str(), "");
  if (text.empty()) return nullptr;
  const char* which = prefix.c_str();
  int64_t unit = 1;
  for (const WeightFormat format : formats_) {
    if (!rounds_activations(format)) {
      return attributes.error("%sfine_blocks is given, but %sformat is of floats", which, which);
    }
    unit = std::max<int64_t>(unit, facts(format).unit_blocks);
  }
  const int64_t blocks = in_features / kBlock;
  for (const std::string& part : split_at_commas(text)) {
    char* end = nullptr;
    const int64_t block = std::strtoll(part.c_str(), &end, 10);
    const int32_t last = fine_.count > 0 ? fine_.end[fine_.count - 1] : 0;
    const bool is_next = fine_.count > 0 && block == last;
    if (part.empty() || *end != '\0' || block < last || block >= blocks ||
        (!is_next && (fine_.count == kMaxFineRuns || block % unit != 0 || last % unit != 0))) {
      return attributes.error(
          "%sfine_blocks has '%.20s', must be rising numbers below %lld, of whole units of %d, in up "
          "to %d stretches",
          which, part.c_str(), static_cast<long long>(blocks), static_cast<int>(unit), kMaxFineRuns);
    }
    if (!is_next) fine_.begin[fine_.count++] = static_cast<int32_t>(block);
    fine_.end[fine_.count - 1] = static_cast<int32_t>(block) + 1;
    ++fine_.blocks;
  }
  if (fine_.end[fine_.count - 1] % unit != 0) {
    return attributes.error("%sfine_blocks ends within a unit of %d blocks", which, static_cast<int>(unit));
  }
  return nullptr;
}

abi::Status* PackedMatrix::add_part(ort::Attributes& attributes, const char* prefix, const std::string& name,
                                    int64_t rows) {
  WeightFormat format;
  if (!weight_format_from_name(name.c_str(), &format)) {
    std::string names = kWeightFacts[0].name;
    for (int i = 1; i < kWeightFormatCount; ++i) names += std::string(", ") + kWeightFacts[i].name;
    return attributes.error("%sformat is '%.20s', must be one of %s", prefix, name.c_str(), names.c_str());
  }
  const int64_t step = rounds_activations(format) ? unit_inputs(format) : 1;
  if (in_features % step != 0) {
    return attributes.error("%sin_features is %lld, must be a multiple of %d", prefix,
                            static_cast<long long>(in_features), static_cast<int>(step));
  }
  if (rows != out_features && (rows < 1 || rows % kTileRows != 0 || !rounds_activations(format))) {
    return attributes.error("%sformat has a part '%s' of %lld rows, must be of codes and a multiple of %d", prefix,
                            name.c_str(), static_cast<long long>(rows), kTileRows);
  }
  formats_.push_back(format);
  rows_.push_back(rows);
  return nullptr;
}

abi::Status* PackedMatrix::view(const ort::OpContext& context, int index, PackedParts* out) const {
  return view(context, index, rows_.data(), out);
}

abi::Status* PackedMatrix::view_rows(const ort::OpContext& context, int index, int64_t rows, PackedParts* out) const {
  return view(context, index, &rows, out);
}

abi::Status* PackedMatrix::view(const ort::OpContext& context, int index, const int64_t* rows, PackedParts* out) const {
  *out = {};
  out->count = static_cast<int>(formats_.size());
  out->fine = fine_;
  const int64_t blocks = (in_features + kBlock - 1) / kBlock;
  int64_t bytes = 0;
  unsigned alignment = 2;
  for (int i = 0; i < out->count; ++i) {
    const WeightFormat format = formats_[static_cast<size_t>(i)];
    const int64_t tiles = (rows[i] + kTileRows - 1) / kTileRows;
    out->parts[i] = {context.input(index).as<const uint8_t>() + bytes, tiles, blocks, format};
    out->sums[i] = out->kinds.add(sum_kind(format));
    bytes += out->parts[i].bytes();
    if (format == WeightFormat::kF32) alignment = 4;
  }
  const PackedWeight& first = out->parts[0];
  const int64_t units = blocks / facts(first.format).unit_blocks;
  abi::Status* bad = out->count == 1 ? context.check_shape(index, {first.tiles, units, stored_unit_bytes(first.format)})
                                     : context.check_shape(index, {bytes});
  if (bad != nullptr) return bad;
  // Scales and halves are read as such, and whose memory a tensor is ONNX Runtime leaves to its users.
  if (reinterpret_cast<uintptr_t>(context.input(index).data) % alignment != 0) {
    return context.error("%s does not begin at a multiple of %u bytes", context.input_name(index), alignment);
  }
  return nullptr;
}

namespace {

// In the order of Activation.
constexpr const char* kActivationNames[] = {"none", "swiglu", "geglu", "relu2", "gelu_gate"};

}  // namespace

abi::Status* read_activation(ort::Attributes& attributes, std::initializer_list<const char*> names, Activation* out) {
  const std::string given = attributes.text("activation", *names.begin());
  std::string known;
  bool is_known = false;
  for (const char* name : names) {
    is_known = is_known || given == name;
    known += std::string(known.empty() ? "" : ", ") + name;
  }
  if (!is_known) {
    return attributes.error("activation is '%.20s', must be one of %s", given.c_str(), known.c_str());
  }
  for (int i = 0; i < static_cast<int>(std::size(kActivationNames)); ++i) {
    if (given == kActivationNames[i]) *out = static_cast<Activation>(i);
  }
  return nullptr;
}

abi::Status* read_residual_scale(ort::Attributes& attributes, float* out) {
  *out = attributes.real("residual_scale", 1.0f);
  return std::isfinite(*out) ? nullptr : attributes.error("residual_scale is not finite");
}

abi::Status* read_norm(ort::Attributes& attributes, bool* is_layer_norm) {
  const std::string norm = attributes.text("norm", "rms");
  if (norm != "rms" && norm != "layer") {
    return attributes.error("norm is '%.20s', must be rms or layer", norm.c_str());
  }
  *is_layer_norm = norm == "layer";
  return nullptr;
}

abi::Status* check_norm_bias(const ort::OpContext& context, int weight, int bias, int64_t features) {
  if (context.input(bias).present && !context.input(weight).present) {
    return context.error("%s is given without %s", context.input_name(bias), context.input_name(weight));
  }
  return context.check_shape(bias, {features});
}

abi::Status* QuantLinear::create(ort::Attributes& attributes) {
  if (abi::Status* bad = matrix_.create(attributes)) return bad;
  if (abi::Status* bad = matrix_.read_fine(attributes, "")) return bad;
  epsilon_ = attributes.real("epsilon", 0.0f);
  const auto names = {"none", "swiglu", "geglu", "relu2", "gelu_gate"};
  if (abi::Status* bad = read_activation(attributes, names, &steps_.activation)) return bad;
  if (abi::Status* bad = read_residual_scale(attributes, &steps_.residual_scale)) return bad;
  steps_.output_scale = attributes.real("output_scale", 1.0f);
  steps_.softcap = attributes.real("softcap", 0.0f);
  if (!std::isfinite(steps_.output_scale)) return attributes.error("output_scale is not finite");
  if (!std::isfinite(steps_.softcap) || steps_.softcap < 0) {
    return attributes.error("softcap is %g, must be finite and not below 0", static_cast<double>(steps_.softcap));
  }
  if (abi::Status* bad = read_norm(attributes, &is_layer_norm_)) return bad;
  if (!std::isfinite(epsilon_) || epsilon_ < 0) {
    return attributes.error("epsilon is %g, must be finite and not below 0", static_cast<double>(epsilon_));
  }
  kernels_ = &kernel_table(attributes.isa()).quant_linear;
  return nullptr;
}

abi::Status* QuantLinear::check(ort::OpContext& context, LinearRows* out) const {
  LinearRows& job = *out;
  job = {};
  if (abi::Status* bad = matrix_.view(context, 1, &job.weight)) return bad;
  const int64_t rows = context.input(0).rank > 0 ? context.input(0).dims[0] : 0;
  const bool has_gate = context.input(5).present;
  job.steps = steps_;
  job.paired = is_gated(steps_.activation) && !has_gate;
  job.weight.alternate = job.paired && job.weight.count > 1;
  if (job.weight.alternate && (job.weight.count != 2 || job.weight.parts[0].tiles != job.weight.parts[1].tiles)) {
    return context.error("weight has %d parts, pairs need two of equal size", job.weight.count);
  }
  job.out_features = matrix_.out_features;
  job.width = job.paired ? matrix_.out_features / 2 : matrix_.out_features;
  if (has_gate && !is_gated(steps_.activation)) {
    return context.error("gate is given, but activation is %s", kActivationNames[static_cast<int>(steps_.activation)]);
  }
  if (steps_.activation == Activation::kGeluGate && !has_gate) {
    return context.error("activation is gelu_gate, but gate is missing");
  }
  if (steps_.residual_scale != 1.0f && !context.input(4).present) {
    return context.error("residual_scale is %g, but residual is missing", static_cast<double>(steps_.residual_scale));
  }
  if (job.paired && matrix_.out_features % (2 * kTileRows) != 0) {
    return context.error("out_features is %lld, tile pairs need a multiple of %d",
                         static_cast<long long>(matrix_.out_features), 2 * kTileRows);
  }
  // One after the other: a status that is made must be handed on.
  abi::Status* bad = nullptr;
  if ((bad = context.check_shape(0, {rows, matrix_.in_features})) != nullptr ||
      (bad = context.check_shape(2, {matrix_.in_features})) != nullptr ||
      (bad = context.check_shape(3, {job.out_features})) != nullptr ||
      (bad = context.check_shape(4, {rows, job.width})) != nullptr ||
      (bad = context.check_shape(5, {rows, job.width})) != nullptr || (bad = context.check_shape(6, {-1})) != nullptr ||
      (bad = check_norm_bias(context, 2, 7, matrix_.in_features)) != nullptr) {
    return bad;
  }
  const ort::TensorView& post_norm = context.input(6);
  job.post_width = post_norm.present ? post_norm.dims[0] : job.width;
  if (job.post_width < 1 || job.width % job.post_width != 0) {
    return context.error("post_norm is [%lld], must divide the %lld features of a row",
                         static_cast<long long>(job.post_width), static_cast<long long>(job.width));
  }
  ort::TensorView y;
  if (abi::Status* bad = context.output(0, {rows, job.width}, &y)) return bad;
  job.bias = context.input(3).as<const float>();
  job.residual = context.input(4).as<const float>();
  job.gate = context.input(5).as<const float>();
  job.post_norm = context.input(6).as<const float>();
  job.post_epsilon = epsilon_;
  job.y = y.as<float>();
  job.in = {rows, job.weight.row_blocks(), nullptr, nullptr, {}};
  return nullptr;
}

RoundRows QuantLinear::rounding(const ort::OpContext& context, const LinearRows& job) const {
  return {context.input(0).as<const float>(),
          matrix_.in_features,
          context.input(2).as<const float>(),
          epsilon_,
          job.weight.rounds(),
          job.weight.kinds,
          job.in,
          context.input(2).present && (is_layer_norm_ || context.input(7).present),
          context.input(7).as<const float>(),
          job.weight.fine};
}

abi::Status* QuantLinear::compute(ort::OpContext& context) const {
  LinearRows job;
  if (abi::Status* bad = check(context, &job)) return bad;
  const int64_t rows = job.in.rows;
  if (rows == 0) return nullptr;
  ort::Scratch scratch;
  if (const size_t bytes = step_scratch_bytes(job.weight, rows); bytes > 0) {
    if (abi::Status* bad = context.scratch(bytes, &scratch)) return bad;
    job.in = place_activations(job.weight, rows, scratch.data());
  }
  LinearStep step(*kernels_, rounding(context, job), job, lanes_.load(std::memory_order_relaxed));
  PhaseList phases;
  step.add_phases(&phases);
  run_phases(process_crew(), phases);
  lanes_.store(step.workers(), std::memory_order_relaxed);
  return step.failed() ? context.error("Failed to allocate memory for rounded rows") : nullptr;
}

}  // namespace edge_rt
