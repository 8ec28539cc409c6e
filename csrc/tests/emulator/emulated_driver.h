// A driver for machines without a GPU, for tests: open_driver of a library that is linked with it.
//
// Memory may be touched by copies and kernels only. Streams are queues: nothing runs before somebody waits for it, and
// then streams take turns in a drawn order. A copy to the host has happened when its stream was waited for, and one
// from pinned memory reads what is there when its turn comes. Graphs are lists of what was captured. Kernels are those
// of tests/emulator/simt.h, whatever the image of a module holds.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/cuda/driver.h"

namespace edge_rt::gpu::emulated {

struct Settings {
  size_t memory = size_t{1} << 30;  // of the device
  int devices = 1;
  int compute_major = 8, compute_minor = 7;
  int driver_version = 13000;
  uint64_t seed = 0;  // 0: in the order of calls, and threads of a block in turns
};

// Also forgets faults, and errors that a lost device would keep.
void configure(const Settings& settings);

// Makes a call of `function` fail with `code`: the one of that number from now on, counted from 0. A null function: any
// one that does not give something back. Number -1: none. An error of a kernel (kLaunchFailed) is kept by the device,
// and given by every later call; with kNotReady of cuStreamQuery it hangs from then on.
void set_fault(const char* function, int64_t number, CUresult code);
// Calls that the fault was counted over.
int64_t calls_counted();

// What was made and not given back.
struct Live {
  int64_t allocations, host_allocations, streams, modules, graphs, contexts;
  size_t bytes;  // of device memory

  int64_t all() const { return allocations + host_allocations + streams + modules + graphs + contexts; }
};
Live live();

// Kernels and graphs that ran.
struct Work {
  int64_t kernels, graphs;
};
Work work_done();

}  // namespace edge_rt::gpu::emulated
