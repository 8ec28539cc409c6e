#version 460
// Rows by expert, those of each in their order. Grid: one block, which takes THREADS experts at a time, a thread each.
#define THREADS 128
#include "gpu/vulkan/kernel.glsl"
#include "ops/experts/vulkan/experts.glsl"

const int STAGED = 1024;
shared int ids_of_stage[STAGED];
shared int counts_of_experts[THREADS];

// Ids from place number `first` on, as many as have room. All threads of the block call it together.
void stage(int first, int count) {
  Ints ids = args.routing.ids;
  meet();
  for (int i = thread(); i < count; i += THREADS) ids_of_stage[i] = ids.at[first + i];
  meet();
}

void main() {
  const int experts = args.routing.experts, chosen = args.routing.chosen, all = low(args.routing.rows) * chosen;
  ActiveExperts to = args.active_;
  Ints slots = args.slots, numbers = args.numbers, places = args.places, totals = args.counts;
  int begin = 0, slot = 0, group = 0;  // of those before
  for (int first_expert = 0; first_expert < experts; first_expert += THREADS) {
    const int e = first_expert + thread();
    int count = 0;
    for (int first = 0; first < all; first += STAGED) {
      const int staged = min(all - first, STAGED);
      stage(first, staged);
      for (int i = 0; i < staged; ++i) count += ids_of_stage[i] == e ? 1 : 0;
    }
    counts_of_experts[thread()] = count;
    meet();
    int own_begin, own_slot, own_group;
    for (int i = 0; i < THREADS; ++i) {
      if (i == thread()) {
        own_begin = begin;
        own_slot = slot;
        own_group = group;
      }
      const int of_expert = counts_of_experts[i];
      begin += of_expert;
      slot += of_expert > 0 ? 1 : 0;
      group += (of_expert + GROUP_ROWS - 1) / GROUP_ROWS;
    }
    if (count > 0) {
      to.at[own_slot].expert = e;
      to.at[own_slot].begin = own_begin;
      to.at[own_slot].rows = count;
      to.at[own_slot].first_group = own_group;
    }
    int place = own_begin;
    for (int first = 0; first < all; first += STAGED) {
      const int staged = min(all - first, STAGED);
      stage(first, staged);
      for (int i = 0; i < staged; ++i) {
        if (ids_of_stage[i] != e) continue;
        slots.at[place] = own_slot;
        numbers.at[place] = (first + i) / chosen;
        places.at[first + i] = place;
        ++place;
      }
    }
  }
  if (thread() != 0) return;
  totals.at[0] = slot;
  totals.at[1] = group;
}
