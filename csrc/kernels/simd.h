// The 16-lane vector types that the build names. Several instruction sets may share one: AVX-VNNI has those of AVX2.
//
// What a compiler says about itself (__AVX2__ and others) cannot choose: some have dot products switched on where
// nobody asked for them, and scalar code is still to be scalar.
#pragma once

#if defined(EDGE_RT_SIMD_SCALAR)
#if defined(__AVX__)
#error "The scalar kernels must run on every CPU: build without -march=native"
#endif
#include "kernels/simd_scalar.h"
#elif defined(EDGE_RT_SIMD_AVX2)
#include "kernels/simd_avx2.h"
#elif defined(EDGE_RT_SIMD_AVX512)
#include "kernels/simd_avx512.h"
#elif defined(EDGE_RT_SIMD_NEON)
#include "kernels/simd_neon.h"
#else
#error "EDGE_RT_SIMD_SCALAR, _AVX2, _AVX512 or _NEON must be defined"
#endif
