// Rows of a pass that belong to one sequence: where they lie in a cache, and which follows which. Operators that keep
// something of every row for those behind it are written against this.
#pragma once

#include <cstdint>

#include "common/flag.h"

namespace edge_rt {

struct PassRows {
  int64_t rows, past, capacity;
  int64_t done;                      // nodes of the tree before the rows of the pass: earlier passes appended them
  int64_t window;                    // rows that a row sees, itself included; 0: all before it
  Flag chain;                        // every node's parent is the node before it
  const int32_t *row_map, *parents;  // parents: [done + rows], numbers of nodes
  const int32_t* depths;             // [rows], and before it those of `done`: 0 follows the committed rows

  // First position that a row at `position` sees.
  int64_t first_seen(int64_t position) const { return window > 0 && position + 1 > window ? position + 1 - window : 0; }
  // Where a row of the pass lies in the cache.
  int64_t place_of(int64_t row) const { return row_map[past + done + row]; }
};

}  // namespace edge_rt
