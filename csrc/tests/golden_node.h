// A node of the library, run on the fake ONNX Runtime.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/fake_ort.h"

namespace edge_rt::golden {

// A tensor that somebody else owns.
struct Tensor {
  int type = 0;
  std::vector<int64_t> dims;
  void* data = nullptr;  // null: an optional input that is left out
};

inline Tensor tensor_of(std::vector<int64_t> dims, const float* data) {
  return {abi::kFloat, std::move(dims), const_cast<float*>(data)};
}
inline Tensor tensor_of(std::vector<int64_t> dims, const int32_t* data) {
  return {abi::kInt32, std::move(dims), const_cast<int32_t*>(data)};
}
inline Tensor tensor_of(std::vector<int64_t> dims, const uint8_t* data) {
  return {abi::kUint8, std::move(dims), const_cast<uint8_t*>(data)};
}

// Runs a node of a certain op: run_node without its name.
using NodeRunner = std::function<std::vector<std::vector<uint8_t>>(const std::vector<fake::Attribute>& attributes,
                                                                   const std::vector<Tensor>& inputs,
                                                                   const std::vector<int>& outputs, int threads)>;

// Returns the bytes of the outputs, of these types, of a node on `threads` threads; it writes to none of its inputs.
std::vector<std::vector<uint8_t>> run_node(const std::string& op, const std::vector<fake::Attribute>& attributes,
                                           const std::vector<Tensor>& inputs, const std::vector<int>& outputs,
                                           int threads);

// The same of an op by its record, which need not be the library's.
std::vector<std::vector<uint8_t>> run_record(const abi::OpRecord& record,
                                             const std::vector<fake::Attribute>& attributes,
                                             const std::vector<Tensor>& inputs, const std::vector<int>& outputs,
                                             int threads);

// Returns the one output, floats, of a node on `threads` threads; what it writes to input `in_place` is written back.
// The instruction set is the one selected by edge_rt_select_isa.
std::vector<float> run_node(const std::string& op, const std::vector<fake::Attribute>& attributes,
                            const std::vector<Tensor>& inputs, size_t in_place, int threads);

}  // namespace edge_rt::golden
