#include "tests/fuzz_states.h"

#include <algorithm>

namespace edge_rt::fuzz {
namespace {

constexpr int kOfSequences[] = {kPast, kStateIndex, kSlot, kAdvance, kCertain, kSequenceRows};

constexpr const char *kText = "good, certain rows alone", *kChain = "good, a chain of drafts",
                     *kTree = "good, a tree of drafts", *kBegins = "good, a text begins",
                     *kAccepted = "good, drafts were accepted", *kSeveral = "good, several sequences";

int64_t sequences_of(const Case& call) { return call.inputs[kPast].dims[0]; }

// Numbers where the pass reads them; elsewhere all bits set, which is no number.
void add_slots(Case& call, Random& random, const SlotSizes& sizes, int64_t b) {
  Input& state = call.inputs[kState];
  const auto fill = [&](int64_t begin, int64_t count) {
    const Input drawn = floats(random, {count}, -1.0f, 1.0f);
    std::copy(drawn.bytes.begin(), drawn.bytes.end(),
              state.bytes.begin() + begin * static_cast<int64_t>(sizeof(float)));
  };
  const int64_t slots = 2 * number_in(call, kStateIndex, b), slot = number_in(call, kSlot, b),
                most = call.inputs[kAdvance].dims[1];
  const int64_t read = (slots + slot) * state.dims[2], written = (slots + 1 - slot) * state.dims[2];
  if (number_in(call, kPast, b) > 0) fill(read, sizes.state);
  for (int64_t i = 0; i < most; ++i) {
    const int32_t number = number_in(call, kAdvance, b * most + i);
    if (number < 0) continue;
    const int64_t begin = read + sizes.state + number * sizes.transition;
    fill(begin, sizes.transition);
    for (int64_t h = 0; h < sizes.decays; ++h) state.set(begin + h, random.uniform(0.0f, 1.0f));
  }
  const int64_t drafts = number_in(call, kSequenceRows, b) - number_in(call, kCertain, b);
  const auto begin = static_cast<size_t>(written) * sizeof(float);
  call.writable.push_back(
      {begin, begin + static_cast<size_t>(sizes.state + drafts * sizes.transition) * sizeof(float)});
}

// Parents of a sequence whose rows begin with `certain` ones. Returns whether the drafts are a tree.
bool add_parents(Case& call, Random& random, int64_t first, int64_t rows, int64_t certain) {
  const bool may_branch = random.one_in(2);
  bool is_tree = false;
  for (int64_t i = 0; i < rows; ++i) {
    int64_t parent = i - 1;
    while (may_branch && i > certain && parent >= certain && random.one_in(3)) {
      parent = number_in(call, kParents, first + parent);
    }
    is_tree = is_tree || parent != i - 1;
    set_number(call, kParents, first + i, parent);
  }
  return is_tree;
}

// The sequences of a call.
std::vector<Case> take_sequences_apart(const Case& call, const std::vector<int>& of_rows) {
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
    const int64_t rows = number_in(call, kSequenceRows, b);
    for (const int i : of_rows)
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
            set_number(call, input, random.below(sequences_of(call)),
                       values[static_cast<size_t>(random.below(static_cast<int64_t>(values.size())))]);
            call.words = {word};
            return true;
          }};
}

bool wrong_index(Case& call, Random& random) {
  const int64_t b = random.below(sequences_of(call)), states = call.inputs[kState].dims[0];
  const int64_t other = number_in(call, kStateIndex, random.below(sequences_of(call)));
  const bool is_double = other != number_in(call, kStateIndex, b);
  set_number(call, kStateIndex, b, is_double ? other : random.pick<int64_t>({-1, states, INT32_MIN, INT32_MAX}));
  call.words = {"state_index["};
  return true;
}

bool wrong_advance(Case& call, Random& random, int64_t room) {
  const int64_t most = call.inputs[kAdvance].dims[1];
  if (most == 0) return false;
  const int64_t b = random.below(sequences_of(call)), i = random.below(most);
  const int64_t before = i > 0 ? number_in(call, kAdvance, b * most + i - 1) : -1;
  set_number(call, kAdvance, b * most + i,
             random.pick<int64_t>({-2, room, INT32_MIN, INT32_MAX, before >= 0 ? before : room}));
  call.words = {"advance["};
  return true;
}

bool advance_of_nothing(Case& call, Random& random, int64_t room) {
  const int64_t most = call.inputs[kAdvance].dims[1], b = random.below(sequences_of(call));
  if (most == 0 || room == 0) return false;
  set_number(call, kAdvance, b * most, 0);
  set_number(call, kPast, b, 0);
  call.words = {"advance["};
  return true;
}

bool wrong_certain(Case& call, Random& random, int64_t room) {
  const int64_t b = random.below(sequences_of(call)), rows = number_in(call, kSequenceRows, b);
  const bool has_room = rows <= room || random.one_in(2);
  set_number(call, kCertain, b,
             has_room ? random.pick<int64_t>({-1, rows + 1, INT32_MIN, INT32_MAX}) : rows - room - 1);
  call.words = {"certain["};
  return true;
}

bool wrong_parent(Case& call, Random& random) {
  const int64_t b = random.below(sequences_of(call)), rows = number_in(call, kSequenceRows, b), i = random.below(rows);
  int64_t first = 0;
  for (int64_t other = 0; other < b; ++other) first += number_in(call, kSequenceRows, other);
  const bool has_base = number_in(call, kCertain, b) > 0 && i > 0;  // of which it is no child of the text before
  set_number(call, kParents, first + i,
             random.pick<int64_t>({-2, INT32_MIN, INT32_MAX, i, i + 1, has_base ? -1 : rows}));
  call.words = {"parents["};
  return true;
}

}  // namespace

int32_t number_in(const Case& call, int input, int64_t at) {
  return call.inputs[static_cast<size_t>(input)].get<int32_t>(at);
}

void set_number(Case& call, int input, int64_t at, int64_t value) {
  call.inputs[static_cast<size_t>(input)].set(at, static_cast<int32_t>(value));
}

int64_t add_states(Case& call, Random& random, const SlotSizes& sizes, int inputs) {
  const int64_t sequences = random.one_in(3) ? random.between(2, 4) : 1, room = random.below(12);
  const int64_t states = sequences + random.below(3), most_accepted = random.below(8);
  call.inputs.resize(static_cast<size_t>(inputs));
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
    set_number(call, kCertain, b, certain);
    set_number(call, kSequenceRows, b, certain + drafts);
    set_number(call, kStateIndex, b, places[static_cast<size_t>(b)]);
    set_number(call, kSlot, b, random.below(2));
    set_number(call, kPast, b, random.one_in(4) ? 0 : random.pick<int64_t>({1, 77, INT32_MAX}));
    int64_t accepted = number_in(call, kPast, b) > 0 ? random.below(most_accepted + 1) : 0;
    for (int64_t i = 0, number = random.below(3); i < most_accepted; ++i, number += random.between(1, 3)) {
      if (number >= room) accepted = 0;
      set_number(call, kAdvance, b * most_accepted + i, i < accepted ? number : -1);
      has_accepted = has_accepted || i < accepted;
    }
    firsts.push_back(rows);
    rows += number_in(call, kSequenceRows, b);
    begins = begins || number_in(call, kPast, b) == 0;
    has_drafts = has_drafts || number_in(call, kSequenceRows, b) > number_in(call, kCertain, b);
  }
  call.inputs[kParents] = int32s({rows});
  call.inputs[kState] = floats(random, {states, 2, sizes.state + room * sizes.transition}, 0.0f, 1.0f);
  std::fill(call.inputs[kState].bytes.begin(), call.inputs[kState].bytes.end(), uint8_t{0xff});
  for (int64_t b = 0; b < sequences; ++b) {
    is_tree = add_parents(call, random, firsts[static_cast<size_t>(b)], number_in(call, kSequenceRows, b),
                          number_in(call, kCertain, b)) ||
              is_tree;
    add_slots(call, random, sizes, b);
  }
  call.inputs[kState].alignment = random.pick<size_t>({64, 16, 4});
  call.outputs = {{rows, sizes.outputs}};
  call.output_types = {abi::kFloat};
  call.in_place = kState;
  call.features = {is_tree ? kTree : has_drafts ? kChain : kText};
  if (begins) call.features.push_back(kBegins);
  if (has_accepted) call.features.push_back(kAccepted);
  if (sequences > 1) call.features.push_back(kSeveral);
  return rows;
}

Subject state_subject(const StateOp& op) {
  Subject subject{op.name, op.make, {}, {}, {}, {}, {}, {}};
  for (int input = kRowsIn; input < kOwnInputs; ++input) subject.required.push_back(input);
  subject.checked = {{kRowsIn, {0}},  {kState, {1}},   {kPast, {0}},    {kStateIndex, {0}},  {kSlot, {0}},
                     {kAdvance, {0}}, {kCertain, {0}}, {kParents, {0}}, {kSequenceRows, {0}}};
  const auto room_of = [sizes_of = op.sizes_of](const Case& call) {
    const SlotSizes sizes = sizes_of(call);
    return (call.inputs[kState].dims[2] - sizes.state) / sizes.transition;
  };
  // Mistakes that know how many drafts there is room for.
  const auto with_room = [room_of](bool (*make)(Case&, Random&, int64_t)) {
    return [=](Case& call, Random& random) { return make(call, random, room_of(call)); };
  };
  subject.own_mistakes = {
      wrong_number("past_length out of range", kPast, "past_length[", {-1, INT32_MIN}),
      wrong_number("slot out of range", kSlot, "slot[", {-1, 2, INT32_MIN, INT32_MAX}),
      wrong_number("sequence_rows out of range", kSequenceRows, "sequence_rows[", {0, -1, INT32_MIN, INT32_MAX}),
      {"state_index out of range, or double", wrong_index},
      {"advance out of range or order", with_room(wrong_advance)},
      {"advance where a text begins", with_room(advance_of_nothing)},
      {"certain out of range", with_room(wrong_certain)},
      {"parents out of range or order", wrong_parent}};
  subject.features = {kText, kChain, kTree, kBegins, kAccepted, kSeveral};
  std::vector<int> of_rows = op.of_rows;
  of_rows.insert(of_rows.end(), {kRowsIn, kParents});
  subject.take_apart = [of_rows](const Case& call) { return take_sequences_apart(call, of_rows); };
  return subject;
}

void resize_input(Case& call, int input, size_t axis, int64_t size, const char* word) {
  call.inputs[static_cast<size_t>(input)].dims[axis] = size;
  call.inputs[static_cast<size_t>(input)].resize();
  call.words = {word};
}

void resize_slots(Case& call, Random& random) {
  const int64_t floats = call.inputs[kState].dims[2];
  resize_input(call, kState, 2, random.pick<int64_t>({0, floats - 1, floats + 1, 16}), "state has slots");
}

}  // namespace edge_rt::fuzz
