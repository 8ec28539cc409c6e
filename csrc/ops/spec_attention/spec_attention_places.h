// What the host says of a pass of SpecAttention that changes from one pass to the next: where its rows lie in the
// cache, and which follows which. It is checked before a pass, and again before a recorded one is replayed.
#pragma once

#include <string>
#include <vector>

#include "ops/spec_attention/spec_attention.h"

namespace edge_rt {

// What is wrong with the rows of a pass, whose row_map has `mapped` entries; empty: nothing. Rows that will be written
// must exist, be different, and hold nothing that the pass reads: all that is committed, or what the first of its rows
// sees through the window.
std::string find_bad_rows(const AttentionPass& pass, int64_t mapped);

// What is wrong with the rows of passes that are well each by itself: none may write a row that another reads or
// writes. Rows that several read, and none writes, are their common beginning.
std::string find_foreign_rows(const std::vector<AttentionPass>& passes);

// Finds the depths of all nodes of a pass, into memory for as many, and whether they are a chain; or what is wrong with
// parents. The deepest must be at one of the `positions` that cos and sin have rows for.
std::string find_depths(int64_t positions, int32_t* depths, AttentionPass* pass);

}  // namespace edge_rt
