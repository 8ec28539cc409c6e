// What the emulated driver knows, and its calls, which emulated_device.cc and emulated_work.cc share.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "tests/emulator/emulated_driver.h"
#include "tests/emulator/emulated_memory.h"
#include "tests/emulator/emulated_streams.h"
#include "tests/emulator/simt.h"

namespace edge_rt::gpu {

struct CUctx_st {};
struct CUfunc_st {
  const simt::Kernel* kernel;
};
struct CUmod_st {
  std::map<std::string, CUfunc_st> functions;
};

namespace emulated {

struct State {
  std::recursive_mutex lock;
  Settings settings;
  DeviceMemory memory;
  Streams streams;
  std::set<CUmodule> modules;
  std::map<const char*, size_t> host_blocks;  // pinned memory
  int64_t graphs = 0, contexts = 0;
  CUctx_st context;
  std::string fault_function;
  int64_t fault_number = -1, calls = 0;
  CUresult fault_code = 0;
  CUresult lost = 0;   // what every call gives since a kernel failed
  bool hangs = false;  // nothing that streams have ends any more
  Work work{};

  bool is_pinned(const void* memory) const;
};

State& state();
using Guard = std::lock_guard<std::recursive_mutex>;

// What a call gives before it does anything.
CUresult begin(const char* function);

// Runs what is queued until the stream has nothing left, with the device's memory open.
CUresult run_until_empty(CUstream stream);

#define EDGE_RT_BEGIN(function) \
  State& s = state();           \
  const Guard guard(s.lock);    \
  if (const CUresult failed = begin(#function)) return failed

namespace calls {

#define EDGE_RT_DECLARE(field, symbol, arguments) CUresult field arguments;
EDGE_RT_DRIVER_FUNCTIONS(EDGE_RT_DECLARE)
#undef EDGE_RT_DECLARE

}  // namespace calls
}  // namespace emulated
}  // namespace edge_rt::gpu
