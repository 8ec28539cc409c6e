// Mistakes of calls with a cache to attend over.
#include <algorithm>
#include <cmath>

#include "tests/fuzz_parts.h"

namespace edge_rt::fuzz {
namespace {

// A sequence of a call: where its rows and its part of row_map begin.
struct Sequence {
  int64_t index, rows, nodes, first_row, map_begin;
  int64_t seen, past, used;  // positions: the first that it must not overwrite, that of its first row, and behind it
};

int64_t sequences_of(const Case& call) { return call.inputs[kPast].dims[0]; }
int64_t positions_of(const Case& call) { return call.inputs[kRowMap].dims[1]; }
int64_t capacity_of(const Case& call) { return call.inputs[kCache].dims[2]; }

Sequence sequence_of(Case& call, int64_t index) {
  const Input& counts = call.inputs.back();
  Sequence sequence{};
  sequence.index = index;
  for (int64_t i = 0; i < index; ++i) sequence.first_row += counts.get<int32_t>(i);
  sequence.rows = counts.get<int32_t>(index);
  const int64_t done = call.inputs[kParents].dims[0] - call.inputs[kRowsIn].dims[0];  // with one sequence only
  const int64_t committed = call.inputs[kPast].get<int32_t>(index), window = call.attribute("window")->integer;
  sequence.nodes = done + sequence.rows;
  sequence.map_begin = index * positions_of(call);
  sequence.seen = window > 0 && window <= committed ? committed + 1 - window : 0;
  sequence.past = committed + done;
  sequence.used = sequence.past + sequence.rows;
  return sequence;
}

Sequence any_sequence(Case& call, Random& random) { return sequence_of(call, random.below(sequences_of(call))); }

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
  const Sequence sequence = any_sequence(call, random);
  const auto capacity = static_cast<int32_t>(capacity_of(call));
  call.inputs[kRowMap].set(sequence.map_begin + random.between(sequence.seen / kKvSpan * kKvSpan, sequence.used - 1),
                           random.pick({-1, capacity, INT32_MIN, INT32_MAX, capacity + 7}));
  call.words = {"row_map holds"};
  return true;
}

// A row of the pass that another position has, be it committed and seen or of the pass.
bool double_row(Case& call, Random& random) {
  const Sequence sequence = any_sequence(call, random);
  const int64_t at = random.between(sequence.past, sequence.used - 1);
  const int64_t other = random.between(sequence.seen, sequence.used - 1);
  if (at == other) return false;
  Input& map = call.inputs[kRowMap];
  map.set(sequence.map_begin + at, map.get<int32_t>(sequence.map_begin + other));
  call.words = {"row_map gives row"};
  return true;
}

// A row of the pass that another sequence writes, or one that it reads, maybe with still others.
bool foreign_row(Case& call, Random& random, bool is_written) {
  const int64_t sequences = sequences_of(call);
  if (sequences == 1) return false;
  const Sequence writer = any_sequence(call, random);
  const Sequence other = sequence_of(call, (writer.index + random.between(1, sequences - 1)) % sequences);
  const int64_t begin = is_written ? other.past : other.seen, end = is_written ? other.used : other.past;
  if (begin == end) return false;
  Input& map = call.inputs[kRowMap];
  map.set(writer.map_begin + random.between(writer.past, writer.used - 1),
          map.get<int32_t>(other.map_begin + random.between(begin, end - 1)));
  // The writer may read the row, too.
  call.words = is_written ? std::vector<std::string>{"to two sequences of the pass"}
                          : std::vector<std::string>{"to another sequence", "to the pass"};
  return true;
}

bool wrong_past(Case& call, Random& random) {
  const Sequence sequence = any_sequence(call, random);
  const int64_t most = positions_of(call) - sequence.nodes;
  call.inputs[kPast].set(sequence.index, random.pick({-1, INT32_MIN, INT32_MAX, static_cast<int32_t>(most + 1)}));
  call.words = {"past_length"};
  return true;
}

bool wrong_sequence_rows(Case& call, Random& random) {
  const Sequence sequence = any_sequence(call, random);
  const auto rows = static_cast<int32_t>(sequence.rows);
  call.inputs.back().set(sequence.index, random.pick({0, -1, INT32_MIN, INT32_MAX, rows - 1, rows + 1}));
  call.words = {"sequence_rows["};
  return true;
}

bool wrong_parent(Case& call, Random& random) {
  const Sequence sequence = any_sequence(call, random);
  const int64_t nodes = sequence.nodes, node = random.below(nodes);
  call.inputs[kParents].set(
      sequence.first_row + node,
      static_cast<int32_t>(random.pick<int64_t>({-2, INT32_MIN, INT32_MAX, node, node + 1, nodes, nodes + 9})));
  call.words = {"parents["};
  return true;
}

bool many_parents(Case& call, Random& random) {
  if (sequences_of(call) == 1) return false;
  call.inputs[kParents].dims[0] += random.between(1, 5);
  call.inputs[kParents].resize();
  call.words = {"parents is"};
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

// Positions that end before a sequence does, or fewer rows of the cache than it writes and sees.
bool too_little_room(Case& call, Random& random) {
  int64_t most_used = 0, most_needed = 0;
  for (int64_t i = 0; i < sequences_of(call); ++i) {
    const Sequence sequence = sequence_of(call, i);
    most_used = std::max(most_used, sequence.used);
    most_needed = std::max(most_needed, sequence.used - sequence.seen);
  }
  const bool of_map = random.one_in(2);
  Input& input = call.inputs[of_map ? kRowMap : kCache];
  const int64_t most = of_map ? most_used : most_needed;
  input.dims[of_map ? 1 : 2] = random.pick<int64_t>({0, most - 1, most / 2});
  input.resize();
  // A shorter map has other rows for the sequences behind the first.
  call.words = {"row_map has", "row_map holds", "row_map gives", "cache has"};
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
  return {{"attention attribute", wrong_attribute},
          {"row_map out of range", wrong_row},
          {"row_map twice", double_row},
          {"row_map: two write a row", [](Case& c, Random& r) { return foreign_row(c, r, true); }},
          {"row_map: others read a row", [](Case& c, Random& r) { return foreign_row(c, r, false); }},
          {"too little room", too_little_room},
          {"past_length", wrong_past},
          {"sequence_rows", wrong_sequence_rows},
          {"parents", wrong_parent},
          {"nodes of earlier passes of several", many_parents},
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
