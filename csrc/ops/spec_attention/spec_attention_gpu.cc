#include "ops/spec_attention/spec_attention_gpu.h"

#include <algorithm>

#include "common/pieces.h"
#include "ops/spec_attention/spec_attention_gpu_args.h"

namespace edge_rt::gpu {
namespace {

// With more rows blocks join the spans of their queries themselves: states of all spans would take too much memory.
constexpr int64_t kFewRows = 16;

// What blocks are made of: on GPUs with little shared memory they have fewer queries, one kernel has the cases of all
// formats, a block prepares one head, and there may be too many blocks for one side of a grid.
struct Geometry {
  int most_queries;
  int query_words;  // that queries may take of shared memory
  int row_heads;
  bool puts_heads_along_y;
  const char* kernel_of_all;  // nullptr: each format has its own
};
// The numbers of attention_span.comp are those of kSmall.
constexpr Geometry kLarge{kAttendQueries, kQueryWords, kRowWarps, false, nullptr},
    kSmall{8, 1280, 1, true, "attention_span"};
static_assert(kSmall.query_words / kMaxHeadDim >= 2, "heads of every size leave room for some queries");

const Geometry& geometry_of(const Launcher& launcher) {
  return launcher.traits().shared_bytes < Traits().shared_bytes ? kSmall : kLarge;
}

constexpr const char* kAttendKernels[kKvFormatCount] = {"attention_f32",         "attention_f16",  "attention_int8",
                                                        "attention_k8v4",        "attention_int4", "attention_int4x2",
                                                        "attention_int4x2_upper"};

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Spans of which a pass sees some position, at the most.
int64_t most_spans(const AttentionPass& pass) {
  if (pass.window == 0) return divide_up(pass.capacity, kKvSpan);
  // What is seen may begin anywhere in a span.
  const int64_t seen = std::min(pass.capacity, pass.window - 1 + pass.done + pass.rows);
  return divide_up(seen - 1, kKvSpan) + 1;
}

size_t lay_out(char* base, int64_t spans, AttentionArgs* args) {
  AttentionPass& pass = args->pass;
  Pieces pieces(base);
  const int64_t queries = pass.rows * pass.heads;
  if (pass.has_query_codes()) {
    pass.query_codes = pieces.take<int8_t>(queries * padded_codes(pass.head_dim));
    pass.query_scales = pieces.take<float>(queries * pass.groups());
    pass.query_sums = pieces.take<int32_t>(queries * pass.groups());
  } else {
    pass.queries = pieces.take<float>(queries * pass.padded_dim);
  }
  args->states.peak = pieces.take<float>(spans * queries);
  args->states.sum = pieces.take<float>(spans * queries);
  args->states.output = pieces.take<float>(spans * queries * pass.padded_dim);
  return pieces.used();
}

int64_t spans_of(const AttentionPass& pass) { return pass.rows > kFewRows ? 1 : most_spans(pass); }

}  // namespace

size_t attention_tree_bytes(int64_t nodes) { return static_cast<size_t>(kTreeHead + nodes) * sizeof(int32_t); }

bool enqueue_attention_tree(Launcher* launcher, const int32_t* parents, int64_t nodes, void* tree) {
  return launcher->launch("attention_tree", 1, 1, TreeArgs{parents, nodes, static_cast<int32_t*>(tree)});
}

size_t attention_scratch_bytes(const AttentionPass& pass) {
  AttentionArgs args{};
  args.pass = pass;
  return lay_out(nullptr, spans_of(pass), &args);
}

bool enqueue_attention(Launcher* launcher, const AttentionPass& pass, const int32_t* past, const void* tree,
                       void* scratch) {
  AttentionArgs args{};
  args.pass = pass;
  args.past = past;
  args.tree = static_cast<const int32_t*>(tree);
  args.pass.depths = args.tree + kTreeHead + pass.done;
  args.pass.first_query = 0;
  args.folds = pass.rows > kFewRows;
  const int64_t spans = spans_of(pass);
  lay_out(static_cast<char*>(scratch), spans, &args);
  const Geometry& geometry = geometry_of(*launcher);
  const int words = pass.has_query_codes() ? kCodedQueryWords * pass.groups() : pass.padded_dim;
  args.block_queries = std::min(geometry.most_queries, geometry.query_words / words);
  const int heads = pass.heads + (pass.shares_cache ? 0 : 2 * pass.kv_heads), rows = static_cast<int>(pass.rows);
  int64_t blocks = divide_up(pass.rows * pass.group, args.block_queries), blocks_y = pass.kv_heads;
  // Where heads do not lie along y spans do, and there is one if they are folded.
  if (!args.folds || !geometry.puts_heads_along_y) {
    blocks *= pass.kv_heads;
    blocks_y = spans;
  }
  const uint32_t choices = uint32_t{1} << pass.format;
  const char* const attend = geometry.kernel_of_all != nullptr ? geometry.kernel_of_all : kAttendKernels[pass.format];
  return launcher->launch({"attention_rows", choices}, rows, static_cast<int>(divide_up(heads, geometry.row_heads)),
                          args) &&
         launcher->launch({attend, choices}, static_cast<int>(blocks), static_cast<int>(blocks_y), args) &&
         launcher->launch({"attention_finish", choices}, rows, pass.heads, args);
}

}  // namespace edge_rt::gpu
