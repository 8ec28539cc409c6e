// Compiles kernels with the driver of the first Vulkan device, which need not be able to run anything, as those that
// Mesa's no-op shims pretend (docs/vulkan-kernels.md). Nothing is submitted, so no self-test says what is to be mended.
//
//   vulkan_compile <folder of kernels> <bits of float_exact.glsl> [<kernel> <choices>] ...
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "gpu/vulkan/vulkan_pipelines.h"
#include "tests/check.h"

namespace edge_rt::gpu {
namespace {

std::vector<uint32_t> read_kernel(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> image((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  CHECK(!image.empty() && image.size() % sizeof(uint32_t) == 0);
  std::vector<uint32_t> words(image.size() / sizeof(uint32_t));
  std::memcpy(words.data(), image.data(), image.size());
  return words;
}

// A kernel whose name has the suffix ".dots" is compiled as it is, whatever the device has.
bool compile(VulkanLink* link, const std::string& folder, const char* name, uint32_t mended, uint32_t choices) {
  VulkanPipelines pipelines(link, {{name, read_kernel(folder + "/" + name + ".spv")}}, "");
  pipelines.restart(mended);
  GpuError error;
  const auto begin = std::chrono::steady_clock::now();
  const bool is_made = pipelines.find({name, choices}, 0, &error) != nullptr;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  std::printf("%-28s %10u %6.1f s  %s\n", name, choices, took.count(), is_made ? "made" : error.sentence.c_str());
  std::fflush(stdout);
  return is_made;
}

int run(int argc, char** argv) {
  CHECK(argc >= 3 && argc % 2 == 1);
  GpuError error;
  VulkanLink link(VulkanInstance::open(&error));
  if (error || !link.find(0, &error) || !link.open(&error)) {
    std::fprintf(stderr, "%s\n", error.sentence.c_str());
    return 77;
  }
  std::printf("%s, %s\n", link.facts().name.c_str(), link.facts().driver.c_str());
  bool are_made = true;
  for (int i = 3; i < argc; i += 2) {
    const auto choices = static_cast<uint32_t>(std::strtoul(argv[i + 1], nullptr, 0));
    are_made = compile(&link, argv[1], argv[i], static_cast<uint32_t>(std::atoi(argv[2])), choices) && are_made;
  }
  return are_made ? 0 : 1;
}

}  // namespace
}  // namespace edge_rt::gpu

int main(int argc, char** argv) { return edge_rt::gpu::run(argc, argv); }
