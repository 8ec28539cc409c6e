#include "tests/fuzz_case.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

namespace edge_rt::fuzz {
namespace {

Input tensor(int type, std::vector<int64_t> dims) {
  Input input;
  input.type = type;
  input.dims = std::move(dims);
  input.resize();
  return input;
}

template <class T>
T& any_of(std::vector<T>& values, Random& random) {
  return values[static_cast<size_t>(random.below(static_cast<int64_t>(values.size())))];
}

bool change_type(Case& call, Random& random) {
  Input& input = any_of(call.inputs, random);
  const int type = random.pick<int>({abi::kFloat, abi::kUint8, abi::kInt8, abi::kInt32, abi::kInt64, abi::kFloat16});
  if (!input.present || type == input.type) return false;
  input.type = type;
  input.resize();
  call.words = {"must be "};
  return true;
}

bool change_rank(Case& call, Random& random) {
  Input& input = any_of(call.inputs, random);
  if (!input.present) return false;
  std::vector<int64_t>& dims = input.dims;
  switch (random.below(4)) {
    case 0: dims.insert(dims.begin(), 1); break;
    case 1: dims.push_back(1); break;
    case 2: dims.insert(dims.end(), 9, 1); break;
    default:
      if (dims.empty()) return false;
      dims.erase(dims.begin() + random.below(static_cast<int64_t>(dims.size())));
  }
  input.resize();
  return true;
}

bool change_dims(Case& call, Random& random, const CheckedDims& checked) {
  const auto& [index, dims] = checked[static_cast<size_t>(random.below(static_cast<int64_t>(checked.size())))];
  Input& input = call.inputs[static_cast<size_t>(index)];
  const auto which = static_cast<size_t>(dims[static_cast<size_t>(random.below(static_cast<int64_t>(dims.size())))]);
  if (!input.present || which >= input.dims.size()) return false;
  int64_t& dim = input.dims[which];
  const int64_t other = random.pick<int64_t>({dim - 1, dim + 1, 0, dim * 2, dim + 5});
  if (other == dim || other < 0) return false;
  dim = other;
  input.resize();
  return true;
}

}  // namespace

uint64_t Random::next() {
  uint64_t z = state_ += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

int64_t Random::size(int64_t most) {
  int64_t value = between(1, most);
  if (one_in(2)) value = between(1, std::min<int64_t>(most, 20));
  if (one_in(3)) value = between(0, std::min<int64_t>(most, 160) / 16) * 16 + between(-1, 1);
  return std::clamp<int64_t>(value, 1, most);
}

float Random::uniform(float low, float high) {
  return low + (high - low) * static_cast<float>(next() >> 40) * 0x1p-24f;
}

int64_t Input::count() const {
  int64_t count = 1;
  for (const int64_t dim : dims) count *= dim;
  return count;
}

void Input::resize() { bytes.resize(static_cast<size_t>(count()) * fake::element_size(type)); }

fake::Attribute* Case::attribute(const std::string& name) {
  for (fake::Attribute& attribute : attributes) {
    if (attribute.name == name) return &attribute;
  }
  attributes.push_back({name, fake::Attribute::kInteger, 0, 0.0f, ""});
  return &attributes.back();
}
void Case::set(const std::string& name, int64_t value) {
  *attribute(name) = {name, fake::Attribute::kInteger, value, 0.0f, ""};
}
void Case::set(const std::string& name, float value) {
  *attribute(name) = {name, fake::Attribute::kReal, 0, value, ""};
}
void Case::set(const std::string& name, const std::string& value) {
  *attribute(name) = {name, fake::Attribute::kText, 0, 0.0f, value};
}

Input floats(Random& random, std::vector<int64_t> dims, float low, float high) {
  Input input = tensor(abi::kFloat, std::move(dims));
  for (int64_t i = 0; i < input.count(); ++i) input.set(i, random.uniform(low, high));
  input.alignment = random.pick<size_t>({64, 64, 16, 4});
  return input;
}

Input int32s(std::vector<int64_t> dims) { return tensor(abi::kInt32, std::move(dims)); }

Input int64s(std::vector<int64_t> dims) { return tensor(abi::kInt64, std::move(dims)); }

Input bytes(Random& random, std::vector<int64_t> dims) {
  Input input = tensor(abi::kUint8, std::move(dims));
  size_t at = 0;
  for (; at + 8 <= input.bytes.size(); at += 8) {
    const uint64_t word = random.next();
    std::memcpy(&input.bytes[at], &word, sizeof word);
  }
  for (; at < input.bytes.size(); ++at) input.bytes[at] = static_cast<uint8_t>(random.next());
  return input;
}

uint16_t moderate_half(Random& random) {
  const uint64_t bits = random.next();
  return static_cast<uint16_t>((bits & 0x83ff) | static_cast<uint64_t>(random.between(3, 14)) << 10);
}

namespace {

std::vector<Mistake> attribute_mistakes(const std::vector<std::string>& names) {
  return {
      {"attribute missing",
       [names](Case& call, Random& random) {
         const std::string& name = names[static_cast<size_t>(random.below(static_cast<int64_t>(names.size())))];
         auto& all = call.attributes;
         all.erase(std::remove_if(all.begin(), all.end(), [&](const auto& a) { return a.name == name; }), all.end());
         call.words = {"attribute " + name};
         return true;
       }},
      {"attribute type", [](Case& call, Random& random) {
         if (call.attributes.empty()) return false;
         fake::Attribute& attribute = any_of(call.attributes, random);
         const auto kind = random.pick(
             {fake::Attribute::kInteger, fake::Attribute::kReal, fake::Attribute::kText, fake::Attribute::kIntegers});
         if (kind == attribute.kind) return false;
         attribute.kind = kind;
         call.words = {"attribute " + attribute.name};
         return true;
       }}};
}

}  // namespace

std::vector<Mistake> lasting_mistakes(const Subject& subject) {
  std::vector<Mistake> mistakes;
  if (!subject.required_attributes.empty()) mistakes = attribute_mistakes(subject.required_attributes);
  mistakes.push_back({"input missing", [required = subject.required](Case& call, Random& random) {
                        const auto which = static_cast<size_t>(random.below(static_cast<int64_t>(required.size())));
                        call.inputs[static_cast<size_t>(required[which])].present = false;
                        call.words = {"is missing"};
                        return true;
                      }});
  mistakes.push_back({"input type", change_type});
  mistakes.push_back({"input rank", change_rank});
  return mistakes;
}

std::vector<Mistake> common_mistakes(const Subject& subject) {
  std::vector<Mistake> mistakes = lasting_mistakes(subject);
  if (subject.checked.empty()) return mistakes;
  const CheckedDims checked = subject.checked;
  mistakes.push_back(
      {"input dimensions", [checked](Case& call, Random& random) { return change_dims(call, random, checked); }});
  return mistakes;
}

void make_wild(Case& call, Random& random, const std::vector<int>& packed_inputs) {
  call.is_tame = false;
  for (const int index : packed_inputs) {
    Input& input = call.inputs[static_cast<size_t>(index)];
    if (random.one_in(2)) input.bytes = bytes(random, {input.count()}).bytes;
  }
  for (Input& input : call.inputs) {
    if (!input.present || input.type != abi::kFloat || input.count() == 0 || random.one_in(2)) continue;
    if (call.finite_input >= 0 && &input == &call.inputs[static_cast<size_t>(call.finite_input)]) continue;
    const int64_t changes = random.one_in(3) ? input.count() : random.size(4);
    for (int64_t i = 0; i < changes; ++i) {
      const auto bits = static_cast<uint32_t>(random.next());
      float any;
      std::memcpy(&any, &bits, sizeof any);
      input.set(random.below(input.count()), random.pick({std::nanf(""), -std::nanf(""), HUGE_VALF, -HUGE_VALF, FLT_MAX,
                                                          -FLT_MAX, FLT_MIN, 1e-40f, -1e-45f, 0.0f, -0.0f, any}));
    }
  }
}

}  // namespace edge_rt::fuzz
