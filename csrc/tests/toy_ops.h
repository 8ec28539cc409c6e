// Small ops that use every part of the op layer, so that tests can drive it through ONNX Runtime. csrc/register.cc
// makes a library of them as it does of the real ones.
#pragma once

#include <string>
#include <vector>

#include "ort/registry.h"

namespace edge_rt {

// y = factor * x + bias; `elements` counts them. Attributes of every kind, optional inputs and outputs, several types.
struct Affine {
  static constexpr const char* kName = "Affine";
  static constexpr ort::Port kInputs[] = {
      {"x", abi::kFloat}, {"bias", abi::kUndefined, abi::kOptional}, {"last", abi::kFloat, abi::kOptional}};
  static constexpr ort::Port kOutputs[] = {{"y", abi::kFloat}, {"elements", abi::kInt64, abi::kOptional}};

  abi::Status* create(ort::Attributes& attributes) {
    factor_ = attributes.real("factor");
    offset_ = static_cast<float>(attributes.integer("offset", 0));
    mode_ = attributes.text("mode", "plain");
    if (mode_ != "plain" && mode_ != "negated") {
      return attributes.error("mode is \"%s\", must be plain or negated", mode_.c_str());
    }
    return nullptr;
  }

  abi::Status* compute(ort::OpContext& context) const {
    const ort::TensorView& x = context.input(0);
    const ort::TensorView& bias = context.input(1);
    const ort::TensorView& last = context.input(2);
    if (abi::Status* bad = context.check_shape(0, {-1, 2})) return bad;
    if (abi::Status* bad = context.check_shape(1, {x.dims[0], 2})) return bad;
    if (abi::Status* bad = context.check_type(1, {abi::kFloat, abi::kInt32})) return bad;
    ort::TensorView y, elements;
    if (abi::Status* bad = context.output(0, x.dims, x.rank, &y)) return bad;
    if (abi::Status* bad = context.output(1, {1}, &elements)) return bad;
    for (size_t i = 0; i < x.count; ++i) {
      float sum = factor_ * x.as<float>()[i] + offset_;
      if (bias.present) {
        sum += bias.elem_type == abi::kFloat ? bias.as<float>()[i] : static_cast<float>(bias.as<int32_t>()[i]);
      }
      if (last.present) sum += last.as<float>()[0];
      y.as<float>()[i] = mode_ == "negated" ? -sum : sum;
    }
    if (elements.present) elements.as<int64_t>()[0] = static_cast<int64_t>(x.count);
    return nullptr;
  }

  float factor_ = 0, offset_ = 0;
  std::string mode_;
};

// Writes `row` into row `at` of `cache`, an input; gives the sum of the rows up to it.
struct Append {
  static constexpr const char* kName = "Append";
  static constexpr ort::Port kInputs[] = {{"cache", abi::kFloat}, {"row", abi::kFloat}, {"at", abi::kInt64}};
  static constexpr ort::Port kOutputs[] = {{"sum", abi::kFloat}};

  abi::Status* create(ort::Attributes&) { return nullptr; }

  abi::Status* compute(ort::OpContext& context) const {
    const ort::TensorView& cache = context.input(0);
    const int64_t width = cache.dims[1], at = context.input(2).as<int64_t>()[0];
    if (abi::Status* bad = context.check_shape(1, {width})) return bad;
    if (at < 0 || at >= cache.dims[0]) {
      return context.error("at is %lld, must be below %lld", static_cast<long long>(at),
                           static_cast<long long>(cache.dims[0]));
    }
    ort::TensorView sum;
    if (abi::Status* bad = context.output(0, {width}, &sum)) return bad;
    for (int64_t i = 0; i < width; ++i) {
      cache.as<float>()[at * width + i] = context.input(1).as<float>()[i];
      sum.as<float>()[i] = 0;
      for (int64_t r = 0; r <= at; ++r) sum.as<float>()[i] += cache.as<float>()[r * width + i];
    }
    return nullptr;
  }
};

// `rounds` times: every element becomes itself plus its right neighbour, in phases over the session's threads. Also
// gives the number of threads that took part.
struct Rounds {
  static constexpr const char* kName = "Rounds";
  static constexpr ort::Port kInputs[] = {{"x", abi::kInt64}};
  static constexpr ort::Port kOutputs[] = {{"y", abi::kInt64}, {"threads", abi::kInt64}};

  abi::Status* create(ort::Attributes& attributes) {
    rounds_ = attributes.integer("rounds");
    return nullptr;
  }

  abi::Status* compute(ort::OpContext& context) const {
    const ort::TensorView& x = context.input(0);
    const auto n = static_cast<int64_t>(x.count);
    ort::TensorView y, threads;
    ort::Scratch scratch;
    if (abi::Status* bad = context.output(0, {n}, &y)) return bad;
    if (abi::Status* bad = context.output(1, {1}, &threads)) return bad;
    if (abi::Status* bad = context.scratch(x.count * sizeof(int64_t), &scratch)) return bad;
    if (reinterpret_cast<uintptr_t>(scratch.data()) % 64 != 0) return context.error("scratch is not aligned");
    bool took_part[kMaxWorkers] = {};
    for (int64_t i = 0; i < n; ++i) y.as<int64_t>()[i] = x.as<int64_t>()[i];
    auto add = [&](int64_t i, int worker) {
      took_part[worker] = true;
      scratch.as<int64_t>()[i] = y.as<int64_t>()[i] + y.as<int64_t>()[(i + 1) % n];
    };
    auto copy = [&](int64_t i) { y.as<int64_t>()[i] = scratch.as<int64_t>()[i]; };
    std::vector<Phase> phases;
    for (int64_t round = 0; round < rounds_; ++round) {
      phases.push_back(make_phase(n, add));
      phases.push_back(make_phase(n, copy));
    }
    run_phases(process_crew(), phases.data(), static_cast<int>(phases.size()));
    threads.as<int64_t>()[0] = 0;
    for (const bool part : took_part) threads.as<int64_t>()[0] += part;
    return nullptr;
  }

  int64_t rounds_ = 0;
};

// Asks for more scratch memory than there is.
struct Greedy {
  static constexpr const char* kName = "Greedy";
  static constexpr ort::Port kInputs[] = {{"x", abi::kFloat}};
  static constexpr ort::Port kOutputs[] = {{"y", abi::kFloat}};

  abi::Status* create(ort::Attributes&) { return nullptr; }

  abi::Status* compute(ort::OpContext& context) const {
    ort::Scratch scratch;
    return context.scratch(size_t{1} << 60, &scratch);
  }
};

// Gives the number of the instruction set that it was registered for.
struct WhichIsa {
  static constexpr const char* kName = "WhichIsa";
  static constexpr ort::Port kInputs[] = {{"x", abi::kUndefined}};
  static constexpr ort::Port kOutputs[] = {{"isa", abi::kInt64}};

  abi::Status* create(ort::Attributes& attributes) {
    isa_ = attributes.isa();
    return nullptr;
  }

  abi::Status* compute(ort::OpContext& context) const {
    ort::TensorView isa;
    if (abi::Status* bad = context.output(0, {1}, &isa)) return bad;
    isa.as<int64_t>()[0] = static_cast<int64_t>(isa_);
    return nullptr;
  }

  Isa isa_ = Isa::kScalar;
};

using AllOps = ort::OpList<Affine, Append, Rounds, Greedy, WhichIsa>;

}  // namespace edge_rt
