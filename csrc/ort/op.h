// What a custom op is written against. Nothing here or in an op throws across ONNX Runtime's C interface.
//
// An op is a struct that is its own kernel: one object per node, made by `create`, used by `compute` from any thread.
//
//   struct Scale {
//     static constexpr const char* kName = "Scale";
//     static constexpr ort::Port kInputs[] = {{"x", abi::kFloat}, {"bias", abi::kFloat, abi::kOptional}};
//     static constexpr ort::Port kOutputs[] = {{"y", abi::kFloat}};
//
//     abi::Status* create(ort::Attributes& attributes) {         // once per node, while a session is opened
//       factor_ = attributes.real("factor", 1.0f);               // a default makes it optional
//       if (factor_ == 0) return attributes.error("factor is 0, must not be");
//       return nullptr;                                          // missing or mistyped ones are reported by themselves
//     }
//
//     abi::Status* compute(ort::OpContext& context) const {      // const: runs may overlap
//       const ort::TensorView& x = context.input(0);             // required inputs are there and have their type
//       const ort::TensorView& bias = context.input(1);
//       if (abi::Status* bad = context.check_shape(1, {x.dims[0]})) return bad;   // an absent one passes
//       ort::TensorView y;
//       if (abi::Status* bad = context.output(0, {x.dims[0]}, &y)) return bad;
//       ort::Scratch scratch;
//       if (abi::Status* bad = context.scratch(4 * x.count, &scratch)) return bad;
//       auto body = [&](int64_t item) { ... };
//       run_phases(process_crew(), {make_phase(x.count, body)});                  // common/crew.h
//       return nullptr;
//     }
//
//     float factor_ = 1.0f;
//   };
//
// Add its header and its name to csrc/ops/all_ops.h. `attributes.isa()` says which kernels to use. An input may be
// written in place (x.data is mutable): that is how a cache is appended to; give it no output then. Inputs of several
// types are declared abi::kUndefined and checked with `check_type`.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "common/isa.h"
#include "common/crew.h"
#include "ort/api.h"
#include "ort_abi.h"

namespace edge_rt::ort {

constexpr int kMaxRank = 8;
constexpr int kMaxPorts = 32;  // inputs or outputs of one op

// An input or output as declared: its name in messages, its abi::ElementType, and its abi::Arity.
struct Port {
  const char* name;
  int type;
  int arity = abi::kRequired;
};

// Lists of ports one after the other, for ops that have some in common.
template <size_t... counts>
constexpr std::array<Port, (counts + ...)> join_ports(const Port (&... lists)[counts]) {
  std::array<Port, (counts + ...)> all{};
  size_t used = 0;
  const auto append = [&](const Port* list, size_t count) {
    for (size_t i = 0; i < count; ++i) all[used++] = list[i];
  };
  (append(lists, counts), ...);
  return all;
}

// What an op declares, in a form that does not depend on its type.
struct OpShape {
  const char* name;
  const Port* inputs;
  int input_count;
  const Port* outputs;
  int output_count;
};

// Returns an INVALID_ARGUMENT status with a message made like printf's.
[[gnu::format(printf, 2, 3)]] abi::Status* make_status(const Api& api, const char* format, ...);

// A tensor in memory that ONNX Runtime owns, C-contiguous. Not present: an optional one that was left out.
struct TensorView {
  void* data;
  int elem_type;
  int rank;
  int64_t dims[kMaxRank];
  size_t count;  // elements
  bool present;

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

// Attributes of a node. Reading never fails: the first problem is kept, and reported when `create` returns.
class Attributes {
 public:
  Attributes(const Api& api, const abi::KernelInfo* info, const OpShape& shape, Isa isa)
      : api_(api), info_(info), shape_(shape), isa_(isa) {}
  ~Attributes();
  Attributes(const Attributes&) = delete;
  Attributes& operator=(const Attributes&) = delete;

  // Required ones: absent is a problem.
  int64_t integer(const char* name);
  float real(const char* name);
  std::string text(const char* name);
  // Optional ones.
  int64_t integer(const char* name, int64_t fallback);
  float real(const char* name, float fallback);
  std::string text(const char* name, const char* fallback);

  // The instruction set whose kernels this node uses: usable on this CPU, and compiled.
  Isa isa() const { return isa_; }

  // "<op>: <message>".
  [[gnu::format(printf, 2, 3)]] abi::Status* error(const char* format, ...) const;

  // The first problem so far, given away; nullptr if there is none.
  abi::Status* take_problem();

 private:
  bool read(const char* name, int64_t* out) const;
  bool read(const char* name, float* out) const;
  bool read(const char* name, std::string* out) const;
  bool is_there(const char* name) const;  // whatever its type
  template <class T>
  T get(const char* name, const char* kind, const T* fallback);

  const Api& api_;
  const abi::KernelInfo* info_;
  const OpShape& shape_;
  Isa isa_;
  abi::Status* problem_ = nullptr;
};

// Memory for one run, on a 64-byte boundary, uninitialised; given back when it goes out of scope.
class Scratch {
 public:
  Scratch() = default;
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  void* data() const { return aligned_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(aligned_);
  }

 private:
  friend class OpContext;
  const Api* api_ = nullptr;
  abi::Allocator* allocator_ = nullptr;
  void* memory_ = nullptr;
  void* aligned_ = nullptr;
};

// One run of one node.
class OpContext {
 public:
  OpContext(const Api& api, abi::KernelContext* context, const OpShape& shape, abi::Allocator* allocator)
      : api_(api), context_(context), shape_(shape), allocator_(allocator) {}
  OpContext(const OpContext&) = delete;
  OpContext& operator=(const OpContext&) = delete;

  // Reads all inputs; fails where one is missing, of another type than declared, or of too many dimensions. Called
  // before `compute`.
  abi::Status* read_inputs();

  // Inputs that the node has; more than declared if the last one is variadic.
  int input_count() const { return input_count_; }
  const TensorView& input(int index) const { return inputs_[index]; }
  const char* input_name(int index) const;

  // Makes an output of these dimensions. An optional one that nobody reads is not present afterwards.
  abi::Status* output(int index, std::initializer_list<int64_t> dims, TensorView* out);
  abi::Status* output(int index, const int64_t* dims, int rank, TensorView* out);

  // At least one byte is given, so data() is never null on success.
  abi::Status* scratch(size_t bytes, Scratch* out);

  // "<op>: <message>".
  [[gnu::format(printf, 2, 3)]] abi::Status* error(const char* format, ...) const;

  // Fails unless the input has these dimensions; -1 stands for any. An absent input passes.
  abi::Status* check_shape(int index, std::initializer_list<int64_t> dims) const;
  // Fails unless the input has one of these element types. An absent input passes.
  abi::Status* check_type(int index, std::initializer_list<int> types) const;

 private:
  abi::Status* read_tensor(const abi::Value* value, int index, TensorView* out) const;
  abi::Status* read_type_and_shape(const abi::Value* value, int index, TensorView* out) const;
  abi::Status* too_many_dimensions(int index, size_t rank) const;

  const Api& api_;
  abi::KernelContext* context_;
  const OpShape& shape_;
  abi::Allocator* allocator_;
  int input_count_ = 0;
  TensorView inputs_[kMaxPorts];
};

// "float", "int8", ...
const char* type_name(int elem_type);

}  // namespace edge_rt::ort
