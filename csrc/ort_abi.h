// The part of ONNX Runtime's C interface that edge-rt uses, declared by position.
//
// ONNX Runtime's wheels hold no headers. Its C interface is a table of function pointers whose positions never change,
// so a position and a signature are all that a caller needs. Table version 18 (ONNX Runtime 1.18) is the first with
// everything that must be there; one binary then runs on that release and on every later one. What only newer releases
// have says so, and is read from the table of that release.
#pragma once

#include <cstddef>
#include <cstdint>

namespace edge_rt::abi {

// The oldest table that will do, and the version of the op record handed over: ONNX Runtime reads a record's later
// fields only if its version says that they are there, and refuses records newer than itself.
constexpr uint32_t kTableVersion = 18;
constexpr int kTableSlots = 280;  // of that table
// The table with every slot named below. Release 1.N brings table N.
constexpr uint32_t kNewestTableVersion = 24;

// Owned by ONNX Runtime; never looked into.
struct Status;
struct Value;
struct SessionOptions;
struct CustomOpDomain;
struct KernelInfo;
struct KernelContext;
struct TensorInfo;
struct Allocator;
struct ShapeContext;

// An array of function pointers, indexed by the slots below.
struct Table {
  void (*slots[1])();
};

struct ApiBase {
  const Table* (*table)(uint32_t version);  // nullptr if this ONNX Runtime does not know the version
  const char* (*version_string)();          // "1.31.1"
};

enum ErrorCode : int {
  kFail = 1,
  kInvalidArgument = 2,
  kProviderFailed = 11,
};

enum ElementType : int {
  kUndefined = 0,  // in a declaration: any type
  kFloat = 1,
  kUint8 = 2,
  kInt8 = 3,
  kUint16 = 4,
  kInt16 = 5,
  kInt32 = 6,
  kInt64 = 7,
  kBool = 9,
  kFloat16 = 10,
};

enum Arity : int { kRequired = 0, kOptional = 1, kVariadic = 2 };

enum MemoryType : int { kCpuInput = -2, kCpuOutput = -1, kDefaultMemory = 0 };

// A function of the table: where it stands and what it looks like. Functions that return Status* return nullptr when
// all went well; the caller owns what they return otherwise.
template <int kPosition, class Signature, uint32_t kSince = kTableVersion>
struct Slot {
  using Function = Signature*;
  static constexpr int kIndex = kPosition;
  static constexpr uint32_t kVersion = kSince;
  static_assert(kSince > kTableVersion || kPosition < kTableSlots, "the oldest table ends before this slot");
  static_assert(kSince <= kNewestTableVersion, "no table with this slot is asked for");
};

// Errors. The message is copied.
using CreateStatus = Slot<0, Status*(int code, const char* message)>;
using GetErrorMessage = Slot<2, const char*(const Status*)>;
using ReleaseStatus = Slot<93, void(Status*)>;

// Registration. Domain and records must outlive every session that uses them.
using CreateCustomOpDomain = Slot<26, Status*(const char* name, CustomOpDomain** out)>;
using CustomOpDomainAdd = Slot<27, Status*(CustomOpDomain*, const void* record)>;
using AddCustomOpDomain = Slot<28, Status*(SessionOptions*, CustomOpDomain*)>;
using ReleaseCustomOpDomain = Slot<101, void(CustomOpDomain*)>;

// Attributes, while a kernel is created. The string call fails with the size needed in *size if *size is too small.
using GetAttributeFloat = Slot<85, Status*(const KernelInfo*, const char* name, float* out)>;
using GetAttributeInt = Slot<86, Status*(const KernelInfo*, const char* name, int64_t* out)>;
using GetAttributeString = Slot<87, Status*(const KernelInfo*, const char* name, char* out, size_t* size)>;
// With a null `out` these two only say how many there are.
using GetAttributeFloats = Slot<162, Status*(const KernelInfo*, const char* name, float* out, size_t* size)>;
using GetAttributeInts = Slot<163, Status*(const KernelInfo*, const char* name, int64_t* out, size_t* size)>;

// Inputs and outputs of a run. An absent optional input or output is a null value. Values are owned by the context.
using GetInputCount = Slot<88, Status*(const KernelContext*, size_t* out)>;
using GetOutputCount = Slot<89, Status*(const KernelContext*, size_t* out)>;
using GetInput = Slot<90, Status*(const KernelContext*, size_t index, const Value** out)>;
using GetOutput = Slot<91, Status*(KernelContext*, size_t index, const int64_t* dims, size_t rank, Value** out)>;

// Tensors. Slot 51 takes a mutable value, and is also how inputs are read: their memory may be written in place.
using GetTensorData = Slot<51, Status*(Value*, void** out)>;
using GetElementType = Slot<60, Status*(const TensorInfo*, int* out)>;
using GetDimensionsCount = Slot<61, Status*(const TensorInfo*, size_t* out)>;
using GetDimensions = Slot<62, Status*(const TensorInfo*, int64_t* out, size_t rank)>;
using GetTensorInfo = Slot<65, Status*(const Value*, TensorInfo** out)>;
using ReleaseTensorInfo = Slot<99, void(TensorInfo*)>;
// The five calls above in one, without an allocation.
using GetTypeAndShape = Slot<414, Status*(const Value*, int* type, const int64_t** dims, size_t* rank), 24>;

// Memory. An allocator of a kernel is released when the kernel goes.
using AllocatorAlloc = Slot<75, Status*(Allocator*, size_t bytes, void** out)>;
using AllocatorFree = Slot<76, Status*(Allocator*, void* memory)>;
using ReleaseAllocator = Slot<132, void(Allocator*)>;
using KernelInfoGetAllocator = Slot<278, Status*(const KernelInfo*, int memory_type, Allocator** out)>;

// What ONNX Runtime asks about a custom op: 26 words. It has no room for data of ours; types derived from it do.
struct OpRecord {
  uint32_t version;
  void* (*create)(const OpRecord*, const Table*, const KernelInfo*);  // not called: create2 is
  const char* (*name)(const OpRecord*);
  const char* (*provider)(const OpRecord*);  // nullptr: the CPU
  int (*input_type)(const OpRecord*, size_t index);
  size_t (*input_count)(const OpRecord*);
  int (*output_type)(const OpRecord*, size_t index);
  size_t (*output_count)(const OpRecord*);
  void (*compute)(void* kernel, KernelContext*);  // not called: compute2 is
  void (*destroy)(void* kernel);
  int (*input_arity)(const OpRecord*, size_t index);
  int (*output_arity)(const OpRecord*, size_t index);
  int (*input_memory)(const OpRecord*, size_t index);
  int (*variadic_input_minimum)(const OpRecord*);
  int (*variadic_input_same_type)(const OpRecord*);
  int (*variadic_output_minimum)(const OpRecord*);
  int (*variadic_output_same_type)(const OpRecord*);
  Status* (*create2)(const OpRecord*, const Table*, const KernelInfo*, void** kernel);
  Status* (*compute2)(void* kernel, KernelContext*);
  Status* (*infer_shapes)(const OpRecord*, ShapeContext*);
  int (*since_version)(const OpRecord*);
  int (*until_version)(const OpRecord*);
  size_t (*may_inplace)(int** inputs, int** outputs);
  void (*free_may_inplace)(int* inputs, int* outputs);
  size_t (*aliases)(int** inputs, int** outputs);
  void (*free_aliases)(int* inputs, int* outputs);
};

static_assert(sizeof(void*) == 8, "the offsets below are those of 64-bit machines");
static_assert(sizeof(OpRecord) == 208, "size of the op record, table version 18");
#define EDGE_RT_OFFSET(field, at) static_assert(offsetof(OpRecord, field) == (at), "offset of " #field)
EDGE_RT_OFFSET(version, 0);
EDGE_RT_OFFSET(create, 8);
EDGE_RT_OFFSET(name, 16);
EDGE_RT_OFFSET(provider, 24);
EDGE_RT_OFFSET(input_type, 32);
EDGE_RT_OFFSET(input_count, 40);
EDGE_RT_OFFSET(output_type, 48);
EDGE_RT_OFFSET(output_count, 56);
EDGE_RT_OFFSET(compute, 64);
EDGE_RT_OFFSET(destroy, 72);
EDGE_RT_OFFSET(input_arity, 80);
EDGE_RT_OFFSET(output_arity, 88);
EDGE_RT_OFFSET(input_memory, 96);
EDGE_RT_OFFSET(variadic_input_minimum, 104);
EDGE_RT_OFFSET(variadic_input_same_type, 112);
EDGE_RT_OFFSET(variadic_output_minimum, 120);
EDGE_RT_OFFSET(variadic_output_same_type, 128);
EDGE_RT_OFFSET(create2, 136);
EDGE_RT_OFFSET(compute2, 144);
EDGE_RT_OFFSET(infer_shapes, 152);
EDGE_RT_OFFSET(since_version, 160);
EDGE_RT_OFFSET(until_version, 168);
EDGE_RT_OFFSET(may_inplace, 176);
EDGE_RT_OFFSET(free_may_inplace, 184);
EDGE_RT_OFFSET(aliases, 192);
EDGE_RT_OFFSET(free_aliases, 200);
#undef EDGE_RT_OFFSET

}  // namespace edge_rt::abi
