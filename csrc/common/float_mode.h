// The floating-point mode that kernels compute in: round to nearest, denormal numbers kept.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace edge_rt {

// Sets the mode for as long as it lives. A library built with -ffast-math, or the program itself, may have set another
// one in some threads, and a sum would then depend on who computed it.
class DefaultFloatMode {
 public:
#if defined(__x86_64__)
  DefaultFloatMode() : saved_(_mm_getcsr()) {
    if (saved_ != kDefault) _mm_setcsr(kDefault);
  }
  ~DefaultFloatMode() {
    if (saved_ != kDefault) _mm_setcsr(saved_);
  }

 private:
  static constexpr uint32_t kDefault = 0x1f80;  // all exceptions masked
  uint32_t saved_;
#elif defined(__aarch64__)
  DefaultFloatMode() {
    __asm__ volatile("mrs %0, fpcr" : "=r"(saved_));
    if (saved_ != 0) __asm__ volatile("msr fpcr, %0" : : "r"(uint64_t{0}));
  }
  ~DefaultFloatMode() {
    if (saved_ != 0) __asm__ volatile("msr fpcr, %0" : : "r"(saved_));
  }

 private:
  uint64_t saved_;
#else
  DefaultFloatMode() {}

 private:
#endif
  DefaultFloatMode(const DefaultFloatMode&) = delete;
  DefaultFloatMode& operator=(const DefaultFloatMode&) = delete;
};

}  // namespace edge_rt
