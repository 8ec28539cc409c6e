#version 460
// What the host says of a pass over states, for all operators of the pass. Grid: one block. The steps are those of
// find_steps (recurrent_check.cc).
#define THREADS 128
#include "gpu/vulkan/kernel.glsl"
#include "ops/recurrent/vulkan/recurrent.glsl"

struct StateHeadArgs {
  Ints past, index, slot, advance, certain, parents;
  Long most, rows;
  StateHead head;
};
KERNEL(StateHeadArgs)

// Whether a row is the last one that follows a draft: it takes its place.
bool takes_over(int i, int certain, int rows) {
  Ints parents = args.parents;
  const int parent = parents.at[i];
  if (parent < certain) return false;
  for (int j = i + 1; j < rows; ++j) {
    if (parents.at[j] == parent) return false;
  }
  return true;
}

StateStep step_of(int from, int to, bool is_followed) {
  return StateStep(from, to, is_followed ? 1 : 0);
}

shared bool takes_over_of[THREADS];

void main() {
  StateHead head = args.head;
  Ints parents = args.parents, advance = args.advance, certain_at = args.certain;
  const int rows = low(args.rows), certain = certain_at.at[0];
  for (int i = thread(); i < certain; i += THREADS) {
    head.steps[i] = step_of(-1, -1, i + 1 < rows && parents.at[i + 1] == i);
  }
  // Drafts are one thread's, which sees what it wrote itself; the search for their last children is all threads'.
  for (int first = certain; first < rows; first += THREADS) {
    if (first + thread() < rows) takes_over_of[thread()] = takes_over(first + thread(), certain, rows);
    meet();
    if (thread() == 0) {
      for (int i = first; i < min(first + THREADS, rows); ++i) {
        const int parent = parents.at[i], from = parent < certain ? -1 : head.steps[parent].to;
        const int to = takes_over_of[i - first] ? from : from + 1;
        head.steps[i] = step_of(from, to, i + 1 < rows && parents.at[i + 1] == i);
      }
    }
    meet();
  }
  if (thread() != 0) return;
  const int most = low(args.most);
  int count = 0;
  while (count < most && advance.at[count] >= 0) ++count;
  Ints past = args.past, index = args.index, slot = args.slot;
  head.past = past.at[0];
  head.certain = certain;
  head.advance_count = count;
  head.index = index.at[0];
  head.slot = slot.at[0];
}
