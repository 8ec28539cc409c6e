// Experts on a GPU.
//
// Which experts have rows is known there alone: as many blocks of threads are started as there may be groups of an
// expert's rows, and those that are left over end at once. Rows lie one behind the other by expert, and rounded
// ones likewise, so that those of an expert are Activations of their own. What each made waits until a row's experts
// are added up, in the order of their numbers.
#pragma once

#include "common/pieces.h"
#include "gpu/launcher.h"
#include "ops/experts/experts.h"

namespace edge_rt::gpu {

constexpr int kRouteThreads = 128;
constexpr int kGatherThreads = 256;

// An expert that has rows: its number, where they begin among those of all, and how they are rounded.
struct ActiveExpert {
  int32_t expert, begin, rows;
  int32_t first_group;  // of kGroupRows rows
  RoundRows up, down;
};

// The products of a group of an expert's rows.
struct ExpertGroup {
  LinearRows up, down;
};

// Everything in device memory.
struct ExpertsJob {
  Routing routing;              // x: behind the norm, if there is one
  RoundRows norm, expert_norm;  // a weight says whether there is one
  float *normed, *expert_normed;
  PackedParts gate_up, down;  // of all experts
  const float *gate_up_bias, *down_bias;
  LinearSteps steps;
  const float* x;  // [rows][width]: what experts read; nullptr: what the router reads, or what a norm of theirs makes
  int64_t width, intermediate;
  Flag has_shares;
  const float *shared, *residual;  // behind the sum, unless a norm comes before
  float residual_scale;
  LinearRows finish, finish_sum;  // a post_norm says whether there is one
  float* y;
  // Scratch memory, of rows * chosen places.
  int32_t* counts;       // of experts with rows, and of groups
  ActiveExpert* active;  // experts with rows, rising
  ExpertGroup* groups;   // of all of them
  int32_t* slots;        // of a place: its expert's number in `active`
  int32_t* numbers;      // of a place: the row
  int32_t* places;       // of a row's chosen expert: the place
  Activations up_in, down_in;
  float* made;  // [places][intermediate]
  float* outs;  // [places][width]

  int64_t place_count() const { return routing.rows * routing.chosen; }
  // Every expert's last group may lack rows.
  int64_t most_groups() const { return (place_count() + (kGroupRows - 1) * most_active()) / kGroupRows; }
  int64_t most_active() const { return place_count() < routing.experts ? place_count() : routing.experts; }
};

// Scratch memory for a job, and its places in it; without memory the bytes alone.
size_t place_experts(char* memory, ExpertsJob* job);

// Computes a job. False: the launcher could not.
bool enqueue_experts(Launcher* launcher, const ExpertsJob& job);

}  // namespace edge_rt::gpu
