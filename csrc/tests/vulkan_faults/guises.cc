#include "tests/vulkan_faults/guises.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace vulkan_faults {
namespace {

// Of types of memory: the device's own, mapped by the host, without flushes, cached for the host.
constexpr uint32_t kOwn = 1, kMapped = 2, kCoherent = 4, kCached = 8;
constexpr uint32_t kShared = kOwn | kMapped | kCoherent;
constexpr uint32_t kIntegrated = 1, kDiscrete = 2;
constexpr uint64_t kMiB = uint64_t{1} << 20, kGiB = kMiB << 10;

// In the order of Guise's members: kind, Vulkan 1.x, shared bytes, threads, largest allocation and buffer; dots,
// subnormals, signs, rounding, portable, budget; shift, types of buffers, heaps, types.
const std::vector<Guise>& guises() {
  // clang-format off: a table
  static const auto* const all = new std::vector<Guise>{
    // Raspberry Pi 5, Mesa 25.0: one type of memory, which the host does not cache.
    {"v3dv", kIntegrated, 3, 16384, 256, kGiB, kGiB,
     true, true, true, true, false, false,
     0, 1, {4 * kGiB}, {{kShared, 0}}},
    // Adreno with Mesa's Turnip 25.0: cached memory is not what is named first, or needs flushes.
    {"turnip", kIntegrated, 3, 32768, 1024, 4 * kGiB - 1, 4 * kGiB - 1,
     true, false, true, true, false, false,
     0, 7, {4 * kGiB}, {{kShared, 0}, {kShared | kCached, 0}, {kOwn | kMapped | kCached, 0}}},
    // The same by the maker's driver, with little of what is optional.
    {"adreno", kIntegrated, 2, 32768, 512, kGiB, kGiB,
     false, false, false, false, false, false,
     0, 6, {4 * kGiB}, {{kOwn, 0}, {kOwn | kMapped | kCached, 0}, {kShared, 0}}},
    // Mali by Arm's driver.
    {"mali", kIntegrated, 3, 32768, 512, 4 * kGiB - 1, 4 * kGiB - 1,
     true, true, true, true, false, false,
     0, 7, {4 * kGiB}, {{kShared, 0}, {kOwn | kMapped | kCached, 0}, {kShared | kCached, 0}}},
    // Metal by way of MoltenVK.
    {"moltenvk", kIntegrated, 3, 32768, 1024, 2 * kGiB, 2 * kGiB,
     false, false, false, false, true, true,
     64, 3, {4 * kGiB}, {{kOwn, 0}, {kShared | kCached, 0}}},
    // A card whose memory the host sees 256 MiB of; images alone have a type of its own.
    {"nvidia", kDiscrete, 3, 49152, 1024, 4 * kGiB, 4 * kGiB,
     true, true, true, true, false, true,
     0, 0x3d, {2 * kGiB, 4 * kGiB, 256 * kMiB}, {{0, 1}, {kOwn, 0}, {kOwn, 0}, {kMapped | kCoherent, 1}, {kMapped | kCoherent | kCached, 1}, {kShared, 2}}},
    // An APU whose firmware sets 512 MiB aside.
    {"carveout", kIntegrated, 3, 32768, 1024, 2 * kGiB, 2 * kGiB,
     true, true, true, true, false, true,
     0, 0xf, {512 * kMiB, 3 * kGiB}, {{kOwn, 0}, {kMapped | kCoherent, 1}, {kShared, 0}, {kMapped | kCoherent | kCached, 1}}},
    // Vulkan 1.2 and no more than it demands.
    {"least", kIntegrated, 2, 16384, 128, kGiB, kGiB,
     false, false, false, false, false, false,
     16, 1, {kGiB}, {{kShared, 0}}},
  };
  // clang-format on
  return *all;
}

const Guise* find() {
  const char* const wanted = std::getenv("EDGE_RT_VULKAN_GUISE");
  if (wanted == nullptr || *wanted == '\0') return nullptr;
  for (const Guise& one : guises()) {
    if (std::strcmp(one.name, wanted) == 0) return &one;
  }
  std::fprintf(stderr, "vulkan_faults: there is no guise %s\n", wanted);
  std::abort();
}

}  // namespace

const Guise* guise() {
  static const Guise* const chosen = find();
  return chosen;
}

}  // namespace vulkan_faults
