// Parts of calls that several ops share: packed matrices, and what attention over a cache needs.
#pragma once

#include "ops/quant_linear/quant_linear.h"
#include "ops/spec_attention/spec_attention.h"
#include "tests/fuzz_case.h"

namespace edge_rt::fuzz {

std::string format_name(WeightFormat format);

// Whether matrices in two formats have the same shape, so that an operator cannot tell one from the other.
bool are_alike(const std::string& one, const std::string& other);

struct MatrixSizes {
  WeightFormat format;
  int64_t outputs, inputs;
};

// Moderate weights; padding columns are 0 as the format wants, padding rows are rubbish that must not matter.
Input packed_matrix(Random& random, const MatrixSizes& sizes);

// Numbers of some blocks of a matrix's input, of whole units of all formats; empty for none, or for floats.
std::string fine_blocks(Random& random, const std::vector<WeightFormat>& formats, int64_t inputs);
// What is no such list.
std::string wrong_fine_blocks(Random& random);

// Inputs that SpecAttention and DecoderLayer have at the same places. Input 0, qkv or x, has a row
// for each of the pass.
enum AttentionInput : int {
  kRowsIn,
  kCache,
  kPast,
  kRowMap,
  kParents,
  kFormats,
  kCos,
  kSin,
  kQueryNorm,
  kKeyNorm,
  kSinks
};
// A convolution has the first five of them, and then others.
enum ConvInput : int { kWeight = kParents + 1, kBias, kConvSequenceRows };

// One of a pass's sequences: rows behind `past` positions, the first of which may be those of the first sequence.
struct SequenceShape {
  int64_t rows, past, shared = 0;

  int64_t used() const { return past + rows; }
};

struct RowsShape {
  int64_t capacity;
  std::vector<SequenceShape> sequences;
  int64_t positions;    // of row_map; more than `capacity` make a ring, which needs a window
  int64_t ring_window;  // 0: no ring, and any window or none

  const SequenceShape& first() const { return sequences.front(); }
  int64_t rows() const {
    int64_t sum = 0;
    for (const SequenceShape& sequence : sequences) sum += sequence.rows;
    return sum;
  }
  bool is_ring() const { return ring_window > 0; }
  // The first position of a ring that the pass sees, and the first whose row is looked at.
  int64_t first_seen() const { return is_ring() ? first().past + 1 - ring_window : 0; }
  int64_t first_mapped() const { return first_seen() / kKvSpan * kKvSpan; }
};

struct AttentionShape : RowsShape {
  int64_t kv_heads, heads, dim, row_bytes;
  KvFormatId format;
  bool has_gates = false;

  int64_t width() const { return ((has_gates ? 2 : 1) * heads + 2 * kv_heads) * dim; }
};

// Room for all rows; or with room for what the first row of the pass sees and for the pass, and little more.
void make_room(RowsShape& shape, Random& random);
void make_it_a_ring(RowsShape& shape, int64_t window, Random& random);
// Adds row_map, past_length, parents and sequence_rows, at the places above and at `sequence_rows`. Of one sequence the
// last `done` committed rows are nodes of the tree instead. Returns every sequence's greatest position.
std::vector<int64_t> add_rows(Case& call, Random& random, const RowsShape& shape, int64_t done, int sequence_rows);
// Rows of the cache that the pass writes, in order.
std::vector<int32_t> rows_written(const Case& call, const RowsShape& shape);
// The sequences of a call, which are its parts; sequence_rows is its last input.
std::vector<Case> take_apart(const Case& call);
// Mistakes in those inputs, likewise.
std::vector<Mistake> row_mistakes();

// `is_in_blocks`: heads * dim is a multiple of 32, as rounded inputs of a matrix must be.
AttentionShape any_attention(Random& random, bool is_in_blocks);

// Where a row of a plane lies: its elements, in one or two parts, and last its scales and minimums, if there are any.
std::vector<ByteRange> places_in_cache(const AttentionShape& shape, int64_t plane, int64_t row);

// Adds inputs 1 to 10, the constants of keys, what follows them, the attributes, which bytes of the cache the call
// writes, and what the call is about.
void add_attention(Case& call, Random& random, const AttentionShape& shape, int key_constants);

// Where the constants of keys begin: behind all other inputs.
constexpr int kKeyConstants = kSinks + 1, kLayerKeyConstants = kSinks + 7;
// query_scale of SpecAttention, and of DecoderLayer; and sequence_rows.
constexpr int query_scale_of(int key_constants) { return key_constants + (key_constants == kKeyConstants ? 3 : 9); }
constexpr int sequence_rows_of(int key_constants) { return key_constants + (key_constants == kKeyConstants ? 4 : 12); }

// Dimensions of those inputs that are checked.
CheckedDims attention_dims(int key_constants);
std::vector<Mistake> attention_mistakes(int key_constants);
// Calls of SpecAttention, or of what has all of its inputs and mistakes.
Subject attention_subject(const char* op, std::function<Case(Random&)> make, int key_constants);
// What good calls are counted by.
std::vector<std::string> attention_features();

}  // namespace edge_rt::fuzz
