#include "ops/pass_rows/pass_rows_check.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <vector>

namespace edge_rt {
namespace {

long long printable(int64_t value) { return static_cast<long long>(value); }

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

constexpr int64_t kSpan = 256;  // positions that attention looks at together, from their beginning on

// Whether rows from position `seen` on give one away that the pass writes, or it writes one twice.
std::string find_shared_row(const PassRows& pass, int64_t seen) {
  const int32_t *old_rows = pass.row_map + seen, *new_rows = pass.row_map + pass.past + pass.done;
  const int64_t old_count = pass.past + pass.done - seen;
  const Range given = range_of(new_rows, pass.rows);
  // Mostly new rows rise, and no old row lies between them.
  bool distinct = count_within(old_rows, old_count, given) == 0;
  for (int64_t i = 1; distinct && i < pass.rows; ++i) distinct = new_rows[i] > new_rows[i - 1];
  if (distinct) return {};
  std::vector<uint8_t> is_new(static_cast<size_t>(given.high - given.low + 1));
  for (int64_t i = 0; i < pass.rows; ++i) {
    uint8_t& mark = is_new[static_cast<size_t>(new_rows[i] - given.low)];
    if (mark != 0) return printed("row_map gives row %d to two positions", new_rows[i]);
    mark = 1;
  }
  for (int64_t i = 0; i < old_count; ++i) {
    const int32_t row = old_rows[i];
    if (row >= given.low && row <= given.high && is_new[static_cast<size_t>(row - given.low)] != 0) {
      return printed("row_map gives row %d of position %lld to the pass", row, printable(seen + i));
    }
  }
  return {};
}

// What is wrong with the rows of passes that are well each by itself: none may write a row that another reads or
// writes. Rows that several read, and none writes, are their common beginning.
std::string find_foreign_rows(const std::vector<PassRows>& passes) {
  std::vector<uint8_t> is_written(static_cast<size_t>(passes.front().capacity));
  for (const PassRows& pass : passes) {
    for (int64_t i = pass.past; i < pass.past + pass.rows; ++i) {
      uint8_t& mark = is_written[static_cast<size_t>(pass.row_map[i])];
      if (mark != 0) return printed("row_map gives row %d to two sequences of the pass", pass.row_map[i]);
      mark = 1;
    }
  }
  // A sequence does not read what it writes itself, as find_bad_rows says: whoever wrote it, it is not the reader.
  for (size_t sequence = 0; sequence < passes.size(); ++sequence) {
    const PassRows& pass = passes[sequence];
    uint8_t any = 0;
    for (int64_t i = pass.first_seen(pass.past); i < pass.past; ++i) {
      any |= is_written[static_cast<size_t>(pass.row_map[i])];
    }
    if (any == 0) continue;
    int64_t i = pass.first_seen(pass.past);
    while (is_written[static_cast<size_t>(pass.row_map[i])] == 0) ++i;
    return printed("row_map gives row %d of position %lld of sequence %zu to another sequence", pass.row_map[i],
                   printable(i), sequence);
  }
  return {};
}

}  // namespace

std::string printed(const char* format, ...) {
  char text[256];
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return text;
}

std::string find_bad_rows(const PassRows& pass, int64_t mapped) {
  const int64_t nodes = pass.done + pass.rows;
  if (pass.past < 0 || pass.past > mapped || nodes > mapped - pass.past) {
    return printed("past_length %lld and %lld rows of the pass, row_map has %lld positions", printable(pass.past),
                   printable(nodes), printable(mapped));
  }
  // Rows of positions that are no longer seen may have been given to new ones.
  const int64_t seen = pass.first_seen(pass.past);
  if (pass.past + nodes - seen > pass.capacity) {
    return printed("%lld positions seen and %lld rows of the pass, cache has %lld rows", printable(pass.past - seen),
                   printable(nodes), printable(pass.capacity));
  }
  // Entries before the window must be in range too.
  const int64_t begin = seen / kSpan * kSpan;
  const Range looked_at = range_of(pass.row_map + begin, pass.past + nodes - begin);
  if (looked_at.low < 0 || looked_at.high >= pass.capacity) {
    return printed("row_map holds %d, must be 0 to %lld", looked_at.low < 0 ? looked_at.low : looked_at.high,
                   printable(pass.capacity - 1));
  }
  return find_shared_row(pass, seen);
}

std::string find_depths(int64_t positions, int32_t* depths, PassRows* pass) {
  const int64_t nodes = pass->done + pass->rows;
  int32_t most = 0;
  pass->chain = true;
  for (int64_t i = 0; i < nodes; ++i) {
    const int32_t parent = pass->parents[i];
    if (parent < -1 || parent >= i) {
      return printed("parents[%lld] is %d, must be -1 to %lld", printable(i), parent, printable(i - 1));
    }
    depths[i] = parent < 0 ? 0 : depths[parent] + 1;
    most = std::max(most, depths[i]);
    pass->chain = pass->chain && parent == i - 1;
  }
  if (pass->past + most >= positions) {
    return printed("position %lld has no row in cos and sin, which have %lld", printable(pass->past + most),
                   printable(positions));
  }
  pass->depths = depths + pass->done;
  return {};
}

abi::Status* check_sequence_count(const ort::OpContext& context, int past_length, int64_t rows, int64_t* sequences) {
  if (rows < 1) return context.error("%s has no rows", context.input_name(0));
  if (abi::Status* bad = context.check_shape(past_length, {-1})) return bad;
  *sequences = context.input(past_length).dims[0];
  if (*sequences >= 1 && *sequences <= rows) return nullptr;
  return context.error("past_length has %lld sequences, must be 1 to %lld, as many as there are rows",
                       printable(*sequences), printable(rows));
}

abi::Status* check_sequence_rows(const ort::OpContext& context, int sequence_rows, int64_t sequences, int64_t rows) {
  const int32_t* const rows_of = context.input(sequence_rows).as<const int32_t>();
  int64_t sum = 0;
  for (int64_t i = 0; i < sequences; ++i) {
    sum += rows_of[i];
    if (rows_of[i] < 1 || sum > rows || (i + 1 == sequences && sum != rows)) {
      return context.error("sequence_rows[%lld] is %d, the pass has %lld rows and every sequence one of them at least",
                           printable(i), rows_of[i], printable(rows));
    }
  }
  return nullptr;
}

abi::Status* check_row_shapes(const ort::OpContext& context, const RowInputs& inputs, PassRows* all) {
  if (all->capacity < 1 || all->capacity > kMaxCacheRows) {
    return context.error("cache has %lld rows, must be 1 to %lld", printable(all->capacity), printable(kMaxCacheRows));
  }
  abi::Status* bad = nullptr;
  int64_t sequences = 0;
  if ((bad = check_sequence_count(context, inputs.past_length, all->rows, &sequences)) != nullptr) return bad;
  if ((bad = context.check_shape(inputs.row_map, {sequences, -1})) != nullptr ||
      (bad = context.check_shape(inputs.parents, {-1})) != nullptr ||
      (bad = context.check_shape(inputs.sequence_rows, {sequences})) != nullptr) {
    return bad;
  }
  const int64_t nodes = context.input(inputs.parents).dims[0];
  if (nodes < all->rows || (sequences > 1 && nodes > all->rows)) {
    return context.error("parents is [%lld], must be [%lld]%s", printable(nodes), printable(all->rows),
                         sequences > 1 ? " with more than one sequence" : ", or longer by the nodes of earlier passes");
  }
  all->done = nodes - all->rows;
  all->row_map = context.input(inputs.row_map).as<const int32_t>();
  all->parents = context.input(inputs.parents).as<const int32_t>();
  return nullptr;
}

std::string find_bad_sequences(const int32_t* past_length, const int32_t* sequence_rows, int64_t mapped,
                               int64_t positions, int32_t* depths, std::vector<PassRows>* passes) {
  for (size_t i = 0; i < passes->size(); ++i) {
    PassRows& pass = (*passes)[i];
    if (sequence_rows[i] != pass.rows) {
      return printed("sequence_rows[%zu] is %d, the pass has %lld rows of it", i, sequence_rows[i],
                     printable(pass.rows));
    }
    pass.past = past_length[i];
    std::string problem = find_bad_rows(pass, mapped);
    if (problem.empty()) problem = find_depths(positions, depths, &pass);
    if (!problem.empty()) return passes->size() == 1 ? problem : "sequence " + std::to_string(i) + ": " + problem;
    depths += pass.done + pass.rows;
  }
  return passes->size() == 1 ? std::string() : find_foreign_rows(*passes);
}

abi::Status* check_sequences(const ort::OpContext& context, const RowInputs& inputs, const PassRows& all,
                             int64_t positions, std::vector<PassRows>* passes, Depths* depths) {
  const int32_t* const past = context.input(inputs.past_length).as<const int32_t>();
  const int32_t* const rows_of = context.input(inputs.sequence_rows).as<const int32_t>();
  const int64_t sequences = context.input(inputs.past_length).dims[0], mapped = context.input(inputs.row_map).dims[1];
  if (abi::Status* bad = check_sequence_rows(context, inputs.sequence_rows, sequences, all.rows)) return bad;
  passes->assign(static_cast<size_t>(sequences), all);
  int64_t first = 0;
  for (int64_t i = 0; i < sequences; ++i) {
    PassRows& pass = (*passes)[static_cast<size_t>(i)];
    pass.rows = rows_of[i];
    pass.row_map += i * mapped;
    pass.parents += first;
    first += pass.rows;
  }
  const std::string problem =
      find_bad_sequences(past, rows_of, mapped, positions, depths->take(all.done + all.rows), passes);
  return problem.empty() ? nullptr : context.error("%s", problem.c_str());
}

}  // namespace edge_rt
