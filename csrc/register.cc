// The symbols of the library: ONNX Runtime calls RegisterCustomOps, edge_rt/ort/op_library.py the others.
#include <atomic>
#include <string>

#include "common/crew.h"
#include "common/export.h"
#include "common/isa.h"
#include "ort/registry.h"

// The header that defines edge_rt::AllOps; the test library has one of its own.
#ifndef EDGE_RT_OPS_HEADER
#define EDGE_RT_OPS_HEADER "ops/all_ops.h"
#endif
#include EDGE_RT_OPS_HEADER

namespace edge_rt {
namespace {

// Number of the calls below and of the ops' inputs and attributes: the Python half refuses a library of another one.
constexpr int kAbiVersion = 4;

// The instruction set of registrations to come; -1 is the best one. It is an argument of RegisterCustomOps that ONNX
// Runtime's fixed signature has no room for; edge_rt/ort/session.py sets it and registers under one lock.
std::atomic<int> selected_isa{-1};

ort::Registry<AllOps>& registry() {
  static auto* const made = new ort::Registry<AllOps>("edge_rt");
  return *made;
}

std::string usable_names() {
  std::string names;
  for (int i = kIsaCount - 1; i >= 0; --i) {
    const Isa isa = static_cast<Isa>(i);
    if (!isa_is_usable(isa)) continue;
    if (!names.empty()) names += ',';
    names += isa_name(isa);
  }
  return names;
}

}  // namespace
}  // namespace edge_rt

EDGE_RT_EXPORT edge_rt::abi::Status* RegisterCustomOps(edge_rt::abi::SessionOptions* options,
                                                       const edge_rt::abi::ApiBase* base) {
  const int selected = edge_rt::selected_isa.load();
  const edge_rt::Isa isa = selected < 0 ? edge_rt::best_isa() : static_cast<edge_rt::Isa>(selected);
  return edge_rt::registry().register_ops(options, base, isa);
}

EDGE_RT_EXPORT int edge_rt_abi_version() { return edge_rt::kAbiVersion; }

// Threads that compute from now on, the caller of a session included.
EDGE_RT_EXPORT void edge_rt_use_threads(int threads) { edge_rt::process_crew().resize(threads); }

// Comma-separated names of the instruction sets that are compiled and that this CPU has, best first.
EDGE_RT_EXPORT const char* edge_rt_isa_names() {
  static const auto* const names = new std::string(edge_rt::usable_names());
  return names->c_str();
}

// The ops that the library holds, one signature a line.
EDGE_RT_EXPORT const char* edge_rt_op_signatures() {
  static const auto* const lines = new std::string(edge_rt::ort::signatures(edge_rt::AllOps{}));
  return lines->c_str();
}

// Chooses the instruction set of the sessions registered from now on; null or "" is the best. Returns 0, or -1 where
// the set is unknown or cannot be used here, and then changes nothing.
EDGE_RT_EXPORT int edge_rt_select_isa(const char* name) {
  if (name == nullptr || *name == '\0') {
    edge_rt::selected_isa.store(-1);
    return 0;
  }
  edge_rt::Isa isa;
  if (!edge_rt::isa_from_name(name, &isa) || !edge_rt::isa_is_usable(isa)) return -1;
  edge_rt::selected_isa.store(static_cast<int>(isa));
  return 0;
}
