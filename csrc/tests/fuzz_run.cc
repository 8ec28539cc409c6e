#include "tests/fuzz_run.h"

#include <algorithm>
#include <cmath>

#include "common/crew.h"
namespace edge_rt::fuzz {
namespace {

std::unique_ptr<fake::Tensor> make_tensor(const Input& input, fake::Place place, fake::Fault* fault) {
  if (!input.present) return nullptr;
  // What ends with a page begins where its size says.
  if (place == fake::Place::kGuarded && input.alignment < sizeof(float)) place = fake::Place::kHeap;
  auto memory = std::make_unique<fake::Memory>(input.bytes.size(), input.alignment, place);
  if (!input.bytes.empty()) std::memcpy(memory->data(), input.bytes.data(), input.bytes.size());
  return std::make_unique<fake::Tensor>(fake::Tensor{input.type, input.dims, std::move(memory), fault});
}

std::vector<uint8_t> bytes_of(const fake::Tensor& tensor) {
  return std::vector<uint8_t>(tensor.memory->data(), tensor.memory->data() + tensor.memory->size());
}

bool are_same(const std::vector<uint8_t>& a, const uint8_t* b) {
  return a.empty() || std::memcmp(a.data(), b, a.size()) == 0;
}

// One compute. Inputs keep what was written to them.
std::string compute(const Case& call, const abi::OpRecord& record, const Conditions& conditions, void* kernel,
                    fake::Fault* fault, fake::Run* run, Outcome* outcome) {
  run->outputs.clear();
  for (const int type : call.output_types) {
    run->outputs.push_back(std::make_unique<fake::Tensor>(fake::Tensor{type, {}, nullptr, fault}));
  }
  run->fault = fault;
  run->rubbish = conditions.rubbish;
  run->output_place = conditions.place;
  process_crew().resize(conditions.threads);
  abi::Status* refused = record.compute2(kernel, reinterpret_cast<abi::KernelContext*>(run));
  outcome->message = refused == nullptr ? "" : fake::take_message(refused);
  if (refused != nullptr && outcome->message.empty()) return "the message is empty";
  for (size_t i = 0; i < run->inputs.size(); ++i) {
    if (run->inputs[i] == nullptr || (static_cast<int>(i) == call.in_place && refused == nullptr)) continue;
    if (!are_same(call.inputs[i].bytes, run->inputs[i]->memory->data())) {
      return "input " + std::to_string(i) + " changed";
    }
  }
  if (refused != nullptr) return "";
  outcome->outputs.clear();
  for (size_t i = 0; i < run->outputs.size(); ++i) {
    if (run->outputs[i]->memory == nullptr) return "an output was not made";
    if (i < call.outputs.size() && call.mistake.empty() && run->outputs[i]->dims != call.outputs[i]) {
      return "an output has other dimensions";
    }
    outcome->outputs.push_back(bytes_of(*run->outputs[i]));
  }
  if (call.in_place >= 0) outcome->in_place = bytes_of(*run->inputs[static_cast<size_t>(call.in_place)]);
  return "";
}

bool are_finite(const std::vector<uint8_t>& bytes) {
  for (size_t at = 0; at + sizeof(float) <= bytes.size(); at += sizeof(float)) {
    float value;
    std::memcpy(&value, &bytes[at], sizeof value);
    if (!std::isfinite(value)) return false;
  }
  return true;
}

std::string judge_writes(const Case& call, const std::vector<uint8_t>& after) {
  std::vector<uint8_t> before = call.inputs[static_cast<size_t>(call.in_place)].bytes;
  for (const ByteRange& range : call.writable) {
    std::copy(after.begin() + static_cast<int64_t>(range.begin), after.begin() + static_cast<int64_t>(range.end),
              before.begin() + static_cast<int64_t>(range.begin));
  }
  if (before != after) return "bytes changed that the call does not address";
  for (const Written& written : call.written) {
    if (call.is_tame && !are_same(written.bytes, after.data() + written.at)) return "a value was not written as it is";
  }
  return "";
}

}  // namespace

Conditions Conditions::any(Random& random) {
  Conditions conditions;
  // Now and then more threads than a phase has items: worker numbers then run through all that scratch memory is for.
  conditions.threads = random.one_in(6) ? static_cast<int>(random.between(2, random.one_in(8) ? 64 : 5)) : 1;
  conditions.rubbish = random.pick<uint8_t>({0x00, 0x5a, 0x7f, 0xff});  // 0xff...: no number
  conditions.place =
      random.pick({fake::Place::kHeap, fake::Place::kHeap, fake::Place::kGuarded, fake::Place::kNothing});
  conditions.trims = random.one_in(2);
  conditions.runs = random.one_in(4) ? 2 : 1;
  return conditions;
}

Outcome run(const Case& call, const abi::OpRecord& record, const Conditions& conditions, std::string* problem) {
  Outcome outcome;
  fake::Fault fault{conditions.fault};
  fake::Allocator allocator{&fault, conditions.rubbish};
  fake::Node node{call.attributes, &allocator};
  const int64_t live = fake::live_objects();
  void* kernel = nullptr;
  abi::Status* refused = record.create2(&record, nullptr, reinterpret_cast<const abi::KernelInfo*>(&node), &kernel);
  if (refused != nullptr) {
    outcome.message = fake::take_message(refused);
    if (kernel != nullptr) *problem = "a kernel was made in spite of a refusal";
  } else {
    fake::Run run{};
    for (const Input& input : call.inputs) run.inputs.push_back(make_tensor(input, conditions.place, &fault));
    while (conditions.trims && !run.inputs.empty() && run.inputs.back() == nullptr) run.inputs.pop_back();
    for (int i = 0; i < conditions.runs && problem->empty(); ++i) {
      const Outcome before = outcome;
      *problem = compute(call, record, conditions, kernel, &fault, &run, &outcome);
      if (!outcome.message.empty()) break;
      if (i > 0 && call.is_tame && problem->empty() &&
          (before.outputs != outcome.outputs || before.in_place != outcome.in_place)) {
        *problem = "a second run of the same call gave other bits";
      }
    }
    record.destroy(kernel);
  }
  outcome.calls = fault.calls;
  outcome.met_fault = fault.has_struck();
  if (problem->empty() && fake::live_objects() != live) *problem = "an object of ONNX Runtime was not released";
  return outcome;
}

std::string judge(const Case& call, const Outcome& outcome) {
  if (call.mistake.empty()) {
    if (!outcome.message.empty()) return "a good call was refused: " + outcome.message;
    for (size_t i = 0; call.is_tame && i < outcome.outputs.size(); ++i) {
      if (call.output_types[i] == abi::kFloat && !are_finite(outcome.outputs[i])) return "an output is not finite";
    }
    if (call.in_place >= 0) {
      const std::string bad = judge_writes(call, outcome.in_place);
      if (!bad.empty()) return bad;
    }
    return call.is_tame && call.verify ? call.verify(outcome.outputs) : "";
  }
  if (outcome.message.empty()) return "a call with a mistake was not refused";
  if (outcome.message.rfind(call.op + ": ", 0) != 0) {
    return "the message does not begin with the op: " + outcome.message;
  }
  const auto is_in = [&](const std::string& word) { return outcome.message.find(word) != std::string::npos; };
  if (!call.words.empty() && std::none_of(call.words.begin(), call.words.end(), is_in)) {
    return "the message is about something else: " + outcome.message;
  }
  return "";
}

}  // namespace edge_rt::fuzz
