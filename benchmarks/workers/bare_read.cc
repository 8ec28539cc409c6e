// What reading a file's bytes costs: the lower bound of a pass that uses every weight once. Prints milliseconds.
//
//     c++ -O3 -march=native -pthread -o bare_read benchmarks/workers/bare_read.cc
//     ./bare_read weights.bin [THREADS [BYTES]]        {"read": [median, minimum]}
//
// BYTES: how many of the file, its first ones; without it, all.
//
// The file is mapped and in the page cache after the first round, which is not counted.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

constexpr int kRounds = 20;
constexpr size_t kLanes = 8;

// Several sums, so that additions do not wait for each other.
uint64_t sum_of(const uint64_t* words, size_t count) {
  uint64_t sums[8 * kLanes] = {};
  size_t at = 0;
  for (; at + 8 * kLanes <= count; at += 8 * kLanes) {
    for (size_t lane = 0; lane < 8 * kLanes; lane++) sums[lane] += words[at + lane];
  }
  uint64_t total = 0;
  for (uint64_t sum : sums) total += sum;
  for (; at < count; at++) total += words[at];
  return total;
}

int main(int argc, char** argv) {
  if (argc < 2) return std::fprintf(stderr, "usage: bare_read FILE [THREADS [BYTES]]\n"), 2;
  const int threads = argc > 2 ? std::atoi(argv[2]) : 2;
  const int file = open(argv[1], O_RDONLY);
  struct stat facts;
  if (file < 0 || fstat(file, &facts) != 0 || threads < 1) return std::perror(argv[1]), 1;
  const auto size = static_cast<size_t>(facts.st_size);
  const size_t read = argc > 3 ? std::min<size_t>(size, std::strtoull(argv[3], nullptr, 10)) : size;
  const size_t count = read / sizeof(uint64_t);
  void* mapped = mmap(nullptr, static_cast<size_t>(facts.st_size), PROT_READ, MAP_SHARED, file, 0);
  if (mapped == MAP_FAILED) return std::perror(argv[1]), 1;
  const auto* words = static_cast<const uint64_t*>(mapped);
  std::vector<double> milliseconds;
  uint64_t total = 0;
  for (int round = 0; round <= kRounds; round++) {
    std::vector<uint64_t> sums(threads);
    const auto begin = std::chrono::steady_clock::now();
    std::vector<std::thread> workers;
    for (int t = 0; t < threads; t++) {
      const size_t first = count * t / threads, last = count * (t + 1) / threads;
      workers.emplace_back([&sums, words, first, last, t] { sums[t] = sum_of(words + first, last - first); });
    }
    for (std::thread& worker : workers) worker.join();
    const std::chrono::duration<double, std::milli> taken = std::chrono::steady_clock::now() - begin;
    for (uint64_t sum : sums) total += sum;
    if (round > 0) milliseconds.push_back(taken.count());
  }
  std::sort(milliseconds.begin(), milliseconds.end());
  std::printf("{\"read\": [%.3f, %.3f], \"bytes\": %zu, \"sum\": %llu}\n", milliseconds[kRounds / 2], milliseconds[0],
              read, static_cast<unsigned long long>(total));
}
