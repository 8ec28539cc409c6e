#include "tests/vulkan_faults/faults.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace vulkan_faults {
namespace {

bool read_number(const std::string& text, int64_t* out) {
  char* end = nullptr;
  *out = std::strtoll(text.c_str(), &end, 10);
  return !text.empty() && *end == '\0';
}

bool read_result(const std::string& text, int32_t* out) {
  static const std::map<std::string, int32_t> kNames = {
      {"memory", kOutOfDeviceMemory}, {"host", kOutOfHostMemory}, {"lost", kDeviceLost}, {"hang", kTimeout}};
  if (const auto named = kNames.find(text); named != kNames.end()) {
    *out = named->second;
    return true;
  }
  int64_t number = 0;
  if (!read_number(text, &number)) return false;
  *out = static_cast<int32_t>(number);
  return true;
}

// The extension's name of a function is the function's, and both ways to submit are one.
std::string plain_name(std::string function) {
  for (const std::string ending : {"KHR", "2"}) {
    const size_t size = function.size() - std::min(function.size(), ending.size());
    if (function.compare(size, ending.size(), ending) == 0) function.resize(size);
  }
  return function;
}

}  // namespace

bool Faults::understand(const std::string& setting, Plan* out) {
  const size_t equals = setting.find('=');
  if (equals == std::string::npos) return false;
  const std::string name = setting.substr(0, equals), value = setting.substr(equals + 1);
  int64_t number = 0;
  if (name == "swap") return std::sscanf(value.c_str(), "%u:%u", &out->from, &out->to) == 2;
  if (name.compare(0, 2, "vk") != 0) {
    if (!read_number(value, &number) || number < 0) return false;
    if (name == "delay_us")
      out->delay_us = static_cast<uint64_t>(number);
    else if (name == "patience_s")
      out->patience_s = static_cast<uint64_t>(number);
    else if (name == "memory")
      out->memory = static_cast<uint64_t>(number);
    else if (name == "type")
      out->type = static_cast<uint32_t>(number);
    else if (name == "grid")
      out->grid = static_cast<uint32_t>(number);
    else if (name == "hold")
      out->holds = number != 0;
    else if (name == "strict")
      out->strict = number != 0;
    else
      return false;
    return true;
  }
  const size_t colon = value.find(':');
  if (colon == std::string::npos || colon == 0) return false;
  out->all = value[colon - 1] == '+';
  out->function = plain_name(name);
  return read_number(value.substr(0, colon - (out->all ? 1 : 0)), &out->number) &&
         read_result(value.substr(colon + 1), &out->result);
}

bool Faults::set(const std::string& settings) {
  Plan plan;
  std::istringstream words(settings);
  for (std::string word; words >> word;) {
    if (!understand(word, &plan)) return false;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  plan.number += calls_[plan.function];
  plan_ = plan;
  return true;
}

int32_t Faults::take(const char* function) {
  const std::string name = plain_name(function);
  const std::lock_guard<std::mutex> lock(mutex_);
  const int64_t number = calls_[name]++;
  if (plan_.function != name || number < plan_.number || (number > plan_.number && !plan_.all)) return kSuccess;
  return plan_.result;
}

int64_t Faults::calls(const std::string& function) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return calls_[plain_name(function)];
}

uint64_t Faults::delay_us() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return plan_.delay_us;
}

uint64_t Faults::patience_s() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return plan_.patience_s;
}

uint64_t Faults::memory() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return plan_.memory;
}

uint32_t Faults::type() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return plan_.type;
}

uint32_t Faults::grid() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return plan_.grid;
}

bool Faults::holds() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return plan_.holds;
}

uint32_t Faults::swapped(uint32_t opcode) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return opcode == plan_.from && plan_.from != 0 ? plan_.to : opcode;
}

void Faults::count(const char* kind, int change, int64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  live_[kind] += change;
  live_["bytes"] += bytes;
}

std::string Faults::live() {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::string text;
  for (const auto& [kind, number] : live_) {
    if (number != 0) text += (text.empty() ? "" : ", ") + kind + " " + std::to_string(number);
  }
  return text;
}

int64_t Faults::live_bytes() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return live_["bytes"];
}

void Faults::import(int64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  imported_ += bytes;
}

int64_t Faults::imported() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return imported_;
}

void Faults::complain(const std::string& sentence) {
  std::fprintf(stderr, "vulkan_faults: %s\n", sentence.c_str());
  const std::lock_guard<std::mutex> lock(mutex_);
  ++complaints_;
  if (plan_.strict) std::abort();
}

int64_t Faults::complaints() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return complaints_;
}

// Never destroyed: devices may be given back while the process ends.
Faults& faults() {
  static Faults* const the_faults = [] {
    auto* made = new Faults;
    const char* settings = std::getenv("EDGE_RT_VULKAN_FAULTS");
    if (settings != nullptr && !made->set(settings)) {
      made->complain(std::string("EDGE_RT_VULKAN_FAULTS is not understood: ") + settings);
      std::abort();
    }
    return made;
  }();
  return *the_faults;
}

}  // namespace vulkan_faults
