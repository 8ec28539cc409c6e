#version 460
// Which experts a row has, and their weights. Grid: rows. Sums are in the order of experts_cpu.inl.
//
// An expert's numbers lie in memory, and are one thread's: that of its number modulo THREADS, its other digit being the
// round in which the thread comes to it. What others need of them goes through shared memory.
#define THREADS 128
#include "gpu/vulkan/kernel.glsl"
#include "gpu/vulkan/lane_math.glsl"
#include "ops/experts/vulkan/experts.glsl"

const int MOST_EXPERTS = 4096, ROUNDS = MOST_EXPERTS / THREADS;
const int NOBODY = 0x7fffffff;
const uint NEGATIVE_INFINITY = 0xff800000u;

shared float values[THREADS];                  // of a round
shared uint chosen_bits[MOST_EXPERTS / 32];    // of experts
shared uint group_bits[MOST_EXPERTS / 32];     // of groups
float sums_of_groups[ROUNDS];                  // of the thread's groups, which are dealt out as experts are

Floats likely_of_row() {
  return row_of(args.routing.scores, block_x(), (args.routing.experts + 15) / 16 * 16);
}
int rounds_of(int count) { return (count + THREADS - 1) / THREADS; }
int item_of(int round) { return round * THREADS + thread(); }
bool has_bit(uint bits, int round) { return (bits >> uint(round) & 1u) != 0u; }

bool is_number(float value) { return (floatBitsToUint(value) & ~SIGN_BIT) <= INFINITY_BITS; }

// The sum of the numbers of experts that `mine` has bits of, from the first to the last. All threads get it. Where none
// is added 0 is, which changes nothing: the sum is not -0.
float sum_of_experts(uint mine) {
  Floats likely = likely_of_row();
  float sum = 0.0;
  [[dont_unroll]] for (int round = 0; round < rounds_of(args.routing.experts); ++round) {
    values[thread()] = has_bit(mine, round) ? likely.at[item_of(round)] : 0.0;
    meet();
    [[dont_unroll]] for (int i = 0; i < THREADS; ++i) sum = sum + values[i];
    meet();
  }
  return sum;
}

// The largest of their numbers.
float largest_of_experts(uint mine) {
  Floats likely = likely_of_row();
  float most = BITS(NEGATIVE_INFINITY);
  for (int round = 0; round < rounds_of(args.routing.experts); ++round) {
    if (has_bit(mine, round)) most = vf_max(likely.at[item_of(round)], most);
  }
  values[thread()] = most;
  meet();
  for (int i = 0; i < THREADS; ++i) most = vf_max(values[i], most);
  meet();
  return most;
}

// exp(number - largest) / sum of these, for the experts of `mine`.
void make_softmax(uint mine) {
  Floats likely = likely_of_row();
  const int rounds = rounds_of(args.routing.experts);
  const float most = largest_of_experts(mine);
  [[dont_unroll]] for (int round = 0; round < rounds; ++round) {
    if (has_bit(mine, round)) likely.at[item_of(round)] = vf_exp(likely.at[item_of(round)] - most);
  }
  const float sum = sum_of_experts(mine);
  [[dont_unroll]] for (int round = 0; round < rounds; ++round) {
    if (has_bit(mine, round)) likely.at[item_of(round)] = div_exact(likely.at[item_of(round)], sum);
  }
}

float rank_of(int e) {
  Floats likely = likely_of_row(), choice_bias = args.routing.choice_bias;
  return is_null(uvec2(choice_bias)) ? likely.at[e] : likely.at[e] + choice_bias.at[e];
}

// The best of some experts or groups: the one of the largest rank, of equal ones the first. As the CPU goes from the
// first one on and takes what is greater, that is the first one of all if its rank is no number.
struct Best {
  float rank;
  int item;   // of those whose rank is a number
  int first;  // of all, doubled, and 1 if its rank is no number
};
shared Best best_of_thread[THREADS];
shared Best best_of_threads[8];

Best better(Best a, Best b) {
  const bool takes_b = b.item != NOBODY &&
                       (a.item == NOBODY || b.rank > a.rank || (b.rank == a.rank && b.item < a.item));
  return Best(takes_b ? b.rank : a.rank, takes_b ? b.item : a.item, min(a.first, b.first));
}

// Of the thread's items that `left` has bits of.
Best best_of(uint left, int rounds, bool of_groups) {
  Best best = Best(0.0, NOBODY, NOBODY);
  for (int round = 0; round < rounds; ++round) {
    if (!has_bit(left, round)) continue;
    const int item = item_of(round);
    const float rank = of_groups ? sums_of_groups[round] : rank_of(item);
    const bool is_one = is_number(rank);
    best = better(best, Best(rank, is_one ? item : NOBODY, 2 * item + (is_one ? 0 : 1)));
  }
  return best;
}

// Takes so many of all threads' items, which they leave then, and marks them.
uint take_best(uint left, int items, int count, bool of_groups) {
  const int rounds = rounds_of(items);
  uint taken = 0u;
  Best own = best_of(left, rounds, of_groups);
  for (int i = 0; i < count; ++i) {
    best_of_thread[thread()] = own;
    meet();
    if (thread() < 8) {
      Best best = best_of_thread[thread()];
      for (int k = thread() + 8; k < THREADS; k += 8) best = better(best, best_of_thread[k]);
      best_of_threads[thread()] = best;
    }
    meet();
    Best best = best_of_threads[0];
    for (int k = 1; k < 8; ++k) best = better(best, best_of_threads[k]);
    const int item = (best.first & 1) != 0 ? best.first >> 1 : best.item;
    if (thread() == 0) {
      if (of_groups) {
        group_bits[item >> 5] |= 1u << uint(item & 31);
      } else {
        chosen_bits[item >> 5] |= 1u << uint(item & 31);
      }
    }
    if (item % THREADS == thread()) {
      const uint bit = 1u << uint(item / THREADS);
      taken |= bit;
      left &= ~bit;
      own = best_of(left, rounds, of_groups);
    }
  }
  meet();
  return taken;
}

// The sum of the two best ranks of each of the thread's groups.
void add_up_groups() {
  const int experts = args.routing.experts, groups = args.routing.groups, size = experts / groups;
  [[dont_unroll]] for (int round = 0; round < rounds_of(groups); ++round) {
    const int begin = item_of(round) * size;
    float first = 0.0, second = 0.0;
    [[dont_unroll]] for (int of_experts = 0; of_experts < rounds_of(experts); ++of_experts) {
      const int staged = of_experts * THREADS;
      values[thread()] = staged + thread() < experts ? rank_of(staged + thread()) : 0.0;
      meet();
      const int last = min(begin + size, min(staged + THREADS, experts));
      for (int e = max(begin, staged); e < last; ++e) {
        const float rank = values[e - staged];
        const int i = e - begin;
        if (i == 0 || rank > first) {
          second = i == 0 ? 0.0 : first;
          first = rank;
        } else if (i == 1 || rank > second) {
          second = rank;
        }
      }
      meet();
    }
    sums_of_groups[round] = first + second;
  }
}

// Bits of the thread's items, of so many.
uint items_of_thread(int count) {
  uint mine = 0u;
  for (int round = 0; round < rounds_of(count); ++round) {
    if (item_of(round) < count) mine |= 1u << uint(round);
  }
  return mine;
}

// How many chosen experts have smaller numbers.
int place_among_chosen(int e) {
  int place = bitCount(chosen_bits[e >> 5] & ((1u << uint(e & 31)) - 1u));
  for (int word = 0; word < e >> 5; ++word) place += bitCount(chosen_bits[word]);
  return place;
}

void main() {
  const int experts = args.routing.experts, chosen = args.routing.chosen, rounds = rounds_of(experts);
  const int gating = args.routing.gating, groups = args.routing.groups, chosen_groups = args.routing.chosen_groups;
  const uint mine = items_of_thread(experts);
  Floats likely = likely_of_row();
  chosen_bits[thread()] = 0u;
  group_bits[thread()] = 0u;
  meet();
  if (gating == GATING_SOFTMAX) {
    make_softmax(mine);
  } else if (gating == GATING_SIGMOID) {
    [[dont_unroll]] for (int round = 0; round < rounds; ++round) {
      if (has_bit(mine, round)) likely.at[item_of(round)] = vf_sigmoid(likely.at[item_of(round)]);
    }
  }
  uint left = mine;
  if (chosen_groups < groups) {
    add_up_groups();
    take_best(items_of_thread(groups), groups, chosen_groups, true);
    for (int round = 0; round < rounds; ++round) {
      const int group = item_of(round) / (experts / groups);
      if (has_bit(mine, round) && !has_bit(group_bits[group >> 5], group & 31)) left &= ~(1u << uint(round));
    }
  }
  const uint taken = take_best(left, experts, chosen, false);

  if (gating == GATING_CHOSEN) make_softmax(taken);
  const bool is_normalised = args.routing.is_normalised != 0;
  float divisor = 1.0;
  if (is_normalised) divisor = sum_of_experts(taken) + args.routing.epsilon;
  Ints ids = args.routing.ids;
  Floats weights = args.routing.weights, expert_scale = args.routing.expert_scale;
  [[dont_unroll]] for (int round = 0; round < rounds; ++round) {
    if (!has_bit(taken, round)) continue;
    const int e = item_of(round), at = block_x() * chosen + place_among_chosen(e);
    float weight = likely.at[e];
    if (is_normalised) weight = div_exact(weight, divisor);
    weight = weight * args.routing.scale;
    if (!is_null(uvec2(expert_scale))) weight = weight * expert_scale.at[e];
    ids.at[at] = e;
    weights.at[at] = weight;
  }
}
