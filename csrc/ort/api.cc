#include "ort/api.h"

#include <cstdlib>

namespace edge_rt::ort {
namespace {

// Reads "1.31.1" or "1.31.1-dev"; false if it does not begin with two numbers.
bool read_version(const char* text, long* major, long* minor) {
  if (text == nullptr || *text < '0' || *text > '9') return false;
  char* rest = nullptr;
  *major = std::strtol(text, &rest, 10);
  if (*rest != '.' || rest[1] < '0' || rest[1] > '9') return false;
  *minor = std::strtol(rest + 1, &rest, 10);
  return true;
}

// Whether a release has the table of a version.
bool has_table(long major, long minor, uint32_t version) {
  return major > 1 || (major == 1 && minor >= static_cast<long>(version));
}

}  // namespace

const char* connect(const abi::ApiBase* base, Api* out) {
  *out = Api{};
  if (base == nullptr || base->table == nullptr || base->version_string == nullptr) {
    return "edge_rt: ONNX Runtime handed over no interface.";
  }
  long major = 0, minor = 0;
  const bool is_known = read_version(base->version_string(), &major, &minor);
  // A table that a release lacks is not asked for: it would complain to stderr.
  const bool is_new = is_known && has_table(major, minor, abi::kNewestTableVersion);
  const abi::Table* newest = is_new ? base->table(abi::kNewestTableVersion) : nullptr;
  out->table = newest != nullptr ? newest : base->table(abi::kTableVersion);
  if (out->table == nullptr) return "edge_rt: this ONNX Runtime lacks interface version 18; 1.18 or newer is needed.";
  if (!is_known) return "edge_rt: ONNX Runtime's version cannot be read; 1.18 or newer is needed.";
  if (!has_table(major, minor, abi::kTableVersion)) return "edge_rt: ONNX Runtime is older than 1.18.";
  if (newest != nullptr) {
    out->get_type_and_shape =
        reinterpret_cast<abi::GetTypeAndShape::Function>(newest->slots[abi::GetTypeAndShape::kIndex]);
  }
  return nullptr;
}

}  // namespace edge_rt::ort
