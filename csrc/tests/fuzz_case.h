// One call of an op, made up at random: either one that must work, or one with a mistake that must be refused.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "tests/fake_ort.h"

namespace edge_rt::fuzz {

// splitmix64.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next();
  // 0 ... bound - 1.
  int64_t below(int64_t bound) { return static_cast<int64_t>((next() >> 1) % static_cast<uint64_t>(bound)); }
  int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }
  bool one_in(int64_t n) { return below(n) == 0; }
  // 1 ... most, small ones often, and often next to a multiple of 16.
  int64_t size(int64_t most);
  float uniform(float low, float high);
  template <class T>
  T pick(std::initializer_list<T> values) {
    return values.begin()[below(static_cast<int64_t>(values.size()))];
  }

 private:
  uint64_t state_;
};

struct Input {
  bool present = true;
  int type = abi::kUndefined;
  std::vector<int64_t> dims;
  std::vector<uint8_t> bytes;
  size_t alignment = 64;

  int64_t count() const;
  void resize();  // the bytes, after a change of type or dims; new ones are 0
  template <class T>
  T get(int64_t index) const {
    T value;
    std::memcpy(&value, bytes.data() + static_cast<size_t>(index) * sizeof(T), sizeof(T));
    return value;
  }
  template <class T>
  void set(int64_t index, T value) {
    std::memcpy(bytes.data() + static_cast<size_t>(index) * sizeof(T), &value, sizeof(T));
  }
};

struct ByteRange {
  size_t begin, end;
};

// Bytes that must stand in the tensor that is written in place.
struct Written {
  size_t at;
  std::vector<uint8_t> bytes;
};

using Outputs = std::vector<std::vector<uint8_t>>;

struct Case {
  std::string op;
  std::vector<fake::Attribute> attributes;
  std::vector<Input> inputs;
  std::vector<std::vector<int64_t>> outputs;  // dimensions that they must have
  std::vector<int> output_types;

  std::vector<std::string> features;  // what a good call is about, to be counted
  // Kinds of mistakes in it; none: the call must work. Several are joined by "+".
  std::string mistake;
  std::vector<std::string> words;  // the message must hold one of them; none: any message will do
  // Inputs are finite and of moderate size: so must the outputs be, with the same bits on every instruction set.
  bool is_tame = true;

  int finite_input = -1;            // the one whose numbers are checked
  int in_place = -1;                // the input that is written
  std::vector<ByteRange> writable;  // where
  std::vector<Written> written;
  std::function<std::string(const Outputs&)> verify;  // what is wrong with the outputs; "" if nothing

  fake::Attribute* attribute(const std::string& name);
  void set(const std::string& name, int64_t value);
  void set(const std::string& name, float value);
  void set(const std::string& name, const std::string& value);
};

// Tensors of random content.
Input floats(Random& random, std::vector<int64_t> dims, float low, float high);
Input int32s(std::vector<int64_t> dims);
Input int64s(std::vector<int64_t> dims);
Input bytes(Random& random, std::vector<int64_t> dims);
// A finite half between 2^-12 and 1 in size.
uint16_t moderate_half(Random& random);

// A way to spoil a good call. False: it does not apply to this one, which is then as it was.
struct Mistake {
  const char* name;
  std::function<bool(Case&, Random&)> make;
};

// Dimensions of an input that the op checks: {input, {dimensions}}.
using CheckedDims = std::vector<std::pair<int, std::vector<int>>>;

// An op: how to make a good call of it, what it asks of any call, and the mistakes that are its own.
struct Subject {
  const char* op;
  std::function<Case(Random&)> make;
  std::vector<int> required;  // inputs that cannot be left out
  CheckedDims checked;
  std::vector<std::string> required_attributes;
  std::vector<int> packed_inputs;  // bytes that hold numbers of other types
  std::vector<Mistake> own_mistakes;
  std::vector<std::string> features;  // that good calls must have had, among them
  // The parts of a good call, in the order of their rows of the output, as calls of their own that write what it
  // writes; empty: it has no parts.
  std::function<std::vector<Case>(const Case&)> take_apart = {};
};

// The mistakes that any op can be called with.
std::vector<Mistake> common_mistakes(const Subject& subject);
// Without those that a second mistake could put right.
std::vector<Mistake> lasting_mistakes(const Subject& subject);

// Not a mistake: puts NaN, infinite, tiny and huge numbers into some float inputs, and rubbish into packed bytes.
void make_wild(Case& call, Random& random, const std::vector<int>& packed_inputs);

Subject quant_linear();
Subject quant_linear_parts();
Subject quant_embed();
Subject row_top_k();
Subject spec_attention();
Subject short_conv();
Subject state_conv();
Subject gated_delta();
Subject ssm_scan();
Subject experts();
Subject decoder_layer();
Subject draft_head();

}  // namespace edge_rt::fuzz
