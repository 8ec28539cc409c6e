#include "gpu/vulkan/pipeline_file.h"

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>

namespace edge_rt::gpu {
namespace {

constexpr char kMagic[8] = {'e', 'd', 'g', 'e', 'p', 'i', 'p', '1'};
constexpr std::streamoff kMost = std::streamoff{256} << 20;

struct Head {
  char magic[8];
  uint64_t bytes;
  uint64_t digest;
};

// What a driver's data begins with (VkPipelineCacheHeaderVersionOne).
struct DriverHead {
  uint32_t bytes, version, vendor, device;
  uint8_t id[16];
};

// FNV-1a: files are damaged by chance, and nobody but this user writes there.
uint64_t digest_of(const std::vector<char>& data) {
  uint64_t digest = 0xcbf29ce484222325;
  for (const char byte : data) digest = (digest ^ static_cast<uint8_t>(byte)) * 0x100000001b3;
  return digest;
}

bool is_of(const std::vector<char>& data, const VulkanFacts& facts) {
  DriverHead head;
  if (data.size() < sizeof head) return false;
  std::memcpy(&head, data.data(), sizeof head);
  return head.bytes >= sizeof head && head.bytes <= data.size() && head.version == 1 && head.vendor == facts.vendor &&
         head.device == facts.device && std::memcmp(head.id, facts.cache_id, sizeof head.id) == 0;
}

}  // namespace

std::vector<char> read_pipelines(const std::string& path, const VulkanFacts& facts) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const std::streamoff size = file.tellg();
  Head head;
  // Memory is taken for what the file has, whatever it says of itself.
  if (!file || size < static_cast<std::streamoff>(sizeof head) || size > kMost || !file.seekg(0) ||
      !file.read(reinterpret_cast<char*>(&head), sizeof head) || std::memcmp(head.magic, kMagic, sizeof kMagic) != 0 ||
      head.bytes != static_cast<uint64_t>(size) - sizeof head) {
    return {};
  }
  std::vector<char> data(head.bytes);
  if (!file.read(data.data(), static_cast<std::streamsize>(data.size())) || digest_of(data) != head.digest ||
      !is_of(data, facts)) {
    return {};
  }
  return data;
}

bool write_pipelines(const std::string& path, const std::vector<char>& data) {
  Head head{{}, data.size(), digest_of(data)};
  std::memcpy(head.magic, kMagic, sizeof kMagic);
  const std::string other = path + "." + std::to_string(::getpid());
  bool is_whole = false;
  {
    std::ofstream file(other, std::ios::binary | std::ios::trunc);
    file.write(reinterpret_cast<const char*>(&head), sizeof head);
    file.write(data.data(), static_cast<std::streamsize>(data.size()));
    file.close();
    is_whole = !file.fail();
  }
  if (is_whole && std::rename(other.c_str(), path.c_str()) == 0) return true;
  std::remove(other.c_str());
  return false;
}

}  // namespace edge_rt::gpu
