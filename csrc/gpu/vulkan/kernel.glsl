// What Vulkan kernels are written in: GLSL 4.6, a few names of ours, and nothing else. A file is a kernel, and has its
// name:
//
//   #version 460
//   #define THREADS 128                                        // of a block
//   #include "gpu/vulkan/kernel.glsl"
//   struct ScaleArgs { Floats x; Floats y; float factor; Long count; };   // the struct of C++, field by field
//   KERNEL(ScaleArgs)
//   void main() {
//     const int i = block_x() * THREADS + thread();
//     if (i < low(args.count)) args.y.at[i] = args.x.at[i] * args.factor;
//   }
//
// The build (tools/spirv.py) lets no compiler contract or reorder float operations: each is one IEEE operation, as in
// the CPU's kernels, and `fused` is their fma. Division, square root and halves are `div_exact`, `sqrt_exact`,
// `float_of_half`, `half_of_float`: devices are less exact in them than the CPU; float_exact.glsl mends what a
// device's self-test found wrong.
//
// Structs have the names and fields of those of C++, with scalar layout: a pointer is a buffer reference of 8 bytes,
// int64_t and size_t are Long, Flag and enums of int are int. Scalar layout does not pad the end of a struct as C++
// does: where that matters a struct ends with `uint pad` (a test compares all offsets). Kernels have no integers of 64
// bits, and none of 8, not even in memory: not every chip has them. Indices are ints; what may lie 2 GiB and more behind
// a pointer is reached by `advanced`.
//
// A grid may be run in parts, one after the other: a kernel knows its block's place (block_x, block_y), and not how many
// blocks there are. One that is larger than what the device starts at once lies in square cells, and the z of a block is
// the number of its cell: 256 to a row, as for z devices start 65,535 as well. No size of subgroups is assumed, and no
// block has more than 16 KiB of shared memory. Threads meet at `meet()`, all of the block, in control flow that all
// share.
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference2 : require
#extension GL_EXT_buffer_reference_uvec2 : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_spirv_intrinsics : require

layout(local_size_x = THREADS) in;

// Of the kernel's cases those that can occur (Kernel::choices in gpu/launcher.h), and what the device does not do as
// the CPU does, a bit each.
layout(constant_id = 0) const uint choices = 0xffffffffu;
layout(constant_id = 1) const uint mended = 0u;
// Blocks of the side of a cell; 0: all of the grid is one.
layout(constant_id = 2) const uint cell = 0u;

layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Floats { float at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Ints { int at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Words { uint at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) buffer Pairs { uvec2 at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) buffer Quads { uvec4 at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 2) buffer Halves { uint16_t at[]; };
// Of bytes, which are read and written as parts of something larger.
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Bytes { uint nothing; };
// An integer of 64 bits, at multiples of 8 bytes as in C++; nothing lies at its value.
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Long { uint nothing; };

// Tests hand over more behind the arguments (tests/vulkan/held.glsl).
#ifndef BEHIND_ARGS
#define BEHIND_ARGS
#endif
#define KERNEL(Args)                                                              \
  layout(buffer_reference, scalar) buffer ArgsOfKernel { Args its; BEHIND_ARGS }; \
  layout(push_constant) uniform PushedArgs { ArgsOfKernel of_kernel; } pushed;
#define args pushed.of_kernel.its

int thread() { return int(gl_LocalInvocationIndex); }
int block_x() { return int(gl_WorkGroupID.x + (gl_WorkGroupID.z & 0xffu) * cell); }
int block_y() { return int(gl_WorkGroupID.y + (gl_WorkGroupID.z >> 8) * cell); }
// Every thread of the block is here, and sees what the others wrote to shared memory before.
void meet() { memoryBarrierShared(); barrier(); }

// Of a pointer: is_null(uvec2(args.bias)).
bool is_null(uvec2 address) { return (address.x | address.y) == 0u; }
// An integer of 64 bits that is known to be a small one.
int low(Long number) { return int(uvec2(number).x); }
// Of bytes that begin at a multiple of two.
uint byte_at(Halves from, int i) { return uint(from.at[i >> 1]) >> 8 * (i & 1) & 0xffu; }
// The address `count` times `bytes` behind another one.
uvec2 advanced(uvec2 address, uint count, uint bytes) {
  uint high, far, carry;
  umulExtended(count, bytes, high, far);
  const uint lower = uaddCarry(address.x, far, carry);
  return uvec2(lower, address.y + high + carry);
}

#include "gpu/vulkan/float_exact.glsl"

// c + the sum over k < 4 of the signed bytes a[k] * b[k].
#ifdef PACKED_DOTS
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6018, 6019], id = 4450)
int packed_dot(uint a, uint b, spirv_literal int format);
int dot4(uint a, uint b, int c) { return packed_dot(a, b, 0) + c; }
#else
int dot4(uint a, uint b, int c) {
  [[unroll]] for (int i = 0; i < 32; i += 8) c += bitfieldExtract(int(a), i, 8) * bitfieldExtract(int(b), i, 8);
  return c;
}
#endif
