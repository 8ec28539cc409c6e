#include "tests/fake_ort.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "tests/check.h"

namespace edge_rt::fake {
namespace {

constexpr int kSlots = 425;
constexpr size_t kLine = 64;

// The calls that make and release these objects know of no run, so they are counted for the whole process.
std::atomic<int64_t> live{0};

struct StatusText {
  std::string message;
};

abi::Status* make_status(int, const char* message) {
  ++live;
  return reinterpret_cast<abi::Status*>(new StatusText{message});
}

abi::Status* failed(const char* call) {
  return make_status(abi::kFail, (std::string("fake: ") + call + " was made to fail").c_str());
}

const char* message_of(const abi::Status* status) {
  return reinterpret_cast<const StatusText*>(status)->message.c_str();
}

void release_status(abi::Status* status) {
  if (status == nullptr) return;
  --live;
  delete reinterpret_cast<StatusText*>(status);
}

// --- registration ---

struct Domain {
  std::vector<const abi::OpRecord*> records;
};
struct Session {
  std::vector<Domain*> domains;
};

abi::Status* create_domain(const char* name, abi::CustomOpDomain** out) {
  CHECK(std::strcmp(name, "edge_rt") == 0);
  *out = reinterpret_cast<abi::CustomOpDomain*>(new Domain{});
  return nullptr;
}
abi::Status* add_record(abi::CustomOpDomain* domain, const void* record) {
  reinterpret_cast<Domain*>(domain)->records.push_back(static_cast<const abi::OpRecord*>(record));
  return nullptr;
}
abi::Status* add_domain(abi::SessionOptions* session, abi::CustomOpDomain* domain) {
  reinterpret_cast<Session*>(session)->domains.push_back(reinterpret_cast<Domain*>(domain));
  return nullptr;
}
void release_domain(abi::CustomOpDomain* domain) { delete reinterpret_cast<Domain*>(domain); }

// --- attributes ---

const Attribute* find(const abi::KernelInfo* info, const char* name, Attribute::Kind kind) {
  for (const Attribute& attribute : reinterpret_cast<const Node*>(info)->attributes) {
    if (attribute.name == name) return attribute.kind == kind ? &attribute : nullptr;
  }
  return nullptr;
}
abi::Status* no_such_attribute() { return make_status(abi::kFail, "fake: no attribute of that name and type"); }

abi::Status* attribute_float(const abi::KernelInfo* info, const char* name, float* out) {
  const Attribute* found = find(info, name, Attribute::kReal);
  if (found == nullptr) return no_such_attribute();
  *out = found->real;
  return nullptr;
}
abi::Status* attribute_int(const abi::KernelInfo* info, const char* name, int64_t* out) {
  const Attribute* found = find(info, name, Attribute::kInteger);
  if (found == nullptr) return no_such_attribute();
  *out = found->integer;
  return nullptr;
}
abi::Status* attribute_string(const abi::KernelInfo* info, const char* name, char* out, size_t* size) {
  const Attribute* found = find(info, name, Attribute::kText);
  if (found == nullptr) return no_such_attribute();
  const size_t given = *size;
  *size = found->text.size() + 1;
  if (out == nullptr) return nullptr;
  if (given < *size) return make_status(abi::kInvalidArgument, "fake: the buffer is too small");
  std::memcpy(out, found->text.c_str(), *size);
  return nullptr;
}
abi::Status* attribute_floats(const abi::KernelInfo*, const char*, float*, size_t*) { return no_such_attribute(); }
abi::Status* attribute_ints(const abi::KernelInfo* info, const char* name, int64_t* out, size_t* size) {
  CHECK(out == nullptr);  // the library only asks whether they are there
  if (find(info, name, Attribute::kIntegers) == nullptr) return no_such_attribute();
  *size = 0;
  return nullptr;
}

// --- inputs, outputs, tensors ---

const Run& run_of(const abi::KernelContext* context) { return *reinterpret_cast<const Run*>(context); }

abi::Status* input_count(const abi::KernelContext* context, size_t* out) {
  if (run_of(context).fault->strikes()) return failed("GetInputCount");
  *out = run_of(context).inputs.size();
  return nullptr;
}
abi::Status* output_count(const abi::KernelContext* context, size_t* out) {
  if (run_of(context).fault->strikes()) return failed("GetOutputCount");
  *out = run_of(context).outputs.size();
  return nullptr;
}
abi::Status* get_input(const abi::KernelContext* context, size_t index, const abi::Value** out) {
  if (run_of(context).fault->strikes()) return failed("GetInput");
  CHECK(index < run_of(context).inputs.size());
  *out = reinterpret_cast<const abi::Value*>(run_of(context).inputs[index].get());
  return nullptr;
}
abi::Status* get_output(abi::KernelContext* context, size_t index, const int64_t* dims, size_t rank, abi::Value** out) {
  Run& run = *reinterpret_cast<Run*>(context);
  if (run.fault->strikes()) return failed("GetOutput");
  CHECK(index < run.outputs.size() && run.outputs[index] != nullptr && run.outputs[index]->memory == nullptr);
  Tensor& tensor = *run.outputs[index];
  size_t bytes = element_size(tensor.type);
  for (size_t i = 0; i < rank; ++i) {
    CHECK(dims[i] >= 0 && !__builtin_mul_overflow(bytes, static_cast<size_t>(dims[i]), &bytes));
  }
  tensor.dims.assign(dims, dims + rank);
  tensor.memory = std::make_unique<Memory>(bytes, kLine, run.output_place);
  if (bytes > 0) std::memset(tensor.memory->data(), run.rubbish, bytes);
  *out = reinterpret_cast<abi::Value*>(&tensor);
  return nullptr;
}
abi::Status* tensor_data(abi::Value* value, void** out) {
  const Tensor& tensor = *reinterpret_cast<Tensor*>(value);
  if (tensor.fault->strikes()) return failed("GetTensorMutableData");
  *out = tensor.memory->data();
  return nullptr;
}
abi::Status* type_and_shape(const abi::Value* value, int* type, const int64_t** dims, size_t* rank) {
  const Tensor& tensor = *reinterpret_cast<const Tensor*>(value);
  if (tensor.fault->strikes()) return failed("GetTensorElementTypeAndShapeDataReference");
  *type = tensor.type;
  *dims = tensor.dims.data();
  *rank = tensor.dims.size();
  return nullptr;
}

struct Shape {
  const Tensor* tensor;
};
const Tensor& tensor_of(const abi::TensorInfo* info) { return *reinterpret_cast<const Shape*>(info)->tensor; }

abi::Status* tensor_info(const abi::Value* value, abi::TensorInfo** out) {
  const auto* tensor = reinterpret_cast<const Tensor*>(value);
  if (tensor->fault->strikes()) return failed("GetTensorTypeAndShape");
  ++live;
  *out = reinterpret_cast<abi::TensorInfo*>(new Shape{tensor});
  return nullptr;
}
abi::Status* element_type(const abi::TensorInfo* info, int* out) {
  if (tensor_of(info).fault->strikes()) return failed("GetTensorElementType");
  *out = tensor_of(info).type;
  return nullptr;
}
abi::Status* dimensions_count(const abi::TensorInfo* info, size_t* out) {
  if (tensor_of(info).fault->strikes()) return failed("GetDimensionsCount");
  *out = tensor_of(info).dims.size();
  return nullptr;
}
abi::Status* dimensions(const abi::TensorInfo* info, int64_t* out, size_t rank) {
  const Tensor& tensor = tensor_of(info);
  if (tensor.fault->strikes()) return failed("GetDimensions");
  for (size_t i = 0; i < rank && i < tensor.dims.size(); ++i) out[i] = tensor.dims[i];
  return nullptr;
}
void release_tensor_info(abi::TensorInfo* info) {
  --live;
  delete reinterpret_cast<Shape*>(info);
}

// --- memory ---

abi::Status* node_allocator(const abi::KernelInfo* info, int memory_type, abi::Allocator** out) {
  CHECK(memory_type == abi::kDefaultMemory);
  Allocator* allocator = reinterpret_cast<const Node*>(info)->allocator;
  if (allocator->fault->strikes()) return failed("KernelInfoGetAllocator");
  ++live;
  *out = reinterpret_cast<abi::Allocator*>(allocator);
  return nullptr;
}
void release_allocator(abi::Allocator*) { --live; }

// The library asks for room to align within. An address just behind a boundary makes it use all of that room, so that
// the next byte is not ours.
abi::Status* allocate(abi::Allocator* self, size_t bytes, void** out) {
  const Allocator& allocator = *reinterpret_cast<Allocator*>(self);
  if (allocator.fault->strikes()) return failed("Alloc");
  void* base = ::operator new(bytes + 1, std::align_val_t{kLine}, std::nothrow);
  if (base == nullptr) return failed("operator new");
  std::memset(base, allocator.rubbish, bytes + 1);
  ++live;
  *out = static_cast<char*>(base) + 1;
  return nullptr;
}
abi::Status* deallocate(abi::Allocator* self, void* memory) {
  --live;
  ::operator delete(static_cast<char*>(memory) - 1, std::align_val_t{kLine});
  return reinterpret_cast<Allocator*>(self)->fault->strikes() ? failed("Free") : nullptr;
}

// --- the table ---

void not_provided() {
  std::fprintf(stderr, "fake: a slot was called that the library does not declare\n");
  std::abort();
}

struct Slots {
  void (*slots[kSlots])();

  template <class S>
  void set(typename S::Function function) {
    slots[S::kIndex] = reinterpret_cast<void (*)()>(function);
  }

  explicit Slots(bool is_newest) {
    for (auto& slot : slots) slot = not_provided;
    set<abi::CreateStatus>(make_status);
    set<abi::GetErrorMessage>(message_of);
    set<abi::ReleaseStatus>(release_status);
    set<abi::CreateCustomOpDomain>(create_domain);
    set<abi::CustomOpDomainAdd>(add_record);
    set<abi::AddCustomOpDomain>(add_domain);
    set<abi::ReleaseCustomOpDomain>(release_domain);
    set<abi::GetAttributeFloat>(attribute_float);
    set<abi::GetAttributeInt>(attribute_int);
    set<abi::GetAttributeString>(attribute_string);
    set<abi::GetAttributeFloats>(attribute_floats);
    set<abi::GetAttributeInts>(attribute_ints);
    set<abi::GetInputCount>(input_count);
    set<abi::GetOutputCount>(output_count);
    set<abi::GetInput>(get_input);
    set<abi::GetOutput>(get_output);
    set<abi::GetTensorData>(tensor_data);
    set<abi::KernelInfoGetAllocator>(node_allocator);
    set<abi::ReleaseAllocator>(release_allocator);
    set<abi::AllocatorAlloc>(allocate);
    set<abi::AllocatorFree>(deallocate);
    if (is_newest) {
      set<abi::GetTypeAndShape>(type_and_shape);
    } else {
      set<abi::GetTensorInfo>(tensor_info);
      set<abi::GetElementType>(element_type);
      set<abi::GetDimensionsCount>(dimensions_count);
      set<abi::GetDimensions>(dimensions);
      set<abi::ReleaseTensorInfo>(release_tensor_info);
    }
  }
};

template <bool is_newest>
const abi::Table* table(uint32_t version) {
  static const Slots made(is_newest);
  return version <= (is_newest ? 31 : 18) ? reinterpret_cast<const abi::Table*>(made.slots) : nullptr;
}

}  // namespace

size_t element_size(int type) {
  switch (type) {
    case abi::kUint8:
    case abi::kInt8:
    case abi::kBool: return 1;
    case abi::kUint16:
    case abi::kInt16:
    case abi::kFloat16: return 2;
    case abi::kFloat:
    case abi::kInt32: return 4;
    case abi::kInt64: return 8;
    default: return 0;
  }
}

const abi::ApiBase* newest_release() {
  static const abi::ApiBase base{table<true>, [] { return "1.31.1"; }};
  return &base;
}

const abi::ApiBase* oldest_release() {
  static const abi::ApiBase base{table<false>, [] { return "1.18.0"; }};
  return &base;
}

std::vector<const abi::OpRecord*> register_ops(const std::function<abi::Status*(abi::SessionOptions*)>& function) {
  Session session;
  abi::Status* bad = function(reinterpret_cast<abi::SessionOptions*>(&session));
  if (bad != nullptr) std::fprintf(stderr, "%s\n", message_of(bad));
  CHECK(bad == nullptr && session.domains.size() == 1);
  return session.domains[0]->records;
}

std::string take_message(abi::Status* status) {
  std::string message = message_of(status);
  release_status(status);
  return message;
}

int64_t live_objects() { return live; }

}  // namespace edge_rt::fake
