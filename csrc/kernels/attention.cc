// Kernels of attention. Compiled once per instruction set, with that set's flags and two definitions:
// EDGE_RT_ISA_NAMESPACE, the set's name, and EDGE_RT_SIMD_<NAME>, whose vectors it uses (kernels/simd.h).
#include <type_traits>

#include "ops/spec_attention/spec_attention.h"
#include "kernels/simd.h"

namespace edge_rt::EDGE_RT_ISA_NAMESPACE {
namespace {
#include "kernels/simd_math.inl"
#include "kernels/simd_rows.inl"
#include "ops/spec_attention/spec_attention_cpu.inl"
}  // namespace

// What kernels.cc lists.
extern const SpecAttentionKernels kSpecAttention;
const SpecAttentionKernels kSpecAttention = kSpecAttentionKernels;

}  // namespace edge_rt::EDGE_RT_ISA_NAMESPACE
