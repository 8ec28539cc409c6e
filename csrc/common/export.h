// What the functions that the library exports are made with; csrc/exports.map lists them.
#pragma once

#if defined(_WIN32)
#define EDGE_RT_EXPORT extern "C" __declspec(dllexport)
#else
#define EDGE_RT_EXPORT extern "C" __attribute__((visibility("default")))
#endif

namespace edge_rt {

// Nothing is thrown through C: memory that ran out becomes `failed`.
template <typename T, typename Work>
T guarded(T failed, Work work) {
  try {
    return work();
  } catch (...) {
    return failed;
  }
}

}  // namespace edge_rt
