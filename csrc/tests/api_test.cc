// Which ONNX Runtimes are accepted, against tables made up here.
#include "ort/api.h"

#include <cstring>
#include <string>

#include "ort/registry.h"
#include "tests/check.h"

using namespace edge_rt;  // NOLINT: a program, not a header

namespace {

constexpr int kSlots = 425;
void (*slots[kSlots])() = {};
uint32_t newest_table = 0, largest_asked = 0;
const char* version = "";
std::string last_message;

const abi::Table* table(uint32_t wanted) {
  largest_asked = wanted > largest_asked ? wanted : largest_asked;
  return wanted <= newest_table ? reinterpret_cast<const abi::Table*>(slots) : nullptr;
}
const char* version_string() { return version; }

abi::Status* create_status(int code, const char* message) {
  last_message = std::to_string(code) + " " + message;
  return reinterpret_cast<abi::Status*>(&last_message);
}

const abi::ApiBase kBase{table, version_string};

bool is_refused(uint32_t newest, const char* text) {
  newest_table = newest;
  version = text;
  ort::Api api;
  return ort::connect(&kBase, &api) != nullptr;
}

bool has_fast_shapes(const char* text, uint32_t newest) {
  newest_table = newest;
  version = text;
  ort::Api api;
  CHECK(ort::connect(&kBase, &api) == nullptr);
  return api.get_type_and_shape != nullptr;
}

}  // namespace

int main() {
  slots[abi::CreateStatus::kIndex] = reinterpret_cast<void (*)()>(create_status);
  slots[abi::GetTypeAndShape::kIndex] = reinterpret_cast<void (*)()>(create_status);

  CHECK(is_refused(17, "1.18.0"));
  for (const char* old : {"1.17.3", "0.99.0", "1.9.0", "", "1", "1.", "x.18", "1.x", ".18"}) CHECK(is_refused(18, old));
  CHECK(is_refused(18, nullptr));
  for (const char* good : {"1.18.0", "1.31.1", "1.18.0-dev", "2.0.0"}) CHECK(!is_refused(18, good));
  ort::Api api;
  CHECK(ort::connect(nullptr, &api) != nullptr);

  // Slot 414 is read from a table that has it, and from no other.
  CHECK(!has_fast_shapes("1.18.1", 18) && !has_fast_shapes("1.23.9", 23) && !has_fast_shapes("1.24.0-rc", 23));
  CHECK(has_fast_shapes("1.24.0", 24) && has_fast_shapes("1.31.1", 31) && has_fast_shapes("2.0.0", 40));
  // A release is not asked for what it lacks.
  largest_asked = 0;
  CHECK(!has_fast_shapes("1.23.2", 23) && largest_asked == 18);

  // A refusal reaches ONNX Runtime as an error, not as a session without ops.
  newest_table = 17;
  version = "1.17.1";
  ort::Registry<ort::OpList<>> registry("edge_rt");
  CHECK(registry.register_ops(nullptr, &kBase, Isa::kScalar) != nullptr);
  CHECK(last_message == "2 edge_rt: this ONNX Runtime lacks interface version 18; 1.18 or newer is needed.");

  CHECK(ort::make_status(api = ort::Api{table(1), nullptr}, "%s is %d", "x", 3) != nullptr);
  CHECK(last_message == "2 x is 3");
  return 0;
}
