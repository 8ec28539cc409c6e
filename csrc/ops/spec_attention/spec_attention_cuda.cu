// SpecAttention on a GPU: the bits of the CPU's kernels, whose order of operations spec_attention.h gives.
//
// Four kernels, one behind the other: the depths of the tree's nodes (once for all layers of a pass); a warp per head
// of the rows, which prepares queries and appends keys and values; a block per span of keys and some queries of a kv
// head, of which each warp has a chunk; and a block per query, which joins its spans. Passes of many rows have blocks
// enough without sharing out their spans: there a block joins all spans of its queries as it goes. What changes from
// pass to pass (past, row map, parents) is read from device memory, and grids are as large as the cache allows, so that
// a recorded graph holds for every length: blocks of spans that do not exist return at once.
#include <type_traits>

#include "gpu/cuda/lane_math.h"
#include "ops/spec_attention/spec_attention_gpu_args.h"

namespace edge_rt::gpu {
namespace {

#include "ops/spec_attention/spec_attention_rows_cuda.inl"
#include "ops/spec_attention/spec_attention_append_cuda.inl"
#include "ops/spec_attention/spec_attention_keys_cuda.inl"
#include "ops/spec_attention/spec_attention_values_cuda.inl"
#include "ops/spec_attention/spec_attention_span_cuda.inl"
#include "ops/spec_attention/spec_attention_finish_cuda.inl"

}  // namespace

EDGE_RT_KERNEL(attention_tree, kTreeThreads, TreeArgs) {
  EDGE_RT_SHARED int branches;
  if (thread() == 0) branches = 0;
  barrier();
  for (int64_t i = thread(); i < args.nodes; i += kTreeThreads) {
    if (args.parents[i] != i - 1) branches = 1;
  }
  barrier();
  const bool is_chain = branches == 0;
  if (thread() == 0) args.tree[0] = is_chain ? 1 : 0;
  for (int64_t i = thread(); i < args.nodes; i += kTreeThreads) {
    int depth = is_chain ? static_cast<int>(i) : 0;
    for (int32_t node = args.parents[i]; !is_chain && node >= 0; node = args.parents[node]) ++depth;
    args.tree[kTreeHead + i] = depth;
  }
}

// Grid: rows, and heads of q, k and v by kRowWarps.
EDGE_RT_KERNEL(attention_rows, 32 * kRowWarps, AttentionArgs) {
  EDGE_RT_SHARED RowShared shared[kRowWarps];
  const AttentionPass& pass = args.pass;
  const int64_t row = block_x();
  const int index = block_y() * kRowWarps + warp();
  if (index >= pass.heads + (pass.shares_cache ? 0 : 2 * pass.kv_heads)) return;
  const int64_t past = *args.past;
  RowShared* mine = &shared[warp()];
  const RowHead head{pass, mine->head, past + pass.depths[row]};
  if (index < pass.heads) {
    prepare_query(head, row, index);
    return;
  }
  const int64_t at = pass.row_map[past + pass.done + row];
  if (index < pass.heads + pass.kv_heads) {
    prepare_key(head, row, index - pass.heads);
    append_key(pass, index - pass.heads, at, mine);
  } else {
    append_value(head, row, index - pass.heads - pass.kv_heads, at);
  }
}

// Grid: kv heads times blocks of queries, and spans unless they are folded as they come.
#define EDGE_RT_ATTEND(name, key, value)                \
  EDGE_RT_KERNEL(name, kAttendThreads, AttentionArgs) { \
    EDGE_RT_SHARED AttendShared shared;                 \
    attend<key, value>(args, &shared);                  \
  }
EDGE_RT_ATTEND(attention_f32, kCodedF32, kCodedF32)
EDGE_RT_ATTEND(attention_f16, kCodedF16, kCodedF16)
EDGE_RT_ATTEND(attention_int8, kCodedInt8, kCodedInt8)
EDGE_RT_ATTEND(attention_k8v4, kCodedInt8, kCodedNibbles)
EDGE_RT_ATTEND(attention_int4, kCodedNibbles, kCodedNibbles)
EDGE_RT_ATTEND(attention_int4x2, kCodedPairs, kCodedPairs)
EDGE_RT_ATTEND(attention_int4x2_upper, kCodedUpper, kCodedUpper)
#undef EDGE_RT_ATTEND

// Grid: rows and heads.
EDGE_RT_KERNEL(attention_finish, kFinishThreads, AttentionArgs) {
  EDGE_RT_SHARED FinishShared shared;
  finish(args, &shared);
}

}  // namespace edge_rt::gpu
