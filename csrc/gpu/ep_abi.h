// The part of ONNX Runtime's interface that execution providers in libraries of their own are written against, declared
// by position as ort_abi.h does it. Structs are those of release 1.28; later releases read their `version` and then
// only the fields that it had.
#pragma once

#include "ort_abi.h"

namespace edge_rt::abi {

// Release whose structs are declared here, and the oldest that will do.
constexpr uint32_t kEpVersion = 28;

// Owned by ONNX Runtime; never looked into.
struct Graph;
struct Node;
struct HardwareDevice;
struct EpDevice;
struct GraphSupport;
struct KeyValuePairs;
struct KernelRegistry;
struct KernelDefBuilder;
struct KernelDef;
struct DataType;
struct Logger;
struct MemoryInfo;
struct MemoryDevice;
struct RunOptions;

enum HardwareType : int { kHardwareCpu = 0, kHardwareGpu = 1 };
// Of a MemoryDevice.
enum DeviceType : int { kDeviceCpu = 0, kDeviceGpu = 1 };
enum DeviceMemory : int { kDeviceDefault = 0 };
enum AllocatorType : int { kDeviceAllocator = 0 };

// The table of OrtApi, beyond ort_abi.h. Release 1.23 has them all.
using CreateTensorOver = Slot<49, Status*(const MemoryInfo*, void* data, size_t bytes, const int64_t* dims, size_t rank,
                                          int element_type, Value** out)>;
using ReleaseMemoryInfo = Slot<94, void(MemoryInfo*)>;
using ReleaseValue = Slot<96, void(Value*)>;
using AddInitializer = Slot<150, Status*(SessionOptions*, const char* name, const Value*)>;
using GetEpApi = Slot<317, const Table*(), 24>;
using GetTensorBytes = Slot<318, Status*(const Value*, size_t* out), 24>;
using CreateMemoryInfo = Slot<320,
                              Status*(const char* name, int device_type, uint32_t vendor, int32_t device, int memory,
                                      size_t alignment, int allocator, MemoryInfo** out),
                              24>;
using GraphNodeCount = Slot<344, Status*(const Graph*, size_t* out), 24>;
using GraphNodes = Slot<345, Status*(const Graph*, const Node** out, size_t count), 24>;
using NodeName = Slot<349, Status*(const Node*, const char** out), 24>;
using NodeDomain = Slot<351, Status*(const Node*, const char** out), 24>;
using RunConfigEntry = Slot<373, const char*(const RunOptions*, const char* key), 24>;  // nullptr: absent
using CreateKeyValuePairs = Slot<295, void(KeyValuePairs** out), 24>;
using AddKeyValuePair = Slot<296, void(KeyValuePairs*, const char* key, const char* value), 24>;
using GetKeyValue = Slot<297, const char*(const KeyValuePairs*, const char* key), 24>;  // nullptr: absent
using ReleaseKeyValuePairs = Slot<300, void(KeyValuePairs*), 24>;
using SessionConfigEntries = Slot<379, Status*(const SessionOptions*, KeyValuePairs** out), 24>;

struct Ep;
struct EpFactory;

// What computes a node.
struct KernelImpl {
  uint32_t version;
  Status* (*compute)(KernelImpl*, KernelContext*);
  void (*release)(KernelImpl*);
  void (*more[2])();  // weights packed in advance: not used
};
using CreateKernel = Status*(void* state, const KernelInfo*, KernelImpl** out);

// The table that GetEpApi gives. Release 1.24 has them all.
template <int kPosition, class Signature>
struct EpSlot {
  using Function = Signature*;
  static constexpr int kIndex = kPosition;
};
using CreateEpDevice = EpSlot<0, Status*(EpFactory*, const HardwareDevice*, const KeyValuePairs* metadata,
                                         const KeyValuePairs* options, EpDevice** out)>;
using ReleaseEpDevice = EpSlot<1, void(EpDevice*)>;
using AddSingleNode = EpSlot<3, Status*(GraphSupport*, const Node*)>;
using AddAllocatorInfo = EpSlot<5, Status*(EpDevice*, const MemoryInfo*)>;
using MemoryInfoDevice = EpSlot<6, const MemoryDevice*(const MemoryInfo*)>;
using ValueDevice = EpSlot<7, const MemoryDevice*(const Value*)>;
using MemoryDeviceType = EpSlot<9, int(const MemoryDevice*)>;
using MemoryDeviceVendor = EpSlot<11, uint32_t(const MemoryDevice*)>;
using MemoryDeviceNumber = EpSlot<12, uint32_t(const MemoryDevice*)>;
using CreateHardwareDevice = EpSlot<16, Status*(int type, uint32_t vendor, uint32_t device, const char* vendor_name,
                                                const KeyValuePairs* metadata, HardwareDevice** out)>;
using ReleaseHardwareDevice = EpSlot<17, void(HardwareDevice*)>;
using CreateKernelRegistry = EpSlot<18, Status*(KernelRegistry** out)>;
using ReleaseKernelRegistry = EpSlot<19, void(KernelRegistry*)>;
using AddKernel = EpSlot<20, Status*(KernelRegistry*, const KernelDef*, CreateKernel*, void* state)>;
using CreateKernelDefBuilder = EpSlot<21, Status*(KernelDefBuilder** out)>;
using ReleaseKernelDefBuilder = EpSlot<22, void(KernelDefBuilder*)>;
using SetOperatorType = EpSlot<23, Status*(KernelDefBuilder*, const char* name)>;
using SetDomain = EpSlot<24, Status*(KernelDefBuilder*, const char* domain)>;
using SetSinceVersion = EpSlot<25, Status*(KernelDefBuilder*, int first, int last)>;
using SetProvider = EpSlot<26, Status*(KernelDefBuilder*, const char* name)>;
using SetInputMemory = EpSlot<27, Status*(KernelDefBuilder*, size_t index, int memory)>;
using SetOutputMemory = EpSlot<28, Status*(KernelDefBuilder*, size_t index, int memory)>;
using AddTypeConstraint =
    EpSlot<29, Status*(KernelDefBuilder*, const char* name, const DataType* const* types, size_t count)>;
using BuildKernelDef = EpSlot<32, Status*(KernelDefBuilder*, KernelDef** out)>;
using ReleaseKernelDef = EpSlot<33, void(KernelDef*)>;
using TensorDataType = EpSlot<40, Status*(int element_type, const DataType** out)>;
using LookUpKernel = EpSlot<41, Status*(GraphSupport*, const Node*, const KernelDef** out)>;
using KernelInfoEp = EpSlot<43, Status*(const KernelInfo*, const Ep** out)>;

// Memory that ONNX Runtime asks for.
struct AllocatorImpl {
  uint32_t version;
  void* (*allocate)(AllocatorImpl*, size_t bytes);  // nullptr: there is none
  void (*free)(AllocatorImpl*, void* memory);
  const MemoryInfo* (*info)(const AllocatorImpl*);
  void* (*reserve)(AllocatorImpl*, size_t bytes);  // for as long as the session lives
  void (*more[3])();                               // statistics, streams, shrinking: not used
};

struct DataTransfer {
  uint32_t version;
  void (*release)(DataTransfer*);
  bool (*can_copy)(const DataTransfer*, const MemoryDevice* from, const MemoryDevice* to);
  Status* (*copy)(DataTransfer*, const Value** from, Value** to, void** streams, size_t count);
};

// A provider in a session. Functions that are null have a default.
struct Ep {
  uint32_t version;
  const char* (*name)(const Ep*);
  Status* (*get_capability)(Ep*, const Graph*, GraphSupport*);
  void (*compile)();
  void (*release_compiled)();
  void (*data_layout)();
  void (*convert_layout)();
  void (*set_dynamic_options)();
  Status* (*on_run_start)(Ep*, const RunOptions*);
  Status* (*on_run_end)(Ep*, const RunOptions*, bool synchronise);
  Status* (*create_allocator)(Ep*, const MemoryInfo*, AllocatorImpl** out);
  void (*create_stream)();
  void (*compiled_info)();
  Status* (*kernel_registry)(Ep*, const KernelRegistry** out);
  Status* (*can_run_concurrently)(Ep*, bool* out);
  Status* (*synchronise)(Ep*);
  void (*create_profiler)();
  bool (*captures_graphs)(const Ep*);
  bool (*is_captured)(const Ep*, int id);
  Status* (*replay)(Ep*, int id);
  int (*capture_policy)(const Ep*);
  void (*available_resource)();
  void (*on_initialised)();
  void (*default_memory_device)();
  Status* (*release_captured)(Ep*, int id);
};

struct EpFactory {
  uint32_t version;
  const char* (*name)(const EpFactory*);
  const char* (*vendor)(const EpFactory*);
  Status* (*supported_devices)(EpFactory*, const HardwareDevice* const*, size_t count, EpDevice** out, size_t most,
                               size_t* out_count);
  Status* (*create_ep)(EpFactory*, const HardwareDevice* const*, const KeyValuePairs* const* metadata, size_t count,
                       const SessionOptions*, const Logger*, Ep** out);
  void (*release_ep)(EpFactory*, Ep*);
  uint32_t (*vendor_id)(const EpFactory*);
  const char* (*release)(const EpFactory*);
  void (*validate_compiled)();
  Status* (*create_allocator)(EpFactory*, const MemoryInfo*, const KeyValuePairs*, AllocatorImpl** out);
  void (*release_allocator)(EpFactory*, AllocatorImpl*);
  Status* (*create_data_transfer)(EpFactory*, DataTransfer** out);
  bool (*is_stream_aware)(const EpFactory*);
  void (*create_stream)();
  void (*incompatibility)();
  void (*resource_importer)();
  Status* (*custom_op_domain_count)(EpFactory*, size_t* out);
  void (*custom_op_domains)();
  void (*begin_graphics)();
  void (*end_graphics)();
  void (*select_model)();
};

static_assert(sizeof(Ep) == 25 * 8 && sizeof(EpFactory) == 21 * 8, "structs of release 1.28");

}  // namespace edge_rt::abi
