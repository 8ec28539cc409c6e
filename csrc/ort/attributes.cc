#include "ort/op.h"

namespace edge_rt::ort {

Attributes::~Attributes() {
  if (problem_ != nullptr) api_.call<abi::ReleaseStatus>(problem_);
}

abi::Status* Attributes::take_problem() {
  abi::Status* problem = problem_;
  problem_ = nullptr;
  return problem;
}

bool Attributes::read(const char* name, int64_t* out) const {
  abi::Status* failed = api_.call<abi::GetAttributeInt>(info_, name, out);
  if (failed != nullptr) api_.call<abi::ReleaseStatus>(failed);
  return failed == nullptr;
}

bool Attributes::read(const char* name, float* out) const {
  abi::Status* failed = api_.call<abi::GetAttributeFloat>(info_, name, out);
  if (failed != nullptr) api_.call<abi::ReleaseStatus>(failed);
  return failed == nullptr;
}

bool Attributes::read(const char* name, std::string* out) const {
  // Asked for its size first; the size counts the final zero. Absent ones leave it at 0.
  size_t size = 0;
  abi::Status* failed = api_.call<abi::GetAttributeString>(info_, name, static_cast<char*>(nullptr), &size);
  if (failed != nullptr) api_.call<abi::ReleaseStatus>(failed);
  if (size == 0) return false;
  std::string text(size, '\0');
  failed = api_.call<abi::GetAttributeString>(info_, name, &text[0], &size);
  if (failed != nullptr) {
    api_.call<abi::ReleaseStatus>(failed);
    return false;
  }
  text.resize(size - 1);
  *out = std::move(text);
  return true;
}

bool Attributes::is_there(const char* name) const {
  int64_t whole;
  float real;
  std::string text;
  if (read(name, &whole) || read(name, &real) || read(name, &text)) return true;
  for (const bool are_floats : {true, false}) {
    size_t size = 0;
    abi::Status* failed = are_floats
                              ? api_.call<abi::GetAttributeFloats>(info_, name, static_cast<float*>(nullptr), &size)
                              : api_.call<abi::GetAttributeInts>(info_, name, static_cast<int64_t*>(nullptr), &size);
    if (failed == nullptr) return true;
    api_.call<abi::ReleaseStatus>(failed);
  }
  return false;
}

template <class T>
T Attributes::get(const char* name, const char* kind, const T* fallback) {
  T value{};
  if (read(name, &value)) return value;
  // ONNX Runtime reports absent and mistyped alike; a mistyped one must not turn into its default in silence.
  if (problem_ == nullptr) {
    if (is_there(name)) {
      problem_ = error("attribute %s is not %s", name, kind);
    } else if (fallback == nullptr) {
      problem_ = error("attribute %s is missing, must be %s", name, kind);
    }
  }
  return fallback != nullptr ? *fallback : T{};
}

int64_t Attributes::integer(const char* name) { return get<int64_t>(name, "an integer", nullptr); }

float Attributes::real(const char* name) { return get<float>(name, "a float", nullptr); }

std::string Attributes::text(const char* name) { return get<std::string>(name, "a string", nullptr); }

int64_t Attributes::integer(const char* name, int64_t fallback) { return get(name, "an integer", &fallback); }

float Attributes::real(const char* name, float fallback) { return get(name, "a float", &fallback); }

std::string Attributes::text(const char* name, const char* fallback) {
  const std::string copy = fallback;
  return get(name, "a string", &copy);
}

}  // namespace edge_rt::ort
