#include "common/isa.h"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace edge_rt {
namespace {

constexpr const char* kNames[kIsaCount] = {"scalar", "avx2", "avx_vnni", "avx512_vnni", "neon_dotprod", "neon_i8mm"};

[[maybe_unused]] constexpr bool bit(uint64_t word, int position) { return (word >> position) & 1; }

#if defined(__x86_64__)

// The registers that the operating system saves when it switches threads (XCR0). Without them an instruction set that
// the CPU has must not be used.
uint64_t saved_registers() {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t{high} << 32) | low;
}

bool cpu_has(Isa isa) {
  uint32_t eax = 0, ebx = 0, ecx1 = 0, edx = 0;
  if (!__get_cpuid(1, &eax, &ebx, &ecx1, &edx) || !bit(ecx1, 27 /* xgetbv may be used */)) return false;
  const bool has_base = bit(ecx1, 12 /* FMA */) && bit(ecx1, 28 /* AVX */) && bit(ecx1, 29 /* F16C */);
  const uint64_t saved = saved_registers();
  uint32_t ebx7 = 0, ecx7 = 0;
  if (!__get_cpuid_count(7, 0, &eax, &ebx7, &ecx7, &edx)) return false;
  const uint32_t last_subleaf = eax;
  const bool has_avx2 = has_base && bit(ebx7, 5) && (saved & 0x6) == 0x6;
  switch (isa) {
    case Isa::kAvx2: return has_avx2;
    case Isa::kAvxVnni: {
      uint32_t eax71 = 0, ignored_b, ignored_c, ignored_d;
      if (last_subleaf < 1 || !__get_cpuid_count(7, 1, &eax71, &ignored_b, &ignored_c, &ignored_d)) return false;
      return has_avx2 && bit(eax71, 4);
    }
    case Isa::kAvx512Vnni: {
      const bool has_avx512 = bit(ebx7, 16 /* F */) && bit(ebx7, 17 /* DQ */) && bit(ebx7, 30 /* BW */) &&
                              bit(ebx7, 31 /* VL */) && bit(ecx7, 11 /* VNNI */);
      return has_avx2 && has_avx512 && (saved & 0xe6) == 0xe6;
    }
    default: return false;
  }
}

int family_of_amd() {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!__get_cpuid(0, &eax, &ebx, &ecx, &edx) || ebx != 0x68747541 /* "Auth" of "AuthenticAMD" */) return 0;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return 0;
  return static_cast<int>(((eax >> 8) & 0xf) + ((eax >> 20) & 0xff));
}

#elif defined(__aarch64__) && defined(__linux__)

bool cpu_has(Isa isa) {
  const uint64_t first = getauxval(AT_HWCAP), second = getauxval(AT_HWCAP2);
  const bool has_dotprod = bit(first, 20 /* ASIMDDP */) && bit(first, 9 /* FPHP */) && bit(first, 10 /* ASIMDHP */);
  if (isa == Isa::kNeonDotprod) return has_dotprod;
  return isa == Isa::kNeonI8mm && has_dotprod && bit(second, 13 /* I8MM */);
}

#elif defined(__aarch64__) && defined(__APPLE__)

// A feature that this version of the system has no name for is one that its CPUs lack.
bool has_feature(const char* name) {
  int value = 0;
  size_t size = sizeof value;
  return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0;
}

bool cpu_has(Isa isa) {
  if (isa != Isa::kNeonDotprod && isa != Isa::kNeonI8mm) return false;
  const bool has_dotprod = has_feature("hw.optional.arm.FEAT_DotProd") && has_feature("hw.optional.arm.FEAT_FP16");
  return has_dotprod && (isa == Isa::kNeonDotprod || has_feature("hw.optional.arm.FEAT_I8MM"));
}

#else

bool cpu_has(Isa) { return false; }

#endif

}  // namespace

int amd_family() {
#if defined(__x86_64__)
  return family_of_amd();
#else
  return 0;
#endif
}

const char* isa_name(Isa isa) { return kNames[static_cast<int>(isa)]; }

bool isa_from_name(const char* name, Isa* out) {
  for (int i = 0; i < kIsaCount; ++i) {
    if (std::strcmp(name, kNames[i]) == 0) {
      *out = static_cast<Isa>(i);
      return true;
    }
  }
  return false;
}

// The build defines EDGE_RT_HAS_<SET> for every set that it compiles csrc/kernels/ for.
bool isa_is_compiled(Isa isa) {
  switch (isa) {
    case Isa::kScalar: return true;
#ifdef EDGE_RT_HAS_AVX2
    case Isa::kAvx2: return true;
#endif
#ifdef EDGE_RT_HAS_AVX_VNNI
    case Isa::kAvxVnni: return true;
#endif
#ifdef EDGE_RT_HAS_AVX512_VNNI
    case Isa::kAvx512Vnni: return true;
#endif
#ifdef EDGE_RT_HAS_NEON_DOTPROD
    case Isa::kNeonDotprod: return true;
#endif
#ifdef EDGE_RT_HAS_NEON_I8MM
    case Isa::kNeonI8mm: return true;
#endif
    default: return false;
  }
}

bool isa_is_supported(Isa isa) { return isa == Isa::kScalar || cpu_has(isa); }

bool isa_is_usable(Isa isa) { return isa_is_compiled(isa) && isa_is_supported(isa); }

Isa best_isa() {
  for (int i = kIsaCount - 1; i > 0; --i) {
    if (isa_is_usable(static_cast<Isa>(i))) return static_cast<Isa>(i);
  }
  return Isa::kScalar;
}

}  // namespace edge_rt
