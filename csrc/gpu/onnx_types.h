// Which operators of the provider are ONNX's, in which versions, and for which types.
#pragma once

#include <climits>
#include <iterator>
#include <type_traits>

namespace edge_rt::gpu {

// A type in the description of an operator of ONNX, such as "T", and the one of those it allows that the provider has.
struct OnnxType {
  const char* name;
  int type;  // abi::ElementType
};

// Versions of an operator, as `since_version` counts them.
struct OnnxVersions {
  int first, last;
};

// Operators with a list kTypes are ONNX's, the others our own.
template <class Op, class = void>
struct OnnxTypes {
  static constexpr const char* kDomain = "edge_rt";
  static constexpr OnnxVersions kVersions{1, INT_MAX};
  static constexpr const OnnxType* kTypes = nullptr;
  static constexpr int kCount = 0;
};
template <class Op>
struct OnnxTypes<Op, std::void_t<decltype(Op::kTypes)>> {
  static constexpr const char* kDomain = "";
  static constexpr OnnxVersions kVersions = Op::kVersions;
  static constexpr const OnnxType* kTypes = std::data(Op::kTypes);
  static constexpr int kCount = static_cast<int>(std::size(Op::kTypes));
};

}  // namespace edge_rt::gpu
