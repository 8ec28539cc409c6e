// What a driver makes of kernels, kept in a file: whole, damaged, another device's, and how long kernels then take.
//
//   vulkan_pipelines_test <folder of kernels>
//
// Runs no kernel, so that drivers without a device will do. Ends with 77 where there is no Vulkan device.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "gpu/vulkan/pipeline_file.h"
#include "gpu/vulkan/vulkan_device.h"
#include "tests/check.h"

namespace edge_rt::gpu {
namespace {

int of_device = 0;

std::vector<char> bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void put(const std::string& path, const std::vector<char>& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

KernelCode read_kernels(const std::string& folder) {
  KernelCode out;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    // The self-test would run, and of each kernel one form is enough.
    if (entry.path().extension() != ".spv" || entry.path().stem().has_extension()) continue;
    if (entry.path().stem() == "self_test") continue;
    const std::vector<char> image = bytes_of(entry.path());
    const auto* const words = reinterpret_cast<const uint32_t*>(image.data());
    out[entry.path().stem()] = {words, words + image.size() / sizeof(uint32_t)};
  }
  return out;
}

// Makes all kernels; milliseconds.
double make_all(const KernelCode& kernels, const std::string& file) {
  GpuError error;
  const auto device = VulkanDevice::open(of_device, kernels, {}, &error, file);
  CHECK(device != nullptr);
  const auto begin = std::chrono::steady_clock::now();
  for (const auto& [name, code] : kernels)
    CHECK(device->pipelines().find(Kernel{name.c_str(), 1}, 0, &error) != nullptr);
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  device->pipelines().save();
  return took.count();
}

void test_files(const std::string& path, const VulkanFacts& facts) {
  const std::vector<char> whole = bytes_of(path), data = read_pipelines(path, facts);
  CHECK(data.size() >= 32 && whole.size() > data.size());
  VulkanFacts other = facts;
  other.device ^= 1;
  CHECK(read_pipelines(path, other).empty());
  other = facts;
  other.cache_id[15] ^= 1;  // another version of the driver
  CHECK(read_pipelines(path, other).empty());
  const std::string damaged = path + ".damaged";
  for (size_t at : {size_t{0}, size_t{9}, size_t{17}, size_t{24}, whole.size() / 2, whole.size() - 1}) {
    std::vector<char> bytes = whole;
    bytes[at] ^= 4;
    put(damaged, bytes);
    CHECK(read_pipelines(damaged, facts).empty());
  }
  for (const size_t size : {size_t{0}, size_t{8}, size_t{24}, whole.size() - 1}) {
    put(damaged, {whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)});
    CHECK(read_pipelines(damaged, facts).empty());
  }
  std::vector<char> longer = whole;
  longer.push_back(0);
  put(damaged, longer);
  CHECK(read_pipelines(damaged, facts).empty());
  // Nor is a folder that is not there an error.
  CHECK(!write_pipelines(path + "/none/file", data) && read_pipelines(path + "/none/file", facts).empty());
}

int run(const std::string& folder) {
  std::vector<GpuFacts> gpus;
  GpuError error;
  const KernelCode kernels = read_kernels(folder);
  CHECK(!kernels.empty());
  if (!list_gpus(&gpus, &error)) return 77;
  while (static_cast<size_t>(of_device) < gpus.size() && !gpus[static_cast<size_t>(of_device)].refusal.empty()) {
    ++of_device;
  }
  if (static_cast<size_t>(of_device) == gpus.size()) return 77;
  const std::string path = std::filesystem::temp_directory_path() / ("pipelines." + std::to_string(::getpid()));
  const double first = make_all(kernels, path);
  const std::vector<char> kept = bytes_of(path);
  const double second = make_all(kernels, path);
  CHECK(bytes_of(path) == kept);  // nothing is new
  std::printf("%s: %zu kernels in %.0f ms, with a file of %zu bytes in %.0f ms\n",
              gpus[static_cast<size_t>(of_device)].name.c_str(), kernels.size(), first, kept.size(), second);
  {
    const auto device = VulkanDevice::open(of_device, {}, {}, &error);
    CHECK(device != nullptr);
    test_files(path, device->link().facts());
  }
  put(path, {kept.begin(), kept.begin() + static_cast<std::ptrdiff_t>(kept.size() / 2)});
  make_all({*kernels.begin()}, path);
  CHECK(bytes_of(path).size() > 32);  // written anew
  std::filesystem::remove(path);
  std::filesystem::remove(path + ".damaged");
  return 0;
}

}  // namespace
}  // namespace edge_rt::gpu

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  return edge_rt::gpu::run(argv[1]);
}
