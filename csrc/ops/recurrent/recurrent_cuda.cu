// What the host says of a pass over states, for all operators of the pass.
#include "gpu/cuda/device.h"
#include "ops/recurrent/recurrent_gpu.h"

namespace edge_rt::gpu {

// Grid: one block. The steps are those of find_steps (recurrent_check.cc).
EDGE_RT_KERNEL(state_head, kHeadThreads, StateHeadArgs) {
  const int32_t certain = *args.certain;
  StateStep* const steps = args.head->steps();
  for (int64_t i = thread(); i < args.rows; i += kHeadThreads) {
    const int32_t parent = args.parents[i];
    bool is_last = i >= certain && parent >= certain;
    for (int64_t j = i + 1; is_last && j < args.rows; ++j) is_last = args.parents[j] != parent;
    // Whether it takes its parent's place, until the levels are known.
    steps[i] = {-1, is_last ? 1 : -1, i + 1 < args.rows && args.parents[i + 1] == i};
  }
  barrier();
  if (thread() != 0) return;
  int32_t count = 0;
  while (count < args.most && args.advance[count] >= 0) ++count;
  *args.head = {*args.past, certain, count, *args.index, *args.slot};
  for (int64_t i = certain; i < args.rows; ++i) {
    const int32_t parent = args.parents[i], from = parent < certain ? -1 : steps[parent].to;
    steps[i].from = from;
    steps[i].to = steps[i].to > 0 ? from : from + 1;
  }
}

}  // namespace edge_rt::gpu
