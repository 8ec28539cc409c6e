// Calls of SpecAttention: passes over a cache, plain and as trees, over rows of the cache in any order.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/spec_attention/spec_attention.h"
#include "tests/fuzz_case.h"

namespace edge_rt::fuzz {
namespace {

constexpr int64_t kMostProducts = 75000;  // of a call: it should take a millisecond or two
enum InputIndex : int { kQkv, kCache, kPast, kRowMap, kParents, kFormats, kCos, kSin, kQueryNorm, kKeyNorm, kSinks };

struct Shape {
  int64_t kv_heads, heads, dim, rows, past, capacity, row_bytes, plane_bytes;
  KvFormatId format;
};

Shape any_shape(Random& random) {
  Shape shape;
  shape.kv_heads = random.between(1, 3);
  shape.heads = shape.kv_heads * (random.one_in(8) ? random.between(5, 12) : random.between(1, 4));
  const int64_t half_dim = random.one_in(100) ? random.between(80, kMaxHeadDim / 2) : random.size(160) / 2;
  shape.dim = 2 * std::max<int64_t>(1, half_dim);
  shape.rows = random.one_in(40) ? random.between(41, 80) : random.size(40);
  shape.past = random.pick<int64_t>({0, random.below(20), random.below(64), 63, 64, random.below(300)});
  const int64_t head_products = shape.heads * shape.dim;
  shape.rows = std::clamp<int64_t>(kMostProducts / (head_products * (shape.past / 2 + 8)), 1, shape.rows);
  shape.past = std::min<int64_t>(shape.past, std::max<int64_t>(kMostProducts / (head_products * shape.rows), 4));
  shape.capacity = shape.past + shape.rows + (random.one_in(2) ? 0 : random.below(30));
  shape.format = static_cast<KvFormatId>(random.below(kKvFormatCount));
  const KvFormat& format = kKvFormats[shape.format];
  shape.row_bytes = kv_row_bytes(format, shape.dim) + format.alignment * (random.one_in(3) ? random.below(9) : 0);
  shape.row_bytes += (format.alignment - shape.row_bytes % format.alignment) % format.alignment;
  shape.plane_bytes = shape.capacity * shape.row_bytes;
  return shape;
}

// Where a row of a plane lies: its elements, and its scales if the format has any.
std::vector<ByteRange> places(const Shape& shape, int64_t plane, int64_t row) {
  const KvFormat& format = kKvFormats[shape.format];
  const int64_t base = plane * shape.plane_bytes, width = format.bytes_per_dim * shape.dim;
  const int64_t extra = format.bytes_per_group * kv_groups(static_cast<int>(shape.dim));
  const int64_t scales = base + shape.capacity * width + row * extra;
  const auto range = [](int64_t begin, int64_t size) {
    return ByteRange{static_cast<size_t>(begin), static_cast<size_t>(begin + size)};
  };
  return {range(base + row * width, width), range(scales, extra)};
}

// All bits set, which is no number as float or half: what is not committed must not be looked at.
Input make_cache(Random& random, const Shape& shape, const Input& row_map) {
  Input cache = bytes(random, {0});
  cache.dims = {2, shape.kv_heads, shape.capacity, shape.row_bytes};
  cache.bytes.assign(static_cast<size_t>(cache.count()), 0xff);
  for (int64_t plane = 0; plane < 2 * shape.kv_heads; ++plane) {
    for (int64_t i = 0; i < shape.past; ++i) {
      const std::vector<ByteRange> at = places(shape, plane, row_map.get<int32_t>(i));
      for (int64_t d = 0; d < shape.dim; ++d) {
        const int64_t begin = static_cast<int64_t>(at[0].begin);
        if (shape.format == kKvF32) {
          cache.set(begin / 4 + d, random.uniform(-2.0f, 2.0f));
        } else if (shape.format == kKvF16) {
          cache.set(begin / 2 + d, moderate_half(random));
        } else {
          cache.set(begin + d, static_cast<int8_t>(random.between(-127, 127)));
        }
      }
      // A scale is positive and small.
      for (size_t b = at[1].begin; b < at[1].end; b += 2) {
        const auto half = static_cast<uint16_t>(moderate_half(random) % 0x2000);
        std::memcpy(&cache.bytes[b], &half, sizeof half);
      }
    }
  }
  const auto least = static_cast<size_t>(kKvFormats[shape.format].alignment);
  cache.alignment = std::max(least, random.pick<size_t>({64, 64, 16, 4, 2}));
  return cache;
}

// Positions' rows: in order, or shuffled, or with committed ones that were moved to the front by an earlier pass. What
// stands behind the pass is not read.
Input make_row_map(Random& random, const Shape& shape) {
  Input map = int32s({shape.capacity});
  std::vector<int32_t> rows(static_cast<size_t>(shape.capacity));
  std::iota(rows.begin(), rows.end(), 0);
  const int64_t kind = random.below(3);
  const int64_t first = kind == 0 ? shape.capacity : kind == 1 ? 0 : random.below(shape.past + 1);
  for (int64_t i = first; i < shape.capacity; ++i) {
    std::swap(rows[static_cast<size_t>(i)], rows[static_cast<size_t>(random.between(first, shape.capacity - 1))]);
  }
  for (int64_t i = 0; i < shape.capacity; ++i) map.set(i, rows[static_cast<size_t>(i)]);
  if (random.one_in(2)) {
    for (int64_t i = shape.past + shape.rows; i < shape.capacity; ++i) {
      map.set(i, random.pick({INT32_MIN, INT32_MAX, -1}));
    }
  }
  map.alignment = random.pick<size_t>({64, 4});
  return map;
}

// Returns the greatest depth.
int64_t make_parents(Random& random, const Shape& shape, Input* out) {
  *out = int32s({shape.rows});
  const int64_t kind = random.below(4);  // a chain, a chain with few branches, any tree, all children of the last token
  std::vector<int64_t> depths;
  for (int64_t i = 0; i < shape.rows; ++i) {
    int64_t parent = i - 1;
    if (kind == 3) parent = -1;
    if (kind == 2 || (kind == 1 && random.one_in(5))) parent = random.between(-1, i - 1);
    out->set(i, static_cast<int32_t>(parent));
    depths.push_back(parent < 0 ? 0 : depths[static_cast<size_t>(parent)] + 1);
  }
  return *std::max_element(depths.begin(), depths.end());
}

void expect_writes(Case& call, const Shape& shape) {
  call.in_place = kCache;
  for (int64_t i = 0; i < shape.rows; ++i) {
    const int32_t row = call.inputs[kRowMap].get<int32_t>(shape.past + i);
    for (int64_t plane = 0; plane < 2 * shape.kv_heads; ++plane) {
      const std::vector<ByteRange> at = places(shape, plane, row);
      call.writable.insert(call.writable.end(), at.begin(), at.end());
      if (shape.format != kKvF32 || plane < shape.kv_heads) continue;
      // Float values are copied as they are.
      const int64_t value = (i * (shape.heads + 2 * shape.kv_heads) + shape.heads + plane) * shape.dim * 4;
      const auto* from = call.inputs[kQkv].bytes.data() + value;
      call.written.push_back({at[0].begin, std::vector<uint8_t>(from, from + shape.dim * 4)});
    }
  }
}

Case make(Random& random) {
  Case call;
  call.op = "SpecAttention";
  const Shape shape = any_shape(random);
  call.inputs.resize(11);
  call.inputs[kQkv] = floats(random, {shape.rows, (shape.heads + 2 * shape.kv_heads) * shape.dim}, -3.0f, 3.0f);
  call.inputs[kRowMap] = make_row_map(random, shape);
  call.inputs[kCache] = make_cache(random, shape, call.inputs[kRowMap]);
  call.inputs[kPast] = int32s({1});
  call.inputs[kPast].set(0, static_cast<int32_t>(shape.past));
  const int64_t deepest = make_parents(random, shape, &call.inputs[kParents]);
  // Other layers' formats are not this node's business.
  const int64_t layer = random.below(3), layers = layer + random.between(1, 3);
  call.inputs[kFormats] = int32s({layers});
  for (int64_t i = 0; i < layers; ++i) {
    call.inputs[kFormats].set(i, i == layer ? static_cast<int32_t>(shape.format) : random.pick({-1, 99, 0, INT32_MIN}));
  }
  const int64_t half = random.one_in(2) ? shape.dim / 2 : random.between(0, shape.dim / 2);
  const int64_t positions = shape.past + deepest + 1 + (random.one_in(2) ? 0 : random.below(9));
  call.inputs[kCos] = floats(random, {positions, half}, -1.0f, 1.0f);
  call.inputs[kSin] = floats(random, {positions, half}, -1.0f, 1.0f);
  call.inputs[kQueryNorm] = floats(random, {shape.dim}, -2.0f, 2.0f);
  call.inputs[kKeyNorm] = floats(random, {shape.dim}, -2.0f, 2.0f);
  call.inputs[kSinks] = floats(random, {shape.heads}, -3.0f, 3.0f);
  for (int i = kQueryNorm; i <= kSinks; ++i) call.inputs[static_cast<size_t>(i)].present = random.one_in(3);
  call.set("num_heads", shape.heads);
  call.set("num_kv_heads", shape.kv_heads);
  call.set("head_dim", shape.dim);
  call.set("layer", layer);
  call.set("scale", 1.0f / std::sqrt(static_cast<float>(shape.dim)));
  const int64_t end = shape.past + shape.rows;
  if (random.one_in(2)) call.set("window", random.pick<int64_t>({0, 1, random.size(end), end + 5, 1 << 28, INT64_MAX}));
  if (random.one_in(3)) call.set("softcap", random.pick({0.0f, 0.5f, 30.0f}));
  if (random.one_in(2)) call.set("interleaved", random.below(2));
  if (random.one_in(2)) call.set("epsilon", random.pick({1e-6f, 1e-5f, 0.25f}));
  expect_writes(call, shape);
  call.outputs = {{shape.rows, shape.heads * shape.dim}};
  call.output_types = {abi::kFloat};
  return call;
}

int64_t past_of(const Case& call) { return call.inputs[kPast].get<int32_t>(0); }
int64_t rows_of(const Case& call) { return call.inputs[kQkv].dims[0]; }
int64_t capacity_of(const Case& call) { return call.inputs[kCache].dims[2]; }

bool wrong_attribute(Case& call, Random& random) {
  const int64_t heads = call.attribute("num_heads")->integer;
  const int64_t huge = random.pick<int64_t>({INT64_MIN, -1, INT64_MAX, int64_t{1} << 32});
  const float bad_real = random.pick({std::nanf(""), HUGE_VALF, -HUGE_VALF});
  switch (random.below(9)) {
    case 0: call.set("num_heads", random.pick<int64_t>({0, huge, int64_t{1} << 20})); break;
    case 1: call.set("num_kv_heads", random.pick<int64_t>({0, huge, heads + 1})); break;
    case 2: call.set("head_dim", random.pick<int64_t>({0, 1, huge, kMaxHeadDim + 2})); break;
    case 3: call.set("head_dim", call.attribute("head_dim")->integer + 1); break;
    case 4: call.set("layer", random.pick<int64_t>({-1, INT64_MIN})); break;
    case 5: call.set("window", random.pick<int64_t>({-1, INT64_MIN})); break;
    case 6: call.set("interleaved", random.pick<int64_t>({-1, 2, INT64_MAX})); break;
    case 7: call.set("scale", bad_real); break;
    default: call.set("softcap", random.pick({bad_real, -1.0f}));
  }
  call.words = {"num_heads is", "head_dim is", "layer is", "window is", "interleaved is", "scale is", "softcap is"};
  return true;
}

bool wrong_row(Case& call, Random& random) {
  const int64_t used = past_of(call) + rows_of(call);
  const auto capacity = static_cast<int32_t>(capacity_of(call));
  call.inputs[kRowMap].set(random.below(used), random.pick({-1, capacity, INT32_MIN, INT32_MAX, capacity + 7}));
  call.words = {"row_map holds"};
  return true;
}

// A row of the pass that another position has, be it committed or of the pass.
bool double_row(Case& call, Random& random) {
  const int64_t past = past_of(call), used = past + rows_of(call);
  const int64_t at = random.between(past, used - 1), other = random.below(used);
  if (at == other) return false;
  Input& map = call.inputs[kRowMap];
  map.set(at, map.get<int32_t>(other));
  call.words = {"row_map gives row"};
  return true;
}

bool wrong_past(Case& call, Random& random) {
  const int64_t most = capacity_of(call) - rows_of(call);
  call.inputs[kPast].set(0, random.pick({-1, INT32_MIN, INT32_MAX, static_cast<int32_t>(most + 1)}));
  call.words = {"past_length"};
  return true;
}

bool wrong_parent(Case& call, Random& random) {
  const int64_t row = random.below(rows_of(call));
  call.inputs[kParents].set(row, static_cast<int32_t>(random.pick<int64_t>(
                                     {-2, INT32_MIN, INT32_MAX, row, row + 1, rows_of(call), rows_of(call) + 9})));
  call.words = {"parents["};
  return true;
}

bool wrong_format(Case& call, Random& random) {
  call.inputs[kFormats].set(call.attribute("layer")->integer,
                            random.pick({-1, static_cast<int>(kKvFormatCount), INT32_MIN, INT32_MAX}));
  call.words = {"kv_formats["};
  return true;
}

bool short_rope(Case& call, Random& random) {
  const int64_t past = past_of(call), positions = past == 0 || random.one_in(4) ? 0 : random.between(1, past);
  for (const int i : {kCos, kSin}) {
    call.inputs[static_cast<size_t>(i)].dims[0] = positions;
    call.inputs[static_cast<size_t>(i)].resize();
  }
  call.words = {"has no row in cos and sin"};
  return true;
}

bool wide_rope(Case& call, Random& random) {
  const int64_t half = call.attribute("head_dim")->integer / 2 + random.between(1, 40);
  for (const int i : {kCos, kSin}) {
    call.inputs[static_cast<size_t>(i)].dims[1] = half;
    call.inputs[static_cast<size_t>(i)].resize();
  }
  call.words = {"cos has"};
  return true;
}

bool short_cache_row(Case& call, Random& random) {
  Input& cache = call.inputs[kCache];
  const auto format = static_cast<size_t>(call.inputs[kFormats].get<int32_t>(call.attribute("layer")->integer));
  const int64_t needed = kv_row_bytes(kKvFormats[format], call.attribute("head_dim")->integer);
  const int64_t uneven = (needed + kKvFormats[format].alignment - 1) / kKvFormats[format].alignment *
                         kKvFormats[format].alignment + 1;
  cache.dims[3] = random.pick<int64_t>({0, needed - 1, needed / 2, uneven});
  cache.resize();
  call.words = {"bytes a row"};
  return true;
}

bool shifted_cache(Case& call, Random& random) {
  const int32_t format = call.inputs[kFormats].get<int32_t>(call.attribute("layer")->integer);
  call.inputs[kCache].alignment = format == kKvF32 ? random.pick<size_t>({1, 2}) : 1;
  call.words = {"cache does not begin"};
  return true;
}

bool layer_without_format(Case& call, Random& random) {
  call.set("layer", random.pick<int64_t>({call.inputs[kFormats].dims[0], INT64_MAX}));
  call.words = {"kv_formats has"};
  return true;
}

bool no_rows(Case& call, Random&) {
  for (const int i : {kQkv, kParents}) {
    call.inputs[static_cast<size_t>(i)].dims[0] = 0;
    call.inputs[static_cast<size_t>(i)].resize();
  }
  call.words = {"no rows"};
  return true;
}

}  // namespace

Subject spec_attention() {
  Subject subject{"SpecAttention",
                  make,
                  8,
                  {{kQkv, {0, 1}}, {kCache, {0, 1, 2}}, {kPast, {0}}, {kRowMap, {0}}, {kParents, {0}},
                   {kCos, {0, 1}}, {kSin, {0, 1}}, {kQueryNorm, {0}}, {kKeyNorm, {0}}, {kSinks, {0}}},
                  {"num_heads", "num_kv_heads", "head_dim", "layer", "scale"},
                  {kCache},
                  true,
                  {}};
  subject.own_mistakes = {{"attention attribute", wrong_attribute},
                          {"row_map out of range", wrong_row},
                          {"row_map twice", double_row},
                          {"past_length", wrong_past},
                          {"parents", wrong_parent},
                          {"kv format unknown", wrong_format},
                          {"cos too short", short_rope},
                          {"cos too wide", wide_rope},
                          {"cache row", short_cache_row},
                          {"cache misaligned", shifted_cache},
                          {"no rows", no_rows},
                          {"layer without format", layer_without_format}};
  return subject;
}

}  // namespace edge_rt::fuzz
