// Calls of GatedDelta: texts that begin and go on, with certain rows and trees of drafts.
#include <algorithm>
#include <cmath>

#include "ops/gated_delta/gated_delta.h"
#include "tests/fuzz_case.h"

namespace edge_rt::fuzz {
namespace {

enum DeltaInput : int {
  kQkv,
  kState,
  kPast,
  kStateIndex,
  kSlot,
  kAdvance,
  kCertain,
  kParents,
  kSequenceRows,
  kZ,
  kB,
  kA,
  kAScale,
  kDtBias,
  kNorm
};
constexpr int kOfRows[] = {kQkv, kParents, kZ, kB, kA};
constexpr int kOfSequences[] = {kPast, kStateIndex, kSlot, kAdvance, kCertain, kSequenceRows};

constexpr const char *kText = "good, certain rows alone", *kChain = "good, a chain of drafts",
                     *kTree = "good, a tree of drafts", *kBegins = "good, a text begins",
                     *kAccepted = "good, drafts were accepted", *kSeveral = "good, several sequences";

int32_t one(const Case& call, int input, int64_t at) {
  return call.inputs[static_cast<size_t>(input)].get<int32_t>(at);
}

void set(Case& call, int input, int64_t at, int64_t value) {
  call.inputs[static_cast<size_t>(input)].set(at, static_cast<int32_t>(value));
}

int64_t sequences_of(const Case& call) { return call.inputs[kPast].dims[0]; }

DeltaShape any_shape(Random& random) {
  DeltaShape shape{};
  shape.key_heads = random.between(1, 3);
  shape.value_heads = shape.key_heads * random.between(1, 3);
  shape.key_dim = 16 * random.between(1, 3);
  shape.value_dim = 16 * random.between(1, 3);
  shape.is_tiled = random.one_in(2);
  return shape;
}

// Numbers where the pass reads them; elsewhere all bits set, which is no number.
void add_slots(Case& call, Random& random, const DeltaShape& shape, int64_t b) {
  Input& state = call.inputs[kState];
  const auto fill = [&](int64_t begin, int64_t count) {
    const Input drawn = floats(random, {count}, -1.0f, 1.0f);
    std::copy(drawn.bytes.begin(), drawn.bytes.end(),
              state.bytes.begin() + begin * static_cast<int64_t>(sizeof(float)));
  };
  const int64_t slots = 2 * one(call, kStateIndex, b), slot = one(call, kSlot, b), most = call.inputs[kAdvance].dims[1];
  const int64_t read = (slots + slot) * state.dims[2], written = (slots + 1 - slot) * state.dims[2];
  if (one(call, kPast, b) > 0) fill(read, shape.state_floats());
  for (int64_t i = 0; i < most; ++i) {
    const int32_t number = one(call, kAdvance, b * most + i);
    if (number < 0) continue;
    const int64_t begin = read + shape.state_floats() + number * shape.transition_floats();
    fill(begin, shape.transition_floats());
    for (int64_t h = 0; h < shape.value_heads; ++h) state.set(begin + h, random.uniform(0.0f, 1.0f));
  }
  const int64_t drafts = one(call, kSequenceRows, b) - one(call, kCertain, b);
  const auto begin = static_cast<size_t>(written) * sizeof(float);
  call.writable.push_back(
      {begin, begin + static_cast<size_t>(shape.state_floats() + drafts * shape.transition_floats()) * sizeof(float)});
}

// Parents of a sequence whose rows begin with `certain` ones. Returns whether the drafts are a tree.
bool add_parents(Case& call, Random& random, int64_t first, int64_t rows, int64_t certain) {
  const bool may_branch = random.one_in(2);
  bool is_tree = false;
  for (int64_t i = 0; i < rows; ++i) {
    int64_t parent = i - 1;
    while (may_branch && i > certain && parent >= certain && random.one_in(3)) {
      parent = one(call, kParents, first + parent);
    }
    is_tree = is_tree || parent != i - 1;
    set(call, kParents, first + i, parent);
  }
  return is_tree;
}

Case make(Random& random) {
  Case call;
  call.op = "GatedDelta";
  const DeltaShape shape = any_shape(random);
  const int64_t sequences = random.one_in(3) ? random.between(2, 4) : 1, room = random.below(12);
  const int64_t states = sequences + random.below(3), most_accepted = random.below(8);
  call.set("key_heads", shape.key_heads);
  if (shape.is_tiled || random.one_in(2)) call.set("is_tiled", int64_t{shape.is_tiled ? 1 : 0});
  if (random.one_in(2)) call.set("epsilon", random.pick({1e-6f, 1e-5f, 0.25f}));
  if (random.one_in(2)) call.set("key_epsilon", random.pick({1e-6f, 1e-5f}));
  call.inputs.resize(kNorm + 1);
  for (const int input : kOfSequences) call.inputs[static_cast<size_t>(input)] = int32s({sequences});
  call.inputs[kAdvance] = int32s({sequences, most_accepted});
  std::vector<int64_t> places;
  for (int64_t i = 0; i < states; ++i) places.push_back(i);
  for (int64_t i = states - 1; i > 0; --i)
    std::swap(places[static_cast<size_t>(i)], places[static_cast<size_t>(random.below(i + 1))]);
  int64_t rows = 0;
  bool is_tree = false, has_drafts = false, begins = false, has_accepted = false;
  std::vector<int64_t> firsts;
  for (int64_t b = 0; b < sequences; ++b) {
    const int64_t drafts = random.below(room + 1);
    const int64_t certain = random.one_in(2) ? random.between(drafts > 0 ? 0 : 1, 1) : random.size(20);
    set(call, kCertain, b, certain);
    set(call, kSequenceRows, b, certain + drafts);
    set(call, kStateIndex, b, places[static_cast<size_t>(b)]);
    set(call, kSlot, b, random.below(2));
    set(call, kPast, b, random.one_in(4) ? 0 : random.pick<int64_t>({1, 77, INT32_MAX}));
    int64_t accepted = one(call, kPast, b) > 0 ? random.below(most_accepted + 1) : 0;
    for (int64_t i = 0, number = random.below(3); i < most_accepted; ++i, number += random.between(1, 3)) {
      if (number >= room) accepted = 0;
      set(call, kAdvance, b * most_accepted + i, i < accepted ? number : -1);
      has_accepted = has_accepted || i < accepted;
    }
    firsts.push_back(rows);
    rows += one(call, kSequenceRows, b);
    begins = begins || one(call, kPast, b) == 0;
    has_drafts = has_drafts || one(call, kSequenceRows, b) > one(call, kCertain, b);
  }
  call.inputs[kParents] = int32s({rows});
  call.inputs[kState] =
      floats(random, {states, 2, shape.state_floats() + room * shape.transition_floats()}, 0.0f, 1.0f);
  std::fill(call.inputs[kState].bytes.begin(), call.inputs[kState].bytes.end(), uint8_t{0xff});
  for (int64_t b = 0; b < sequences; ++b) {
    is_tree = add_parents(call, random, firsts[static_cast<size_t>(b)], one(call, kSequenceRows, b),
                          one(call, kCertain, b)) ||
              is_tree;
    add_slots(call, random, shape, b);
  }
  call.inputs[kState].alignment = random.pick<size_t>({64, 16, 4});
  call.inputs[kQkv] = floats(random, {rows, 2 * shape.keys() + shape.values()}, -2.0f, 2.0f);
  call.inputs[kZ] = floats(random, {rows, shape.values()}, -4.0f, 4.0f);
  call.inputs[kB] = floats(random, {rows, shape.value_heads}, -4.0f, 4.0f);
  call.inputs[kA] = floats(random, {rows, shape.value_heads}, -4.0f, 4.0f);
  call.inputs[kAScale] = floats(random, {shape.value_heads}, -2.0f, 0.0f);
  call.inputs[kDtBias] = floats(random, {shape.value_heads}, -2.0f, 2.0f);
  call.inputs[kNorm] = floats(random, {shape.value_dim}, -2.0f, 2.0f);
  call.outputs = {{rows, shape.values()}};
  call.output_types = {abi::kFloat};
  call.in_place = kState;
  call.features = {is_tree ? kTree : has_drafts ? kChain : kText};
  if (begins) call.features.push_back(kBegins);
  if (has_accepted) call.features.push_back(kAccepted);
  if (sequences > 1) call.features.push_back(kSeveral);
  return call;
}

// The sequences of a call.
std::vector<Case> take_apart(const Case& call) {
  const auto cut = [](const Input& from, int64_t begin, int64_t count) {
    Input part = from;
    const int64_t bytes = static_cast<int64_t>(from.bytes.size()) / from.dims[0];
    part.dims[0] = count;
    part.bytes.assign(from.bytes.begin() + begin * bytes, from.bytes.begin() + (begin + count) * bytes);
    return part;
  };
  std::vector<Case> parts;
  for (int64_t b = 0, first = 0; sequences_of(call) > 1 && b < sequences_of(call); ++b) {
    Case& part = parts.emplace_back(call);
    const int64_t rows = one(call, kSequenceRows, b);
    for (const int i : kOfRows)
      part.inputs[static_cast<size_t>(i)] = cut(call.inputs[static_cast<size_t>(i)], first, rows);
    for (const int i : kOfSequences)
      part.inputs[static_cast<size_t>(i)] = cut(call.inputs[static_cast<size_t>(i)], b, 1);
    part.outputs[0][0] = rows;
    part.writable = {call.writable[static_cast<size_t>(b)]};
    first += rows;
  }
  return parts;
}

// One number of a sequence, and what it must not be.
Mistake wrong_number(const char* name, int input, const char* word, std::vector<int64_t> values) {
  return {name, [=](Case& call, Random& random) {
            set(call, input, random.below(sequences_of(call)),
                values[static_cast<size_t>(random.below(static_cast<int64_t>(values.size())))]);
            call.words = {word};
            return true;
          }};
}

bool wrong_index(Case& call, Random& random) {
  const int64_t b = random.below(sequences_of(call)), states = call.inputs[kState].dims[0];
  const int64_t other = one(call, kStateIndex, random.below(sequences_of(call)));
  const bool is_double = other != one(call, kStateIndex, b);
  set(call, kStateIndex, b, is_double ? other : random.pick<int64_t>({-1, states, INT32_MIN, INT32_MAX}));
  call.words = {"state_index["};
  return true;
}

int64_t room_of(const Case& call) {
  const int64_t value_heads = call.inputs[kAScale].dims[0], values = value_heads * call.inputs[kNorm].dims[0];
  const int64_t keys = (call.inputs[kQkv].dims[1] - values) / 2;
  int64_t key_heads = 0;
  for (const fake::Attribute& attribute : call.attributes)
    key_heads += attribute.name == "key_heads" ? attribute.integer : 0;
  return (call.inputs[kState].dims[2] - values * (keys / key_heads)) / (value_heads + keys + values);
}

bool wrong_advance(Case& call, Random& random) {
  const int64_t most = call.inputs[kAdvance].dims[1], room = room_of(call);
  if (most == 0) return false;
  const int64_t b = random.below(sequences_of(call)), i = random.below(most);
  const int64_t before = i > 0 ? one(call, kAdvance, b * most + i - 1) : -1;
  set(call, kAdvance, b * most + i,
      random.pick<int64_t>({-2, room, INT32_MIN, INT32_MAX, before >= 0 ? before : room}));
  call.words = {"advance["};
  return true;
}

bool advance_of_nothing(Case& call, Random& random) {
  const int64_t most = call.inputs[kAdvance].dims[1], b = random.below(sequences_of(call));
  if (most == 0 || room_of(call) == 0) return false;
  set(call, kAdvance, b * most, 0);
  set(call, kPast, b, 0);
  call.words = {"advance["};
  return true;
}

bool wrong_certain(Case& call, Random& random) {
  const int64_t b = random.below(sequences_of(call)), rows = one(call, kSequenceRows, b), room = room_of(call);
  const bool has_room = rows <= room || random.one_in(2);
  set(call, kCertain, b, has_room ? random.pick<int64_t>({-1, rows + 1, INT32_MIN, INT32_MAX}) : rows - room - 1);
  call.words = {"certain["};
  return true;
}

bool wrong_parent(Case& call, Random& random) {
  const int64_t b = random.below(sequences_of(call)), rows = one(call, kSequenceRows, b), i = random.below(rows);
  int64_t first = 0;
  for (int64_t other = 0; other < b; ++other) first += one(call, kSequenceRows, other);
  const bool has_base = one(call, kCertain, b) > 0 && i > 0;  // of which it is no child of the text before the pass
  set(call, kParents, first + i, random.pick<int64_t>({-2, INT32_MIN, INT32_MAX, i, i + 1, has_base ? -1 : rows}));
  call.words = {"parents["};
  return true;
}

// Sizes that do not go together, or are out of range.
bool wrong_sizes(Case& call, Random& random) {
  const int64_t values = call.inputs[kZ].dims[1], width = call.inputs[kQkv].dims[1], kind = random.below(4);
  const auto resize = [&](int input, size_t axis, int64_t size, const char* word) {
    call.inputs[static_cast<size_t>(input)].dims[axis] = size;
    call.inputs[static_cast<size_t>(input)].resize();
    call.words = {word};
  };
  const int64_t floats = call.inputs[kState].dims[2];
  if (kind == 0) resize(kState, 2, random.pick<int64_t>({0, floats - 1, floats + 1, 16}), "state has slots");
  if (kind == 1) resize(kQkv, 1, random.pick<int64_t>({0, values, width + 1}), "qkv has");
  if (kind == 2) resize(kNorm, 0, random.pick<int64_t>({0, 8, 17, kMaxValueDim + 16}), "norm is");
  if (kind == 3) resize(kAScale, 0, random.pick<int64_t>({0, 12 * kMaxDeltaHeads}), "a_scale is");
  return true;
}

bool wrong_attribute(Case& call, Random& random) {
  const int64_t kind = random.below(3);
  if (kind == 0) call.set("key_heads", random.pick<int64_t>({0, -1, kMaxDeltaHeads + 1, INT64_MIN, INT64_MAX}));
  if (kind == 1) call.set("is_tiled", random.pick<int64_t>({-1, 2, INT64_MAX}));
  if (kind == 2) call.set(random.pick({"epsilon", "key_epsilon"}), random.pick({-1e-6f, HUGE_VALF, std::nanf("")}));
  call.words = {kind == 0 ? "key_heads is" : kind == 1 ? "is_tiled is" : "epsilon and key_epsilon must"};
  return true;
}

}  // namespace

Subject gated_delta() {
  Subject subject{"GatedDelta", make, {}, {}, {"key_heads"}, {}, {}, {}};
  for (int input = kQkv; input <= kNorm; ++input) subject.required.push_back(input);
  subject.checked = {{kQkv, {0}},     {kState, {1}},   {kPast, {0}},    {kStateIndex, {0}},   {kSlot, {0}},
                     {kAdvance, {0}}, {kCertain, {0}}, {kParents, {0}}, {kSequenceRows, {0}}, {kZ, {0, 1}},
                     {kB, {0, 1}},    {kA, {0, 1}},    {kAScale, {0}},  {kDtBias, {0}},       {kNorm, {0}}};
  subject.own_mistakes = {
      wrong_number("past_length out of range", kPast, "past_length[", {-1, INT32_MIN}),
      wrong_number("slot out of range", kSlot, "slot[", {-1, 2, INT32_MIN, INT32_MAX}),
      wrong_number("sequence_rows out of range", kSequenceRows, "sequence_rows[", {0, -1, INT32_MIN, INT32_MAX}),
      {"state_index out of range, or double", wrong_index},
      {"advance out of range or order", wrong_advance},
      {"advance where a text begins", advance_of_nothing},
      {"certain out of range", wrong_certain},
      {"parents out of range or order", wrong_parent},
      {"sizes", wrong_sizes},
      {"attributes", wrong_attribute}};
  subject.features = {kText, kChain, kTree, kBegins, kAccepted, kSeveral};
  subject.take_apart = take_apart;
  return subject;
}

}  // namespace edge_rt::fuzz
