#version 460
// What is to be known of a draft tree: whether it is a chain, and the depth of every node. One block.
#define THREADS 128
#include "gpu/vulkan/kernel.glsl"

const int kTreeHead = 4;

struct TreeArgs {
  Ints parents;
  Long nodes;
  Ints tree;
};
KERNEL(TreeArgs)

shared int branches;

void main() {
  const int nodes = low(args.nodes);
  if (thread() == 0) branches = 0;
  meet();
  for (int i = thread(); i < nodes; i += THREADS) {
    if (args.parents.at[i] != i - 1) branches = 1;
  }
  meet();
  const bool is_chain = branches == 0;
  if (thread() == 0) args.tree.at[0] = is_chain ? 1 : 0;
  for (int i = thread(); i < nodes; i += THREADS) {
    int depth = is_chain ? i : 0;
    for (int node = is_chain ? -1 : args.parents.at[i]; node >= 0; node = args.parents.at[node]) ++depth;
    args.tree.at[kTreeHead + i] = depth;
  }
}
