// Instruction sets that kernels are compiled for, and which of them the CPU at hand can execute.
#pragma once

namespace edge_rt {

// Sets that csrc/kernels/ is compiled for. Within an architecture a later one is faster.
enum class Isa : int { kScalar, kAvx2, kAvxVnni, kAvx512Vnni, kNeonDotprod, kNeonI8mm };
constexpr int kIsaCount = 6;

// "scalar", "avx2", "avx_vnni", "avx512_vnni", "neon_dotprod", "neon_i8mm".
const char* isa_name(Isa isa);

// Sets *out to the set of that name; false if there is none.
bool isa_from_name(const char* name, Isa* out);

// The library holds kernels for it.
bool isa_is_compiled(Isa isa);

// The CPU executes it, and the operating system saves its registers.
bool isa_is_supported(Isa isa);

// Compiled and supported.
bool isa_is_usable(Isa isa);

// The fastest usable one; scalar code always is.
Isa best_isa();

// Family of an AMD CPU: 0x19 is Zen 3 and 4, 0x1a Zen 5; 0: the CPU is another one.
int amd_family();

}  // namespace edge_rt
