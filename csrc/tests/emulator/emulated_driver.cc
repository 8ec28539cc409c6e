#include "tests/emulator/emulated_driver.h"

#include <cstring>

#include "tests/emulator/emulated_state.h"

namespace edge_rt::gpu {
namespace emulated {

State& state() {
  static auto* const made = new State;  // lives as long as the process, as a driver does
  return *made;
}

bool State::is_pinned(const void* memory) const {
  const auto* at = static_cast<const char*>(memory);
  auto next = host_blocks.upper_bound(at);
  if (next == host_blocks.begin()) return false;
  --next;
  return at < next->first + next->second;
}

CUresult begin(const char* function) {
  State& s = state();
  if (s.lost != 0) return s.lost;
  if (s.hangs && std::strcmp(function, "cuStreamQuery") == 0) return kNotReady;
  if (!s.fault_function.empty() && s.fault_function != function) return 0;
  if (s.calls++ != s.fault_number) return 0;
  if (s.fault_code == kLaunchFailed) s.lost = kLaunchFailed;
  if (s.fault_code == kNotReady) s.hangs = true;
  return s.fault_code;
}

void configure(const Settings& settings) {
  State& s = state();
  const Guard guard(s.lock);
  s.settings = settings;
  s.streams.seed(settings.seed);
  s.fault_number = -1;
  s.calls = 0;
  s.lost = 0;
  s.hangs = false;
  s.work = {};
}

void set_fault(const char* function, int64_t number, CUresult code) {
  State& s = state();
  const Guard guard(s.lock);
  s.fault_function = function == nullptr ? "" : function;
  s.fault_number = number;
  s.fault_code = code;
  s.calls = 0;
}

int64_t calls_counted() {
  State& s = state();
  const Guard guard(s.lock);
  return s.calls;
}

Live live() {
  State& s = state();
  const Guard guard(s.lock);
  const auto count = [](const auto& set) { return static_cast<int64_t>(set.size()); };
  return {static_cast<int64_t>(s.memory.count()),
          count(s.host_blocks),
          static_cast<int64_t>(s.streams.count()),
          count(s.modules),
          s.graphs,
          s.contexts,
          s.memory.bytes()};
}

Work work_done() {
  State& s = state();
  const Guard guard(s.lock);
  return s.work;
}

}  // namespace emulated

const Driver* open_driver(DriverError* error) {
  static const Driver driver = [] {
    Driver made;
#define EDGE_RT_SET(field, symbol, arguments) made.field = emulated::calls::field;
    EDGE_RT_DRIVER_FUNCTIONS(EDGE_RT_SET)
#undef EDGE_RT_SET
    return made;
  }();
  return EDGE_RT_DRIVER_CALL(driver, cuInit, error, 0) ? &driver : nullptr;
}

}  // namespace edge_rt::gpu
