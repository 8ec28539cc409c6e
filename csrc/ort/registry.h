// Turns op structs (ort/op.h) into records, and lists of them into a domain that sessions can use.
#pragma once

#include <climits>
#include <iterator>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <tuple>

#include "common/float_mode.h"
#include "ort/op.h"

namespace edge_rt::ort {

// The ops of a library: using AllOps = OpList<QuantLinear, SpecAttention>.
template <class... Ops>
struct OpList {};

// "Name(x:float,bias:float?)->(y:float)": how an op is declared, for a comparison with edge_rt/ort/op_library.py.
// Variadic: "*".
std::string signature(const OpShape& shape);

// The record of one op with what ONNX Runtime has no room for. It lives as long as the process.
template <class Op>
struct CustomOpBase : abi::OpRecord {
  Api api;
  Isa isa;

  static constexpr int kInputCount = static_cast<int>(std::size(Op::kInputs));
  static constexpr int kOutputCount = static_cast<int>(std::size(Op::kOutputs));
  static_assert(kInputCount <= kMaxPorts && kOutputCount <= kMaxPorts, "too many inputs or outputs");
  static constexpr OpShape kShape{Op::kName, std::data(Op::kInputs), kInputCount, std::data(Op::kOutputs),
                                  kOutputCount};

  // One node: the op's own state, and what is needed to run it.
  struct Kernel {
    const CustomOpBase* op;
    abi::Allocator* allocator;
    Op state;

    ~Kernel() {
      if (allocator != nullptr) op->api.template call<abi::ReleaseAllocator>(allocator);
    }
  };

  CustomOpBase(const Api& used_api, Isa used_isa) : abi::OpRecord{}, api(used_api), isa(used_isa) {
    using Record = const abi::OpRecord*;
    version = abi::kTableVersion;
    name = [](Record) { return Op::kName; };
    provider = [](Record) -> const char* { return nullptr; };
    input_type = [](Record, size_t i) -> int { return Op::kInputs[i].type; };
    input_count = [](Record) -> size_t { return kInputCount; };
    output_type = [](Record, size_t i) -> int { return Op::kOutputs[i].type; };
    output_count = [](Record) -> size_t { return kOutputCount; };
    destroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
    input_arity = [](Record, size_t i) -> int { return Op::kInputs[i].arity; };
    output_arity = [](Record, size_t i) -> int { return Op::kOutputs[i].arity; };
    input_memory = [](Record, size_t) -> int { return abi::kDefaultMemory; };
    variadic_input_minimum = [](Record) { return 1; };
    variadic_input_same_type = [](Record) { return 0; };
    variadic_output_minimum = [](Record) { return 1; };
    variadic_output_same_type = [](Record) { return 0; };
    since_version = [](Record) { return 1; };
    until_version = [](Record) { return INT_MAX; };
    create2 = make_kernel;
    compute2 = run_kernel;
  }

  static abi::Status* make_kernel(const abi::OpRecord* record, const abi::Table*, const abi::KernelInfo* info,
                                  void** out) {
    const auto* op = static_cast<const CustomOpBase*>(record);
    *out = nullptr;
    try {
      std::unique_ptr<Kernel> kernel(new Kernel{op, nullptr, Op{}});  // in place: an op need not be movable
      if (abi::Status* bad = op->api.template call<abi::KernelInfoGetAllocator>(
              info, static_cast<int>(abi::kDefaultMemory), &kernel->allocator)) {
        return bad;
      }
      Attributes attributes(op->api, info, kShape, op->isa);
      abi::Status* bad = kernel->state.create(attributes);
      // A missing attribute is the cause of whatever `create` found wrong with the value that stands in for it.
      if (abi::Status* problem = attributes.take_problem()) {
        if (bad != nullptr) op->api.template call<abi::ReleaseStatus>(bad);
        return problem;
      }
      if (bad != nullptr) return bad;
      *out = kernel.release();
      return nullptr;
    } catch (const std::bad_alloc&) {
      return make_status(op->api, "%s: Failed to allocate memory", Op::kName);
    } catch (...) {
      return make_status(op->api, "%s: unexpected failure while a kernel was created", Op::kName);
    }
  }

  static abi::Status* run_kernel(void* self, abi::KernelContext* raw) {
    const Kernel& kernel = *static_cast<const Kernel*>(self);
    const Api& api = kernel.op->api;
    const DefaultFloatMode mode;
    try {
      OpContext context(api, raw, kShape, kernel.allocator);
      if (abi::Status* bad = context.read_inputs()) return bad;
      return kernel.state.compute(context);
    } catch (const std::bad_alloc&) {
      return make_status(api, "%s: Failed to allocate memory", Op::kName);
    } catch (...) {
      return make_status(api, "%s: unexpected failure", Op::kName);
    }
  }
};

// All ops of a list for one instruction set, in a domain. Made once per process: sessions keep pointers into it.
template <class List>
class OpSet;

template <class... Ops>
class OpSet<OpList<Ops...>> {
 public:
  OpSet(const Api& api, [[maybe_unused]] Isa isa) : api_(api), records_(CustomOpBase<Ops>(api, isa)...) {}
  OpSet(const OpSet&) = delete;
  OpSet& operator=(const OpSet&) = delete;

  ~OpSet() {
    if (domain_ != nullptr) api_.call<abi::ReleaseCustomOpDomain>(domain_);
  }

  abi::Status* open(const char* domain_name) {
    if (abi::Status* bad = api_.call<abi::CreateCustomOpDomain>(domain_name, &domain_)) return bad;
    abi::Status* bad = nullptr;
    std::apply([&](auto&... record) { ((bad = bad != nullptr ? bad : add(record)), ...); }, records_);
    return bad;
  }

  abi::Status* add_to(abi::SessionOptions* options) const {
    return api_.call<abi::AddCustomOpDomain>(options, domain_);
  }

 private:
  template <class Record>
  abi::Status* add(const Record& record) {
    const abi::OpRecord* base = &record;
    return api_.call<abi::CustomOpDomainAdd>(domain_, static_cast<const void*>(base));
  }

  Api api_;
  std::tuple<CustomOpBase<Ops>...> records_;
  abi::CustomOpDomain* domain_ = nullptr;
};

// The signatures of a list, one a line.
template <class... Ops>
std::string signatures(OpList<Ops...>) {
  std::string lines;
  ((lines += signature(CustomOpBase<Ops>::kShape) + "\n"), ...);
  return lines;
}

// The op sets of a library, one per instruction set, made when first asked for. One object of static storage duration
// per library; never destroyed, because ONNX Runtime may use the records until the process ends.
template <class List>
class Registry {
 public:
  explicit Registry(const char* domain_name) : domain_name_(domain_name) {}

  abi::Status* register_ops(abi::SessionOptions* options, const abi::ApiBase* base, Isa isa) {
    Api api;
    if (const char* why = connect(base, &api)) {
      // Errors and tables are as old as the interface: slot 0 of any version can carry the sentence.
      if (api.table == nullptr && base != nullptr && base->table != nullptr) api.table = base->table(1);
      return api.table == nullptr ? nullptr : make_status(api, "%s", why);
    }
    try {
      const std::lock_guard<std::mutex> guard(lock_);
      std::unique_ptr<OpSet<List>>& set = sets_[static_cast<int>(isa)];
      if (set == nullptr) {
        auto made = std::make_unique<OpSet<List>>(api, isa);
        if (abi::Status* bad = made->open(domain_name_)) return bad;
        set = std::move(made);
      }
      return set->add_to(options);
    } catch (...) {
      return make_status(api, "edge_rt: Failed to allocate memory while operators were registered");
    }
  }

 private:
  const char* domain_name_;
  std::mutex lock_;
  std::unique_ptr<OpSet<List>> sets_[kIsaCount];
};

}  // namespace edge_rt::ort
