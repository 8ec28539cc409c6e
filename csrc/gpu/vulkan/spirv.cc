#include "gpu/vulkan/spirv.h"

namespace edge_rt::gpu {
namespace {

// SPIR-V, unified 1.6: an instruction's first word is its count of words, and its number.
constexpr uint32_t kMagic = 0x07230203, kHeaderWords = 5;
constexpr uint32_t kCapability = 17, kEntryPoint = 15, kExecutionMode = 16;

struct FloatMode {
  bool is_offered;
  uint32_t capability, mode;
};

constexpr uint32_t instruction(uint32_t number, uint32_t words) { return words << 16 | number; }

}  // namespace

std::vector<uint32_t> with_float_modes(const std::vector<uint32_t>& words, const VulkanFacts& facts) {
  if (words.size() < kHeaderWords || words[0] != kMagic) return {};
  const FloatMode modes[] = {
      {facts.keeps_denormals, 4464, 4459},  // DenormPreserve
      {facts.keeps_signs, 4466, 4461},      // SignedZeroInfNanPreserve
      {facts.rounds_to_even, 4467, 4462},   // RoundingModeRTE
  };
  std::vector<uint32_t> out(words.begin(), words.begin() + kHeaderWords);
  bool has_capabilities = false, has_modes = false;
  uint32_t entry = 0;
  for (size_t at = kHeaderWords; at < words.size();) {
    const uint32_t number = words[at] & 0xffff, count = words[at] >> 16;
    if (count == 0 || count > words.size() - at) return {};
    if (number == kCapability && !has_capabilities) {
      has_capabilities = true;
      for (const FloatMode& mode : modes) {
        if (mode.is_offered) out.insert(out.end(), {instruction(kCapability, 2), mode.capability});
      }
    }
    if (number == kEntryPoint && count > 2) entry = words[at + 2];
    if (number == kExecutionMode && !has_modes) {
      has_modes = true;
      for (const FloatMode& mode : modes) {
        if (mode.is_offered) out.insert(out.end(), {instruction(kExecutionMode, 4), entry, mode.mode, 32});
      }
    }
    out.insert(out.end(), words.begin() + static_cast<std::ptrdiff_t>(at),
               words.begin() + static_cast<std::ptrdiff_t>(at + count));
    at += count;
  }
  return has_capabilities && has_modes ? out : std::vector<uint32_t>{};
}

}  // namespace edge_rt::gpu
