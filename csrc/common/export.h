// Marks the functions that the library exports; csrc/exports.map lists them.
#pragma once

#if defined(_WIN32)
#define EDGE_RT_EXPORT extern "C" __declspec(dllexport)
#else
#define EDGE_RT_EXPORT extern "C" __attribute__((visibility("default")))
#endif
