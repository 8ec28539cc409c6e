// Mistakes of calls with a cache to attend over.
#include <algorithm>
#include <cmath>

#include "tests/fuzz_parts.h"

namespace edge_rt::fuzz {
namespace {

bool wrong_attribute(Case& call, Random& random) {
  const int64_t heads = call.attribute("num_heads")->integer;
  const int64_t huge = random.pick<int64_t>({INT64_MIN, -1, INT64_MAX, int64_t{1} << 32});
  const float bad_real = random.pick({std::nanf(""), HUGE_VALF, -HUGE_VALF});
  switch (random.below(14)) {
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
    case 10:
      call.set(random.pick<std::string>({"shares_cache", "norms_values", "values_are_keys"}),
               random.pick<int64_t>({-1, 2, INT64_MAX}));
      break;
    case 11: call.set("gated", random.pick<int64_t>({-1, 2, INT64_MAX})); break;
    case 12: call.set("clip", random.pick({bad_real, -1.0f})); break;
    default: call.set("softcap", random.pick({bad_real, -1.0f}));
  }
  call.words = {"num_heads is", "head_dim is",     "layer is",
                "window is",    "interleaved is",  "scale is",
                "softcap is",   "rotate is",       "norm_after_rotation is",
                "shares_cache", "norms_values is", "values_are_keys is",
                "gated is",     "clip is"};
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
  call.words = {"_norm is [", "k_norm is given"};
  return true;
}

// Behind the rotation, or beside gates.
bool wrong_row_norm(Case& call, Random& random) {
  const int64_t heads = call.attribute("num_heads")->integer;
  const fake::Attribute* const gated = call.attribute("gated");
  const bool has_gates = gated != nullptr && gated->integer == 1;
  if (heads == 1) return false;
  Input& norm = call.inputs[kQueryNorm];
  norm.present = true;
  norm.dims[0] = heads * call.attribute("head_dim")->integer;
  norm.resize();
  if (!has_gates || random.one_in(2)) {
    call.set("clip", 0.0f);
    call.set("norm_after_rotation", int64_t{1});
  }
  call.words = {"_norm is ["};
  return true;
}

bool early_clip(Case& call, Random&) {
  call.set("norm_after_rotation", int64_t{1});
  call.set("clip", 1.0f);
  call.words = {"clip is"};
  return true;
}

}  // namespace

CheckedDims attention_dims(int key_constants) {
  return {{kCache, {0, 1}},
          {kPast, {0}},
          {kRowMap, {0}},
          {sequence_rows_of(key_constants), {0}},
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
  std::vector<Mistake> all = {{"attention attribute", wrong_attribute},
                              {"kv format unknown", wrong_format},
                              {"cos too short", short_rope},
                              {"cos too wide", wide_rope},
                              {"cache row", short_cache_row},
                              {"cache misaligned", shifted_cache},
                              {"layer without format", layer_without_format},
                              {"norm of another length", wrong_norm},
                              {"norm of rows behind the rotation or beside gates", wrong_row_norm},
                              {"clip before a norm", early_clip},
                              {"centre that is seen", seen_centre}};
  for (Mistake& mistake : row_mistakes()) all.push_back(std::move(mistake));
  return all;
}

}  // namespace edge_rt::fuzz
