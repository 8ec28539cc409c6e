#include <cstdarg>
#include <cstdio>

#include "ort/op.h"

namespace edge_rt::ort {
namespace {

constexpr size_t kMaxMessage = 512;

abi::Status* prefixed(const Api& api, const char* op, const char* format, va_list arguments) {
  char text[kMaxMessage];
  std::vsnprintf(text, sizeof text, format, arguments);
  return make_status(api, "%s: %s", op, text);
}

}  // namespace

abi::Status* make_status(const Api& api, const char* format, ...) {
  char text[kMaxMessage];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return api.call<abi::CreateStatus>(abi::kInvalidArgument, static_cast<const char*>(text));
}

abi::Status* Attributes::error(const char* format, ...) const {
  va_list arguments;
  va_start(arguments, format);
  abi::Status* status = prefixed(api_, shape_.name, format, arguments);
  va_end(arguments);
  return status;
}

abi::Status* OpContext::error(const char* format, ...) const {
  va_list arguments;
  va_start(arguments, format);
  abi::Status* status = prefixed(api_, shape_.name, format, arguments);
  va_end(arguments);
  return status;
}

}  // namespace edge_rt::ort
