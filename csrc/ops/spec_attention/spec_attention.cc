#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <vector>

#include "kernels/kernel_table.h"
#include "ops/spec_attention/spec_attention_op.h"
#include "ops/spec_attention/spec_attention_run.h"

namespace edge_rt {
namespace {

// Larger ones do not occur, and products of numbers below it fit 64 bits.
constexpr int64_t kMaxHeads = 1024;
constexpr int64_t kMaxRows = int64_t{1} << 28;
constexpr int kKeyConstants = static_cast<int>(1 + std::size(kAttentionPorts));  // the first input of them
constexpr SpecAttention::Places kPlaces{kKeyConstants, kKeyConstants + static_cast<int>(std::size(kKeyConstantPorts))};

// Smallest and largest of values that must be all of [0, capacity): one pass that compilers vectorise.
struct Range {
  int32_t low = INT32_MAX, high = INT32_MIN;
};

Range range_of(const int32_t* values, int64_t count) {
  Range range;
  for (int64_t i = 0; i < count; ++i) {
    range.low = values[i] < range.low ? values[i] : range.low;
    range.high = values[i] > range.high ? values[i] : range.high;
  }
  return range;
}

// How many of some values lie in a range; likewise.
int64_t count_within(const int32_t* values, int64_t count, const Range& range) {
  int64_t found = 0;
  for (int64_t i = 0; i < count; ++i) found += values[i] >= range.low && values[i] <= range.high ? 1 : 0;
  return found;
}

long long printable(int64_t value) { return static_cast<long long>(value); }

}  // namespace

abi::Status* SpecAttention::create(ort::Attributes& attributes) {
  const int64_t heads = attributes.integer("num_heads"), kv_heads = attributes.integer("num_kv_heads");
  const int64_t head_dim = attributes.integer("head_dim"), window = attributes.integer("window", 0);
  const int64_t interleaved = attributes.integer("interleaved", 0), rotate = attributes.integer("rotate", 1);
  const int64_t norm_after_rotation = attributes.integer("norm_after_rotation", 0);
  layer_ = attributes.integer("layer");
  fixed_.scale = attributes.real("scale");
  fixed_.softcap = attributes.real("softcap", 0.0f);
  fixed_.epsilon = attributes.real("epsilon", 1e-6f);
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
  // Positions end below kMaxRows, so a larger window is none.
  fixed_.window = window > kMaxRows ? 0 : window;
  fixed_.interleaved = interleaved == 1;
  fixed_.norms_after_rotation = norm_after_rotation == 1;
  rotates_ = rotate == 1;
  kernels_ = &kernel_table(attributes.isa()).spec_attention;
  return nullptr;
}

abi::Status* SpecAttention::check_shapes(const ort::OpContext& context, AttentionPass* pass) const {
  const int64_t dim = pass->head_dim;
  abi::Status* bad = nullptr;
  if ((bad = context.check_shape(1, {2, pass->kv_heads, -1, -1})) != nullptr ||
      (bad = context.check_shape(2, {1})) != nullptr || (bad = context.check_shape(5, {-1})) != nullptr ||
      (bad = context.check_shape(6, {-1, -1})) != nullptr || (bad = check_norms(context, pass)) != nullptr ||
      (bad = context.check_shape(10, {pass->heads})) != nullptr) {
    return bad;
  }
  pass->capacity = context.input(1).dims[2];
  if (pass->rows < 1) return context.error("%s has no rows", context.input_name(0));
  if (pass->capacity < 1 || pass->capacity > kMaxRows) {
    return context.error("cache has %lld rows, must be 1 to %lld", printable(pass->capacity), printable(kMaxRows));
  }
  const ort::TensorView& cos = context.input(6);
  // With a window, rows of positions that are no longer seen can be given to new ones: then there are more positions
  // than rows, and `row_map` says where each lies.
  const int64_t mapped = context.input(3).rank == 1 ? context.input(3).dims[0] : 0;
  const bool is_ring = pass->window > 0 && mapped > pass->capacity;
  if ((bad = context.check_shape(3, {is_ring ? mapped : pass->capacity})) != nullptr ||
      (bad = context.check_shape(4, {pass->rows})) != nullptr ||
      (bad = context.check_shape(7, {cos.dims[0], cos.dims[1]})) != nullptr) {
    return bad;
  }
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
  bool* of_row[] = {&pass->q_norm_of_row, &pass->k_norm_of_row};
  for (int i = 0; i < 2; ++i) {
    const ort::TensorView& norm = context.input(8 + i);
    const int64_t dim = pass->head_dim, whole = heads[i] * dim;
    if (!norm.present) continue;
    if (abi::Status* bad = context.check_shape(8 + i, {-1})) return bad;
    if (norm.dims[0] != dim && norm.dims[0] != whole) {
      return context.error("%s is [%lld], must be [%lld] or [%lld]", context.input_name(8 + i), printable(norm.dims[0]),
                           printable(dim), printable(whole));
    }
    *of_row[i] = norm.dims[0] != dim;
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

// Rows that will be written must exist, be different, and hold nothing that the pass reads: all that is committed, or
// what the first of its rows sees through the window.
abi::Status* SpecAttention::check_rows(const ort::OpContext& context, const AttentionPass& pass) const {
  const int64_t mapped = context.input(3).dims[0];
  const bool is_ring = mapped != pass.capacity;  // of a layer with a window: see check_shapes
  if (pass.past < 0 || pass.past + pass.rows > mapped) {
    return context.error("past_length %lld and %lld rows of the pass, %s has %lld rows", printable(pass.past),
                         printable(pass.rows), is_ring ? "row_map" : "cache", printable(mapped));
  }
  const int64_t seen = is_ring ? pass.first_seen(pass.past) : 0;
  if (pass.past + pass.rows - seen > pass.capacity) {
    return context.error("a window of %lld and %lld rows of the pass, cache has %lld rows", printable(pass.past - seen),
                         printable(pass.rows), printable(pass.capacity));
  }
  // Spans are looked at from their beginning on, so that entries before the window must be in range too.
  const int64_t begin = seen / kKvSpan * kKvSpan;
  const Range looked_at = range_of(pass.row_map + begin, pass.past + pass.rows - begin);
  if (looked_at.low < 0 || looked_at.high >= pass.capacity) {
    return context.error("row_map holds %d, must be 0 to %lld", looked_at.low < 0 ? looked_at.low : looked_at.high,
                         printable(pass.capacity - 1));
  }
  const int32_t *old_rows = pass.row_map + seen, *new_rows = pass.row_map + pass.past;
  const int64_t old_count = pass.past - seen;
  const Range given = range_of(new_rows, pass.rows);
  // Mostly new rows rise, and no old row lies between them.
  bool distinct = count_within(old_rows, old_count, given) == 0;
  for (int64_t i = 1; distinct && i < pass.rows; ++i) distinct = new_rows[i] > new_rows[i - 1];
  if (distinct) return nullptr;
  std::vector<uint8_t> is_new(static_cast<size_t>(given.high - given.low + 1));
  for (int64_t i = 0; i < pass.rows; ++i) {
    uint8_t& mark = is_new[static_cast<size_t>(new_rows[i] - given.low)];
    if (mark != 0) return context.error("row_map gives row %d to two positions", new_rows[i]);
    mark = 1;
  }
  for (int64_t i = 0; i < old_count; ++i) {
    const int32_t row = old_rows[i];
    if (row >= given.low && row <= given.high && is_new[static_cast<size_t>(row - given.low)] != 0) {
      return context.error("row_map gives row %d of position %lld to the pass", row, printable(seen + i));
    }
  }
  return nullptr;
}

// Depth of every row; the deepest position must have a row of cos and sin.
abi::Status* SpecAttention::find_depths(const ort::OpContext& context, AttentionPass* pass, int32_t* depths) const {
  int32_t most = 0;
  pass->chain = true;
  for (int64_t i = 0; i < pass->rows; ++i) {
    const int32_t parent = pass->parents[i];
    if (parent < -1 || parent >= i) {
      return context.error("parents[%lld] is %d, must be -1 to %lld", printable(i), parent, printable(i - 1));
    }
    depths[i] = parent < 0 ? 0 : depths[parent] + 1;
    most = std::max(most, depths[i]);
    pass->chain = pass->chain && parent == i - 1;
  }
  const int64_t positions = context.input(6).dims[0];
  if (pass->past + most >= positions) {
    return context.error("position %lld has no row in cos and sin, which have %lld", printable(pass->past + most),
                         printable(positions));
  }
  pass->depths = depths;
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

abi::Status* SpecAttention::check(const ort::OpContext& context, int64_t rows, const Places& places,
                                  AttentionPass* pass, int32_t* depths) const {
  *pass = fixed_;
  pass->rows = rows;
  if (abi::Status* bad = check_shapes(context, pass)) return bad;
  if (abi::Status* bad = check_cache(context, pass)) return bad;
  pass->past = context.input(2).as<const int32_t>()[0];
  pass->row_map = context.input(3).as<const int32_t>();
  pass->parents = context.input(4).as<const int32_t>();
  if (abi::Status* bad = check_rows(context, *pass)) return bad;
  if (abi::Status* bad = find_depths(context, pass, depths)) return bad;
  if (abi::Status* bad = context.check_shape(places.query_scale, {context.input(6).dims[0]})) return bad;
  pass->cos = context.input(6).as<const float>();
  pass->sin = context.input(7).as<const float>();
  pass->q_norm = context.input(8).as<const float>();
  pass->k_norm = context.input(9).as<const float>();
  pass->sinks = context.input(10).as<const float>();
  pass->query_scale = context.input(places.query_scale).as<const float>();
  return check_key_constants(context, places.key_constants, pass);
}

abi::Status* SpecAttention::compute(ort::OpContext& context) const {
  if (abi::Status* bad = context.check_shape(0, {-1, qkv_features()})) return bad;
  const int64_t rows = context.input(0).dims[0];
  Depths depths(rows);
  AttentionPass pass;
  if (abi::Status* bad = check(context, rows, kPlaces, &pass, depths.data())) return bad;
  pass.qkv = context.input(0).as<const float>();
  ort::TensorView y;
  if (abi::Status* bad = context.output(0, {rows, out_features()}, &y)) return bad;
  pass.y = y.as<float>();
  AttentionPlan plan(pass);
  ort::Scratch scratch;
  if (abi::Status* bad = context.scratch(plan.scratch_bytes(), &scratch)) return bad;
  plan.place(scratch.data(), &pass);
  PhaseList phases;
  plan.add_phases(*kernels_, pass, &phases);
  run_phases(context.executor(), phases);
  return nullptr;
}

}  // namespace edge_rt
