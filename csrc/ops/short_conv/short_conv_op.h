// ShortConv's face to ONNX Runtime.
#pragma once

#include <vector>

#include "ops/pass_rows/pass_rows_check.h"
#include "ops/short_conv/short_conv.h"
#include "ort/op.h"

namespace edge_rt {

// y [S, C] of bcx [S, 3 C] (short_conv.h says how), with a weight [taps, C] and maybe a bias [C]. cache [W, C] is
// appended to in place; past_length, row_map, parents and sequence_rows say where (pass_rows_check.h), with a window of
// as many rows as there are taps. Everything is checked before anything is written.
struct ShortConv {
  static constexpr const char* kName = "ShortConv";
  static constexpr ort::Port kInputs[] = {{"bcx", abi::kFloat},
                                          {"cache", abi::kFloat},
                                          {"past_length", abi::kInt32},
                                          {"row_map", abi::kInt32},
                                          {"parents", abi::kInt32},
                                          {"weight", abi::kFloat},
                                          {"bias", abi::kFloat, abi::kOptional},
                                          {"sequence_rows", abi::kInt32}};
  static constexpr ort::Port kOutputs[] = {{"y", abi::kFloat}};

  abi::Status* create(ort::Attributes& attributes);
  abi::Status* compute(ort::OpContext& context) const;

  // Checks all inputs, makes the output, and describes the pass of every sequence; `depths` must outlive them.
  static constexpr RowInputs kRows{2, 3, 4, 7};
  abi::Status* check(ort::OpContext& context, std::vector<ConvPass>* passes, Depths* depths) const;

 private:
  const ShortConvKernels* kernels_ = nullptr;
};

}  // namespace edge_rt
