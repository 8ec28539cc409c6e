// Which rows a pass reads and writes: what all calls with a cache have in common.
#include <algorithm>
#include <numeric>

#include "tests/fuzz_parts.h"

namespace edge_rt::fuzz {
namespace {

// Rows in any order, which every `capacity` positions take again. What stands behind the pass is not read, nor is a
// span that is not seen; other entries before the window must be rows, but any will do.
Input make_ring(Random& random, const RowsShape& shape) {
  Input map = int32s({1, shape.positions});
  std::vector<int32_t> rows(static_cast<size_t>(shape.capacity));
  std::iota(rows.begin(), rows.end(), 0);
  for (size_t i = rows.size() - 1; i > 0; --i) {
    std::swap(rows[i], rows[static_cast<size_t>(random.below(static_cast<int64_t>(i) + 1))]);
  }
  const bool is_wild = random.one_in(2);
  for (int64_t i = 0; i < shape.positions; ++i) {
    int32_t row = rows[static_cast<size_t>(i % shape.capacity)];
    if (is_wild && i < shape.first_seen()) row = static_cast<int32_t>(random.below(shape.capacity));
    if (is_wild && (i < shape.first_mapped() || i >= shape.first().used())) {
      row = random.pick({INT32_MIN, INT32_MAX, -1});
    }
    map.set(i, row);
  }
  map.alignment = random.pick<size_t>({64, 4});
  return map;
}

// Positions' rows: in order, or shuffled, or with committed ones that were moved to the front by an earlier pass. What
// stands behind the pass is not read.
Input make_row_map(Random& random, const RowsShape& shape) {
  if (shape.is_ring()) return make_ring(random, shape);
  Input map = int32s({static_cast<int64_t>(shape.sequences.size()), shape.positions});
  std::vector<int32_t> rows(static_cast<size_t>(shape.capacity));
  std::iota(rows.begin(), rows.end(), 0);
  const int64_t kind = random.below(3);
  const int64_t first = kind == 0 ? shape.capacity : kind == 1 ? 0 : random.below(shape.first().past + 1);
  for (int64_t i = first; i < shape.capacity; ++i) {
    std::swap(rows[static_cast<size_t>(i)], rows[static_cast<size_t>(random.between(first, shape.capacity - 1))]);
  }
  const bool is_wild = random.one_in(2);
  size_t next = 0;
  for (int64_t b = 0; b < map.dims[0]; ++b) {
    const SequenceShape& sequence = shape.sequences[static_cast<size_t>(b)];
    for (int64_t i = 0; i < shape.positions; ++i) {
      int32_t row = is_wild ? random.pick({INT32_MIN, INT32_MAX, -1}) : 0;
      if (i < sequence.used()) row = i < sequence.shared ? map.get<int32_t>(i) : rows[next++];
      map.set(b * shape.positions + i, row);
    }
  }
  map.alignment = random.pick<size_t>({64, 4});
  return map;
}

// Adds the parents of the nodes of a sequence, `begin` being the first. Returns the greatest depth.
int64_t add_parents(Random& random, int64_t begin, int64_t nodes, Input* out) {
  const int64_t kind = random.below(4);  // a chain, a chain with few branches, any tree, all children of the last token
  std::vector<int64_t> depths;
  for (int64_t i = 0; i < nodes; ++i) {
    int64_t parent = i - 1;
    if (kind == 3) parent = -1;
    if (kind == 2 || (kind == 1 && random.one_in(5))) parent = random.between(-1, i - 1);
    out->set(begin + i, static_cast<int32_t>(parent));
    depths.push_back(parent < 0 ? 0 : depths[static_cast<size_t>(parent)] + 1);
  }
  return *std::max_element(depths.begin(), depths.end());
}

// A sequence of a call: where its rows and its part of row_map begin.
struct Sequence {
  int64_t index, rows, nodes, first_row, map_begin;
  int64_t seen, past, used;  // positions: the first that it must not overwrite, that of its first row, and behind it
};

int64_t sequences_of(const Case& call) { return call.inputs[kPast].dims[0]; }
int64_t positions_of(const Case& call) { return call.inputs[kRowMap].dims[1]; }
// Where the cache has its rows, and how many earlier ones a row sees: as many as a convolution has taps.
size_t capacity_axis(const Case& call) { return call.inputs[kCache].dims.size() == 2 ? 0 : 2; }
int64_t capacity_of(const Case& call) { return call.inputs[kCache].dims[capacity_axis(call)]; }
int64_t window_of(Case& call) {
  return capacity_axis(call) == 0 ? call.inputs[kWeight].dims[0] : call.attribute("window")->integer;
}

Sequence sequence_of(Case& call, int64_t index) {
  const Input& counts = call.inputs.back();
  Sequence sequence{};
  sequence.index = index;
  for (int64_t i = 0; i < index; ++i) sequence.first_row += counts.get<int32_t>(i);
  sequence.rows = counts.get<int32_t>(index);
  const int64_t done = call.inputs[kParents].dims[0] - call.inputs[kRowsIn].dims[0];  // with one sequence only
  const int64_t committed = call.inputs[kPast].get<int32_t>(index), window = window_of(call);
  sequence.nodes = done + sequence.rows;
  sequence.map_begin = index * positions_of(call);
  sequence.seen = window > 0 && window <= committed ? committed + 1 - window : 0;
  sequence.past = committed + done;
  sequence.used = sequence.past + sequence.rows;
  return sequence;
}

Sequence any_sequence(Case& call, Random& random) { return sequence_of(call, random.below(sequences_of(call))); }

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
  input.dims[of_map ? 1 : capacity_axis(call)] = random.pick<int64_t>({0, most - 1, most / 2});
  input.resize();
  // A shorter map has other rows for the sequences behind the first.
  call.words = {"row_map has", "row_map holds", "row_map gives", "cache has"};
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

void make_room(RowsShape& shape, Random& random) {
  shape.capacity = shape.positions = 0;
  for (const SequenceShape& sequence : shape.sequences) {
    shape.capacity += sequence.used() - sequence.shared;
    shape.positions = std::max(shape.positions, sequence.used());
  }
  if (random.one_in(2)) shape.capacity += random.below(30);
  if (random.one_in(2)) shape.positions += random.below(30);
}

void make_it_a_ring(RowsShape& shape, int64_t window, Random& random) {
  const SequenceShape& rows = shape.first();
  shape.ring_window = window;
  shape.capacity = shape.ring_window - 1 + rows.rows + (random.one_in(2) ? 0 : random.below(4));
  shape.positions = std::max(shape.positions, shape.capacity + 1);
}

std::vector<int64_t> add_rows(Case& call, Random& random, const RowsShape& shape, int64_t done, int sequence_rows) {
  const auto sequences = static_cast<int64_t>(shape.sequences.size());
  Input& counts = call.inputs[static_cast<size_t>(sequence_rows)];
  call.inputs[kRowMap] = make_row_map(random, shape);
  call.inputs[kPast] = int32s({sequences});
  counts = int32s({sequences});
  call.inputs[kParents] = int32s({done + shape.rows()});
  std::vector<int64_t> last;
  int64_t first = 0;
  for (int64_t b = 0; b < sequences; ++b) {
    const SequenceShape& sequence = shape.sequences[static_cast<size_t>(b)];
    const int64_t past = sequence.past - done;
    call.inputs[kPast].set(b, static_cast<int32_t>(past));
    counts.set(b, static_cast<int32_t>(sequence.rows));
    last.push_back(past + add_parents(random, first, done + sequence.rows, &call.inputs[kParents]));
    first += sequence.rows;
  }
  return last;
}

std::vector<int32_t> rows_written(const Case& call, const RowsShape& shape) {
  std::vector<int32_t> rows;
  for (size_t b = 0; b < shape.sequences.size(); ++b) {
    const SequenceShape& sequence = shape.sequences[b];
    const int64_t begin = static_cast<int64_t>(b) * shape.positions;
    for (int64_t i = sequence.past; i < sequence.used(); ++i) {
      rows.push_back(call.inputs[kRowMap].get<int32_t>(begin + i));
    }
  }
  return rows;
}

std::vector<Case> take_apart(const Case& call) {
  const int64_t sequences = call.inputs[kPast].dims[0];
  const auto cut = [](const Input& from, int64_t begin, int64_t count) {
    Input part = from;
    const size_t bytes = from.bytes.size() / static_cast<size_t>(from.dims[0]);
    part.dims[0] = count;
    part.bytes.assign(from.bytes.begin() + begin * static_cast<int64_t>(bytes),
                      from.bytes.begin() + (begin + count) * static_cast<int64_t>(bytes));
    return part;
  };
  std::vector<Case> parts;
  int64_t first = 0;
  for (int64_t b = 0; sequences > 1 && b < sequences; ++b) {
    Case part = call;
    const Input& counts = call.inputs.back();
    const int64_t rows = counts.get<int32_t>(b),
                  ranges = static_cast<int64_t>(call.writable.size()) / call.outputs[0][0];
    part.inputs[kRowsIn] = cut(call.inputs[kRowsIn], first, rows);
    part.inputs[kParents] = cut(call.inputs[kParents], first, rows);
    part.inputs[kPast] = cut(call.inputs[kPast], b, 1);
    part.inputs[kRowMap] = cut(call.inputs[kRowMap], b, 1);
    part.inputs.back() = cut(counts, b, 1);
    part.outputs[0][0] = rows;
    part.writable.assign(call.writable.begin() + first * ranges, call.writable.begin() + (first + rows) * ranges);
    part.written.clear();
    parts.push_back(std::move(part));
    first += rows;
  }
  return parts;
}

std::vector<Mistake> row_mistakes() {
  return {{"row_map out of range", wrong_row},
          {"row_map twice", double_row},
          {"row_map: two write a row", [](Case& c, Random& r) { return foreign_row(c, r, true); }},
          {"row_map: others read a row", [](Case& c, Random& r) { return foreign_row(c, r, false); }},
          {"too little room", too_little_room},
          {"past_length", wrong_past},
          {"sequence_rows", wrong_sequence_rows},
          {"parents", wrong_parent},
          {"nodes of earlier passes of several", many_parents},
          {"fewer parents than rows", few_parents},
          {"no rows", no_rows}};
}

}  // namespace edge_rt::fuzz
