// Kernels of what goes through a text row by row. Compiled once per instruction set, with that set's flags and two
// definitions: EDGE_RT_ISA_NAMESPACE, the set's name, and EDGE_RT_SIMD_<NAME>, whose vectors it uses (kernels/simd.h).
#include <type_traits>

#include "ops/gated_delta/gated_delta.h"
#include "ops/short_conv/short_conv.h"
#include "ops/ssm_scan/ssm_scan.h"
#include "ops/state_conv/state_conv.h"
#include "kernels/simd.h"

namespace edge_rt::EDGE_RT_ISA_NAMESPACE {
namespace {
#include "kernels/simd_math.inl"
#include "kernels/simd_rows.inl"
#include "ops/short_conv/short_conv_cpu.inl"
// With the lanes of the above.
#include "ops/state_conv/state_conv_cpu.inl"
#include "ops/recurrent/recurrent_cpu.inl"
#include "ops/gated_delta/gated_delta_cpu.inl"
#include "ops/ssm_scan/ssm_scan_cpu.inl"
}  // namespace

// What kernels.cc lists.
extern const ShortConvKernels kShortConv;
const ShortConvKernels kShortConv = kShortConvKernels;
extern const StateConvKernels kStateConv;
const StateConvKernels kStateConv = kStateConvKernels;
extern const GatedDeltaKernels kGatedDelta;
const GatedDeltaKernels kGatedDelta = kGatedDeltaKernels;
extern const SsmScanKernels kSsmScan;
const SsmScanKernels kSsmScan = kSsmScanKernels;

}  // namespace edge_rt::EDGE_RT_ISA_NAMESPACE
