#include <cmath>
#include <iterator>
#include <string>

#include "kernels/kernel_table.h"
#include "ops/spec_attention/spec_attention_op.h"
#include "ops/spec_attention/spec_attention_run.h"

namespace edge_rt {
namespace {

constexpr int64_t kMaxHeads = 1024;                                              // more do not occur
constexpr int kKeyConstants = static_cast<int>(1 + std::size(kAttentionPorts));  // the first input of them
constexpr int kQueryScale = kKeyConstants + static_cast<int>(std::size(kKeyConstantPorts));
constexpr SpecAttention::Places kPlaces{kKeyConstants, kQueryScale, kQueryScale + 1};

RowInputs rows_of(const SpecAttention::Places& places) { return {2, 3, 4, places.sequence_rows}; }

long long printable(int64_t value) { return static_cast<long long>(value); }

}  // namespace

abi::Status* SpecAttention::create(ort::Attributes& attributes) {
  const int64_t heads = attributes.integer("num_heads"), kv_heads = attributes.integer("num_kv_heads");
  const int64_t head_dim = attributes.integer("head_dim"), window = attributes.integer("window", 0);
  const int64_t interleaved = attributes.integer("interleaved", 0), rotate = attributes.integer("rotate", 1);
  const int64_t norm_after_rotation = attributes.integer("norm_after_rotation", 0);
  const int64_t gated = attributes.integer("gated", 0);
  layer_ = attributes.integer("layer");
  fixed_.scale = attributes.real("scale");
  fixed_.softcap = attributes.real("softcap", 0.0f);
  fixed_.epsilon = attributes.real("epsilon", 1e-6f);
  fixed_.clip = attributes.real("clip", 0.0f);
  if (kv_heads < 1 || heads < kv_heads || heads > kMaxHeads || heads % kv_heads != 0) {
    return attributes.error("num_heads is %lld, must be a multiple of num_kv_heads %lld, and at most %lld",
                            printable(heads), printable(kv_heads), printable(kMaxHeads));
  }
  if (head_dim < 2 || head_dim > kMaxHeadDim || head_dim % 2 != 0) {
    return attributes.error("head_dim is %lld, must be even, 2 to %d", printable(head_dim), kMaxHeadDim);
  }
  if (layer_ < 0) return attributes.error("layer is %lld, must not be below 0", printable(layer_));
  if (window < 0) return attributes.error("window is %lld, must not be below 0", printable(window));
  if (interleaved != 0 && interleaved != 1) {
    return attributes.error("interleaved is %lld, must be 0 or 1", printable(interleaved));
  }
  if (rotate != 0 && rotate != 1) return attributes.error("rotate is %lld, must be 0 or 1", printable(rotate));
  if (norm_after_rotation != 0 && norm_after_rotation != 1) {
    return attributes.error("norm_after_rotation is %lld, must be 0 or 1", printable(norm_after_rotation));
  }
  if (abi::Status* bad = read_values(attributes)) return bad;
  if (gated != 0 && gated != 1) return attributes.error("gated is %lld, must be 0 or 1", printable(gated));
  if (!std::isfinite(fixed_.clip) || fixed_.clip < 0) {
    return attributes.error("clip is %g, must be finite and not below 0", static_cast<double>(fixed_.clip));
  }
  if (fixed_.clip > 0 && norm_after_rotation == 1) {
    return attributes.error("clip is %g, with norm_after_rotation it must be 0", static_cast<double>(fixed_.clip));
  }
  if (!std::isfinite(fixed_.scale)) return attributes.error("scale is not finite");
  if (!std::isfinite(fixed_.softcap) || fixed_.softcap < 0) {
    return attributes.error("softcap is %g, must be finite and not below 0", static_cast<double>(fixed_.softcap));
  }
  if (!std::isfinite(fixed_.epsilon) || fixed_.epsilon < 0) {
    return attributes.error("epsilon is %g, must be finite and not below 0", static_cast<double>(fixed_.epsilon));
  }
  fixed_.heads = static_cast<int>(heads);
  fixed_.kv_heads = static_cast<int>(kv_heads);
  fixed_.group = fixed_.heads / fixed_.kv_heads;
  fixed_.head_dim = static_cast<int>(head_dim);
  fixed_.padded_dim = (fixed_.head_dim + 15) / 16 * 16;
  // Positions end below kMaxCacheRows, so a larger window is none.
  fixed_.window = window > kMaxCacheRows ? 0 : window;
  fixed_.interleaved = interleaved == 1;
  fixed_.has_gates = gated == 1;
  fixed_.norms_after_rotation = norm_after_rotation == 1;
  rotates_ = rotate == 1;
  kernels_ = &kernel_table(attributes.isa()).spec_attention;
  return nullptr;
}

// Where keys and values come from.
abi::Status* SpecAttention::read_values(ort::Attributes& attributes) {
  constexpr const char* kNames[] = {"shares_cache", "norms_values", "values_are_keys"};
  Flag* const flags[] = {&fixed_.shares_cache, &fixed_.norms_values, &fixed_.values_are_keys};
  for (int i = 0; i < 3; ++i) {
    const int64_t value = attributes.integer(kNames[i], 0);
    if (value != 0 && value != 1) {
      return attributes.error("%s is %lld, must be 0 or 1", kNames[i], printable(value));
    }
    *flags[i] = value == 1;
    if (i > 0 && value == 1 && fixed_.shares_cache) {
      return attributes.error("%s is 1 beside shares_cache, with which there are no values", kNames[i]);
    }
  }
  return nullptr;
}

std::vector<int64_t> SpecAttention::qkv_parts() const {
  std::vector<int64_t> parts{fixed_.heads * fixed_.query_features()};
  parts.insert(parts.end(), static_cast<size_t>(fixed_.key_parts()), fixed_.key_features());
  return parts;
}

abi::Status* SpecAttention::check_shapes(const ort::OpContext& context, const Places& places,
                                         AttentionPass* pass) const {
  const int64_t dim = pass->head_dim;
  abi::Status* bad = nullptr;
  if ((bad = context.check_shape(1, {2, pass->kv_heads, -1, -1})) != nullptr ||
      (bad = context.check_shape(5, {-1})) != nullptr || (bad = context.check_shape(6, {-1, -1})) != nullptr ||
      (bad = check_norms(context, pass)) != nullptr || (bad = context.check_shape(10, {pass->heads})) != nullptr) {
    return bad;
  }
  pass->capacity = context.input(1).dims[2];
  if ((bad = check_row_shapes(context, rows_of(places), pass)) != nullptr) return bad;
  const ort::TensorView& cos = context.input(6);
  if ((bad = context.check_shape(7, {cos.dims[0], cos.dims[1]})) != nullptr) return bad;
  if (2 * cos.dims[1] > dim) {
    return context.error("cos has %lld columns, head_dim %lld allows %lld", printable(cos.dims[1]), printable(dim),
                         printable(dim / 2));
  }
  pass->half_rotary = rotates_ ? static_cast<int>(cos.dims[1]) : 0;
  return nullptr;
}

// Weights of a head, or of all heads of a row.
abi::Status* SpecAttention::check_norms(const ort::OpContext& context, AttentionPass* pass) const {
  const int heads[] = {pass->heads, pass->kv_heads};
  Flag* of_row[] = {&pass->q_norm_of_row, &pass->k_norm_of_row};
  for (int i = 0; i < 2; ++i) {
    const ort::TensorView& norm = context.input(8 + i);
    const int64_t dim = pass->head_dim, whole = heads[i] * dim;
    if (!norm.present) continue;
    if (i == 1 && pass->shares_cache)
      return context.error("k_norm is given beside shares_cache, with which there are no keys");
    if (abi::Status* bad = context.check_shape(8 + i, {-1})) return bad;
    if (norm.dims[0] != dim && norm.dims[0] != whole) {
      return context.error("%s is [%lld], must be [%lld] or [%lld]", context.input_name(8 + i), printable(norm.dims[0]),
                           printable(dim), printable(whole));
    }
    *of_row[i] = norm.dims[0] != dim;
    if (*of_row[i] && i == 0 && pass->has_gates) {
      return context.error("%s is [%lld], with gates it must be [%lld]", context.input_name(8), printable(whole),
                           printable(dim));
    }
    if (*of_row[i] && pass->norms_after_rotation) {
      return context.error("%s is [%lld], with norm_after_rotation it must be [%lld]", context.input_name(8 + i),
                           printable(whole), printable(dim));
    }
  }
  return nullptr;
}

abi::Status* SpecAttention::check_cache(const ort::OpContext& context, AttentionPass* pass) const {
  const ort::TensorView &cache = context.input(1), &formats = context.input(5);
  if (layer_ >= formats.dims[0]) {
    return context.error("kv_formats has %lld entries, layer is %lld", printable(formats.dims[0]), printable(layer_));
  }
  pass->format = formats.as<const int32_t>()[layer_];
  if (pass->format < 0 || pass->format >= kKvFormatCount) {
    return context.error("kv_formats[%lld] is %d, must be 0 to %d", printable(layer_), pass->format,
                         kKvFormatCount - 1);
  }
  const KvFormat& format = kKvFormats[pass->format];
  const int64_t needed = kv_row_bytes(format, pass->head_dim), given = cache.dims[3];
  if (given < needed || given % format.alignment != 0) {
    return context.error("cache has %lld bytes a row, %s with head_dim %d needs %lld, a multiple of %d",
                         printable(given), format.name, pass->head_dim, printable(needed), format.alignment);
  }
  if (reinterpret_cast<uintptr_t>(cache.data) % static_cast<uintptr_t>(format.alignment) != 0) {
    return context.error("cache does not begin at a multiple of %d bytes", format.alignment);
  }
  pass->cache = cache.as<uint8_t>();
  pass->lay_planes();
  return nullptr;
}

abi::Status* SpecAttention::check_key_constants(const ort::OpContext& context, int first, AttentionPass* pass) const {
  const int64_t heads = pass->kv_heads, dim = pass->head_dim;
  abi::Status* bad = nullptr;
  if ((bad = context.check_shape(first, {heads, dim})) != nullptr ||
      (bad = context.check_shape(first + 1, {heads, dim})) != nullptr ||
      (bad = context.check_shape(first + 2, {heads, dim, dim})) != nullptr) {
    return bad;
  }
  if (context.input(first).present && (pass->softcap != 0 || pass->sinks != nullptr)) {
    return context.error("key_centre is given beside %s, which sees what it takes from scores",
                         pass->softcap != 0 ? "a softcap" : "sinks");
  }
  pass->key_centre = context.input(first).as<const float>();
  pass->key_balance = context.input(first + 1).as<const float>();
  pass->key_feedback = context.input(first + 2).as<const float>();
  return nullptr;
}

abi::Status* SpecAttention::check(const ort::OpContext& context, int64_t rows, const Places& places, Passes* passes,
                                  Depths* depths) const {
  AttentionPass all = fixed_;
  all.rows = rows;
  if (abi::Status* bad = check_shapes(context, places, &all)) return bad;
  if (abi::Status* bad = check_cache(context, &all)) return bad;
  all.cos = context.input(6).as<const float>();
  all.sin = context.input(7).as<const float>();
  all.q_norm = context.input(8).as<const float>();
  all.k_norm = context.input(9).as<const float>();
  all.sinks = context.input(10).as<const float>();
  all.query_scale = context.input(places.query_scale).as<const float>();
  if (abi::Status* bad = check_key_constants(context, places.key_constants, &all)) return bad;
  std::vector<PassRows> sequences;
  if (abi::Status* bad = check_sequences(context, rows_of(places), all, context.input(6).dims[0], &sequences, depths)) {
    return bad;
  }
  passes->assign(sequences.size(), all);
  for (size_t i = 0; i < sequences.size(); ++i) static_cast<PassRows&>((*passes)[i]) = sequences[i];
  return context.check_shape(places.query_scale, {context.input(6).dims[0]});
}

void SpecAttention::point_to_rows(const float* qkv, float* y, Passes* passes) const {
  for (AttentionPass& pass : *passes) {
    pass.qkv = qkv;
    pass.y = y;
    qkv += pass.rows * qkv_features();
    y += pass.rows * out_features();
  }
}

abi::Status* SpecAttention::check(ort::OpContext& context, Passes* passes, Depths* depths) const {
  if (abi::Status* bad = context.check_shape(0, {-1, qkv_features()})) return bad;
  const int64_t rows = context.input(0).dims[0];
  if (abi::Status* bad = check(context, rows, kPlaces, passes, depths)) return bad;
  ort::TensorView y;
  if (abi::Status* bad = context.output(0, {rows, out_features()}, &y)) return bad;
  point_to_rows(context.input(0).as<const float>(), y.as<float>(), passes);
  return nullptr;
}

abi::Status* SpecAttention::compute(ort::OpContext& context) const {
  Depths depths;
  Passes passes;
  if (abi::Status* bad = check(context, &passes, &depths)) return bad;
  AttentionPlans plans(passes.data(), static_cast<int64_t>(passes.size()));
  ort::Scratch scratch;
  if (abi::Status* bad = context.scratch(plans.scratch_bytes(), &scratch)) return bad;
  PhaseList phases;
  plans.add_phases(scratch.data(), *kernels_, &phases);
  run_phases(process_crew(), phases);
  return plans.failed() ? context.error("Failed to allocate memory for attention") : nullptr;
}

}  // namespace edge_rt
