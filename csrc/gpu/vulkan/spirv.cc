#include "gpu/vulkan/spirv.h"

#include <cstring>
#include <initializer_list>

namespace edge_rt::gpu {
namespace {

// Of the SPIR-V specification.
constexpr uint32_t kMagic = 0x07230203;
constexpr size_t kHeaderWords = 5;
enum Opcode : uint32_t {
  kExtension = 10,
  kExtInstImport = 11,
  kExtInst = 12,
  kEntryPoint = 15,
  kExecutionMode = 16,
  kCapability = 17,
  kFma = 4427
};
enum Capability : uint32_t {
  kShader = 1,
  kStorage16 = 4433,
  kDenormPreserve = 4464,
  kZeroInfNanPreserve = 4466,
  kRoundingModeRte = 4467,
  kAddresses = 5347,
  kPackedDots = 6018,
  kDots = 6019,
  kFmas = 6030
};
constexpr uint32_t kGlFma = 50;       // of the extended instructions of GLSL
constexpr uint32_t kRunsCompute = 5;  // an entry point's model
constexpr uint32_t kModeSubnormals = 4459, kModeZeros = 4461, kModeRte = 4462;

bool has(uint32_t capability, const VulkanFacts& facts) {
  switch (capability) {
    case kShader:
    case kStorage16:
    case kAddresses: return true;
    case kPackedDots:
    case kDots: return facts.has_dots;
    default: return false;
  }
}

// Text in words of four bytes, ended by a zero.
void append_text(const char* text, std::vector<uint32_t>* out) {
  const size_t bytes = std::strlen(text) + 1;
  const size_t first = out->size();
  out->resize(first + (bytes + 3) / 4);
  std::memcpy(&(*out)[first], text, bytes);
}

class Adapter {
 public:
  Adapter(const VulkanFacts& facts, std::vector<uint32_t>* out) : facts_(facts), out_(out) {}

  bool run(const std::vector<uint32_t>& words, std::string* error) {
    if (words.size() < kHeaderWords || words[0] != kMagic) return fail("is no SPIR-V", error);
    out_->assign(words.begin(), words.begin() + kHeaderWords);
    for (size_t place = kHeaderWords; place < words.size();) {
      const size_t count = words[place] >> 16;
      if (count == 0 || count > words.size() - place) return fail("ends inside an instruction", error);
      if (!take(&words[place], count, error)) return false;
      place += count;
    }
    return has_entry_ || fail("has no entry point", error);
  }

 private:
  static bool fail(const std::string& what, std::string* error) {
    *error = what;
    return false;
  }

  void add(std::initializer_list<uint32_t> words) { out_->insert(out_->end(), words); }

  // Capabilities come first in a module, then extensions, entry points and execution modes, each kind together.
  bool take(const uint32_t* words, size_t count, std::string* error) {
    const uint32_t opcode = words[0] & 0xffff;
    if (opcode == kCapability && count == 2) {
      if (!has(words[1], facts_)) {
        return fail("needs SPIR-V's capability " + std::to_string(words[1]) + ", which the GPU does not have", error);
      }
    } else if (!has_capabilities_) {
      add_capabilities();
      has_capabilities_ = true;
    }
    if (opcode == kExtInstImport && count > 2 &&
        std::strncmp(reinterpret_cast<const char*>(words + 2), "GLSL.std.450", 4 * (count - 2)) == 0) {
      gl_ = words[1];
    }
    if (opcode == kEntryPoint) {
      if (count < 4 || words[1] != kRunsCompute) return fail("is no compute kernel", error);
      if (has_entry_) return fail("has two entry points", error);
      has_entry_ = true;
      out_->insert(out_->end(), words, words + count);
      add_modes(words[2]);
      return true;
    }
    if (facts_.has_fma && opcode == kExtInst && count == 8 && words[3] == gl_ && words[4] == kGlFma) {
      add({6u << 16 | kFma, words[1], words[2], words[5], words[6], words[7]});
      return true;
    }
    out_->insert(out_->end(), words, words + count);
    return true;
  }

  void add_capabilities() {
    const auto capability = [&](uint32_t number) { add({2u << 16 | kCapability, number}); };
    if (facts_.keeps_denormals) capability(kDenormPreserve);
    if (facts_.keeps_signs) capability(kZeroInfNanPreserve);
    if (facts_.rounds_to_even) capability(kRoundingModeRte);
    if (!facts_.has_fma) return;
    capability(kFmas);
    const size_t first = out_->size();
    out_->push_back(0);
    append_text("SPV_KHR_fma", out_);
    (*out_)[first] = static_cast<uint32_t>(out_->size() - first) << 16 | kExtension;
  }

  void add_modes(uint32_t entry) {
    const auto mode = [&](uint32_t number) { add({4u << 16 | kExecutionMode, entry, number, 32u}); };
    if (facts_.keeps_denormals) mode(kModeSubnormals);
    if (facts_.keeps_signs) mode(kModeZeros);
    if (facts_.rounds_to_even) mode(kModeRte);
  }

  const VulkanFacts& facts_;
  std::vector<uint32_t>* out_;
  bool has_capabilities_ = false, has_entry_ = false;
  uint32_t gl_ = 0;
};

}  // namespace

bool adapt_module(const std::vector<uint32_t>& words, const VulkanFacts& facts, std::vector<uint32_t>* out,
                  std::string* problem) {
  return Adapter(facts, out).run(words, problem);
}

}  // namespace edge_rt::gpu
