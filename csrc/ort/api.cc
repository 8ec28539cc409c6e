#include "ort/api.h"

#include <cstdlib>

namespace edge_rt::ort {
namespace {

constexpr int kOldestMinor = 18;        // the release that brought table version 18
constexpr int kTypeAndShapeMinor = 24;  // the release that brought slot 414

// Reads "1.31.1" or "1.31.1-dev"; false if it does not begin with two numbers.
bool read_version(const char* text, long* major, long* minor) {
  if (text == nullptr || *text < '0' || *text > '9') return false;
  char* rest = nullptr;
  *major = std::strtol(text, &rest, 10);
  if (*rest != '.' || rest[1] < '0' || rest[1] > '9') return false;
  *minor = std::strtol(rest + 1, &rest, 10);
  return true;
}

bool is_at_least(long major, long minor, int wanted_minor) {
  return major > 1 || (major == 1 && minor >= wanted_minor);
}

}  // namespace

const char* connect(const abi::ApiBase* base, Api* out) {
  *out = Api{};
  if (base == nullptr || base->table == nullptr || base->version_string == nullptr) {
    return "edge_rt: ONNX Runtime handed over no interface.";
  }
  out->table = base->table(abi::kTableVersion);
  if (out->table == nullptr) return "edge_rt: this ONNX Runtime lacks interface version 18; 1.18 or newer is needed.";
  long major = 0, minor = 0;
  if (!read_version(base->version_string(), &major, &minor)) {
    return "edge_rt: ONNX Runtime's version cannot be read; 1.18 or newer is needed.";
  }
  if (!is_at_least(major, minor, kOldestMinor)) return "edge_rt: ONNX Runtime is older than 1.18.";
  if (is_at_least(major, minor, kTypeAndShapeMinor)) {
    out->get_type_and_shape = reinterpret_cast<abi::GetTypeAndShape::Function>(
        out->table->slots[abi::GetTypeAndShape::kIndex]);
  }
  return nullptr;
}

}  // namespace edge_rt::ort
