// Names of instruction sets, and what may be used here.
#include "common/isa.h"

#include <cstring>

#include "tests/check.h"

using namespace edge_rt;  // NOLINT: a program, not a header

int main() {
  for (int i = 0; i < kIsaCount; ++i) {
    const Isa isa = static_cast<Isa>(i);
    Isa found = Isa::kScalar;
    CHECK(isa_from_name(isa_name(isa), &found) && found == isa);
    CHECK(isa_is_usable(isa) == (isa_is_compiled(isa) && isa_is_supported(isa)));
  }
  Isa untouched = Isa::kAvx2;
  CHECK(!isa_from_name("avx", &untouched) && !isa_from_name("", &untouched) && untouched == Isa::kAvx2);
  CHECK(isa_is_usable(Isa::kScalar) && isa_is_usable(best_isa()));
#if defined(__x86_64__)
  CHECK(!isa_is_supported(Isa::kNeonDotprod) && !isa_is_supported(Isa::kNeonI8mm));
  // The compiler's own detection agrees, where there is one: zig's denies even SSE2, which every x86-64 has.
  __builtin_cpu_init();
  if (__builtin_cpu_supports("sse2")) {
    const bool has_base = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    CHECK(!isa_is_supported(Isa::kAvx2) || has_base);
    CHECK(isa_is_supported(Isa::kAvx512Vnni) ==
          (isa_is_supported(Isa::kAvx2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni")));
  }
#else
  CHECK(!isa_is_supported(Isa::kAvx2) && !isa_is_supported(Isa::kAvx512Vnni));
#endif
  return 0;
}
