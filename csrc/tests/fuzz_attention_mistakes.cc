// Mistakes of calls with a cache to attend over.
#include <algorithm>
#include <cmath>

#include "tests/fuzz_parts.h"

namespace edge_rt::fuzz {
namespace {

int64_t rows_of(const Case& call) { return call.inputs[kRowsIn].dims[0]; }
int64_t nodes_of(const Case& call) { return call.inputs[kParents].dims[0]; }
// The position of the first row that the pass writes: behind the nodes of earlier passes.
int64_t past_of(const Case& call) { return call.inputs[kPast].get<int32_t>(0) + nodes_of(call) - rows_of(call); }
int64_t capacity_of(const Case& call) { return call.inputs[kCache].dims[2]; }
int64_t positions_of(const Case& call) { return call.inputs[kRowMap].dims[0]; }
bool is_ring(const Case& call) { return positions_of(call) != capacity_of(call); }
// The first position whose row the pass must not overwrite.
int64_t first_seen(Case& call) { return is_ring(call) ? past_of(call) + 1 - call.attribute("window")->integer : 0; }

bool wrong_attribute(Case& call, Random& random) {
  const int64_t heads = call.attribute("num_heads")->integer;
  const int64_t huge = random.pick<int64_t>({INT64_MIN, -1, INT64_MAX, int64_t{1} << 32});
  const float bad_real = random.pick({std::nanf(""), HUGE_VALF, -HUGE_VALF});
  switch (random.below(11)) {
    case 0: call.set("num_heads", random.pick<int64_t>({0, huge, int64_t{1} << 20})); break;
    case 1: call.set("num_kv_heads", random.pick<int64_t>({0, huge, heads + 1})); break;
    case 2: call.set("head_dim", random.pick<int64_t>({0, 1, huge, kMaxHeadDim + 2})); break;
    case 3: call.set("head_dim", call.attribute("head_dim")->integer + 1); break;
    case 4: call.set("layer", random.pick<int64_t>({-1, INT64_MIN})); break;
    case 5: call.set("window", random.pick<int64_t>({-1, INT64_MIN})); break;
    case 6: call.set("interleaved", random.pick<int64_t>({-1, 2, INT64_MAX})); break;
    case 7: call.set("scale", bad_real); break;
    case 8: call.set("rotate", random.pick<int64_t>({-1, 2, INT64_MIN})); break;
    case 9: call.set("norm_after_rotation", random.pick<int64_t>({-1, 2, INT64_MAX})); break;
    default: call.set("softcap", random.pick({bad_real, -1.0f}));
  }
  call.words = {"num_heads is", "head_dim is",    "layer is",
                "window is",    "interleaved is", "scale is",
                "softcap is",   "rotate is",      "norm_after_rotation is"};
  return true;
}

bool wrong_row(Case& call, Random& random) {
  const int64_t used = past_of(call) + rows_of(call), begin = first_seen(call) / kKvSpan * kKvSpan;
  const auto capacity = static_cast<int32_t>(capacity_of(call));
  call.inputs[kRowMap].set(random.between(begin, used - 1),
                           random.pick({-1, capacity, INT32_MIN, INT32_MAX, capacity + 7}));
  call.words = {"row_map holds"};
  return true;
}

// A row of the pass that another position has, be it committed and seen or of the pass.
bool double_row(Case& call, Random& random) {
  const int64_t past = past_of(call), used = past + rows_of(call);
  const int64_t at = random.between(past, used - 1), other = random.between(first_seen(call), used - 1);
  if (at == other) return false;
  Input& map = call.inputs[kRowMap];
  map.set(at, map.get<int32_t>(other));
  call.words = {"row_map gives row"};
  return true;
}

bool wrong_past(Case& call, Random& random) {
  const int64_t most = positions_of(call) - nodes_of(call);
  call.inputs[kPast].set(0, random.pick({-1, INT32_MIN, INT32_MAX, static_cast<int32_t>(most + 1)}));
  call.words = {"past_length"};
  return true;
}

bool wrong_parent(Case& call, Random& random) {
  const int64_t nodes = nodes_of(call), node = random.below(nodes);
  call.inputs[kParents].set(
      node, static_cast<int32_t>(random.pick<int64_t>({-2, INT32_MIN, INT32_MAX, node, node + 1, nodes, nodes + 9})));
  call.words = {"parents["};
  return true;
}

// Fewer parents than rows. More are nodes of earlier passes.
bool few_parents(Case& call, Random& random) {
  Input& parents = call.inputs[kParents];
  Input& rows = call.inputs[kRowsIn];
  if (random.one_in(2)) {
    rows.dims[0] = parents.dims[0] + random.pick<int64_t>({1, 2, 9});
    rows.resize();
  } else {
    parents.dims[0] = random.pick<int64_t>({0, rows.dims[0] - 1, rows.dims[0] / 2});
    parents.resize();
  }
  call.words = {"parents is"};
  return true;
}

bool wrong_format(Case& call, Random& random) {
  call.inputs[kFormats].set(call.attribute("layer")->integer,
                            random.pick({-1, static_cast<int>(kKvFormatCount), INT32_MIN, INT32_MAX}));
  call.words = {"kv_formats["};
  return true;
}

bool short_rope(Case& call, Random& random) {
  const int64_t past = call.inputs[kPast].get<int32_t>(0),
                positions = past == 0 || random.one_in(4) ? 0 : random.between(1, past);
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
  const int64_t alignment = kKvFormats[format].alignment;
  const int64_t uneven = alignment == 1 ? needed - 1 : (needed + alignment - 1) / alignment * alignment + 1;
  cache.dims[3] = random.pick<int64_t>({0, needed - 1, needed / 2, uneven});
  cache.resize();
  call.words = {"bytes a row"};
  return true;
}

bool shifted_cache(Case& call, Random& random) {
  const int32_t format = call.inputs[kFormats].get<int32_t>(call.attribute("layer")->integer);
  if (kKvFormats[format].alignment == 1) return false;
  call.inputs[kCache].alignment = format == kKvF32 ? random.pick<size_t>({1, 2}) : 1;
  call.words = {"cache does not begin"};
  return true;
}

bool layer_without_format(Case& call, Random& random) {
  call.set("layer", random.pick<int64_t>({call.inputs[kFormats].dims[0], INT64_MAX}));
  call.words = {"kv_formats has"};
  return true;
}

// Positions that end before the pass does, or fewer rows than it and what it sees, or more rows than positions.
bool other_ring_size(Case& call, Random& random) {
  const int64_t used = past_of(call) + rows_of(call), needed = used - first_seen(call), mapped = positions_of(call);
  const bool of_map = random.one_in(2);
  Input& input = call.inputs[of_map ? kRowMap : kCache];
  int64_t& dim = input.dims[of_map ? 0 : 2];
  dim = of_map ? random.pick<int64_t>({0, used - 1, used / 2})
               : random.pick<int64_t>({0, needed - 1, needed / 2, mapped + 1, mapped + 5});
  if (of_map) {
    call.words = {"row_map is", "past_length"};
  } else {
    call.words = {dim > mapped ? "row_map is" : "cache has"};
  }
  input.resize();
  return true;
}

// Another number of rows than positions. With a window there may be fewer.
bool other_row_count(Case& call, Random& random) {
  if (is_ring(call)) return other_ring_size(call, random);
  const bool has_window = call.attribute("window")->integer > 0, of_map = random.one_in(2);
  Input& input = call.inputs[of_map ? kRowMap : kCache];
  int64_t& dim = input.dims[of_map ? 0 : 2];
  const int64_t fewer = random.pick<int64_t>({0, dim - 1, dim / 2});
  const int64_t more = random.pick<int64_t>({dim + 1, dim + 5, dim * 2});
  dim = has_window ? (of_map ? fewer : more) : random.one_in(2) ? fewer : more;
  input.resize();
  return true;
}

bool wrong_norm(Case& call, Random& random) {
  const bool of_keys = random.one_in(2);
  const int64_t dim = call.attribute("head_dim")->integer;
  const int64_t whole = dim * call.attribute(of_keys ? "num_kv_heads" : "num_heads")->integer;
  Input& norm = call.inputs[of_keys ? kKeyNorm : kQueryNorm];
  const int64_t other = random.pick<int64_t>({0, 1, dim - 1, dim + 1, dim * 2, whole - 1, whole + 1});
  if (other == dim || other == whole) return false;
  norm.present = true;
  norm.dims[0] = other;
  norm.resize();
  call.words = {"_norm is ["};
  return true;
}

bool late_row_norm(Case& call, Random&) {
  const int64_t heads = call.attribute("num_heads")->integer;
  if (heads == 1) return false;
  Input& norm = call.inputs[kQueryNorm];
  norm.present = true;
  norm.dims[0] = heads * call.attribute("head_dim")->integer;
  norm.resize();
  call.set("norm_after_rotation", int64_t{1});
  call.words = {"_norm is ["};
  return true;
}

bool no_rows(Case& call, Random&) {
  for (const int i : {kRowsIn, kParents}) {
    call.inputs[static_cast<size_t>(i)].dims[0] = 0;
    call.inputs[static_cast<size_t>(i)].resize();
  }
  call.words = {"no rows"};
  return true;
}

}  // namespace

CheckedDims attention_dims(int key_constants) {
  return {{kCache, {0, 1}},
          {kPast, {0}},
          {kCos, {0, 1}},
          {kSin, {0, 1}},
          {kSinks, {0}},
          {key_constants, {0, 1}},
          {key_constants + 1, {0, 1}},
          {key_constants + 2, {0, 1, 2}},
          {query_scale_of(key_constants), {0}}};
}

std::vector<Mistake> attention_mistakes(int key_constants) {
  const auto seen_centre = [key_constants](Case& call, Random& random) {
    call.inputs[static_cast<size_t>(key_constants)].present = true;
    if (random.one_in(2)) {
      call.set("softcap", random.pick({0.5f, 30.0f}));
    } else {
      call.inputs[kSinks].present = true;
    }
    call.words = {"key_centre is given beside"};
    return true;
  };
  return {{"attention attribute", wrong_attribute},
          {"row_map out of range", wrong_row},
          {"row_map twice", double_row},
          {"rows unlike positions", other_row_count},
          {"past_length", wrong_past},
          {"parents", wrong_parent},
          {"fewer parents than rows", few_parents},
          {"kv format unknown", wrong_format},
          {"cos too short", short_rope},
          {"cos too wide", wide_rope},
          {"cache row", short_cache_row},
          {"cache misaligned", shifted_cache},
          {"no rows", no_rows},
          {"layer without format", layer_without_format},
          {"norm of another length", wrong_norm},
          {"norm of rows behind the rotation", late_row_norm},
          {"centre that is seen", seen_centre}};
}

}  // namespace edge_rt::fuzz
