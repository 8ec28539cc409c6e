// A cache of experts: what calls on several threads read through it, in less room than there are experts; reads that
// fail, end early or are stopped; experts that begin and end anywhere in a page.
#include "ops/experts/expert_cache.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/check.h"

namespace edge_rt {
namespace {

using Wanted = ExpertCache::Wanted;

constexpr int kExperts = 12, kPieces = 3;

// A file in memory, at whose addresses nothing is read but by `read`.
struct File {
  std::vector<uint8_t> bytes;
  std::atomic<int> error{0};
  std::atomic<int64_t> most{INT64_MAX};  // bytes of a read
  std::atomic<int> interrupted{0};       // reads that fail first, by a signal
  std::vector<Wanted> experts;

  File() : bytes(900'000) {
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 31 + i / 251);
    size_t at = 17;
    for (int e = 0; e < kExperts; ++e) {
      Wanted& wanted = experts.emplace_back();
      for (; wanted.count < kPieces; ++wanted.count) {
        const size_t size = 1 + (at * 7919) % 20'000;
        wanted.pieces[wanted.count] = {bytes.data() + at, static_cast<int64_t>(size)};
        at += size + at % 3;
      }
    }
    const ExpertCache::Piece& last = experts.back().pieces[kPieces - 1];
    bytes.resize(static_cast<size_t>(last.address - bytes.data() + last.bytes));  // it ends within a page
  }

  static int64_t read(void* user, void* to, int64_t count, int64_t offset) {
    auto* const file = static_cast<File*>(user);
    if (file->interrupted.fetch_sub(1) > 0) return -EINTR;
    if (file->error != 0) return -file->error;
    CHECK(offset >= 0 && offset % ExpertCache::kPage == 0 && count % ExpertCache::kPage == 0);
    const int64_t there = std::max<int64_t>(0, static_cast<int64_t>(file->bytes.size()) - offset);
    const int64_t got = std::min({count, there, file->most.load()});
    std::memcpy(to, file->bytes.data() + offset, static_cast<size_t>(got));
    return got;
  }

  std::shared_ptr<ExpertCache> cache(int64_t slots) {
    int64_t most = 0;
    for (const Wanted& wanted : experts) most = std::max(most, wanted.slot_bytes());
    return std::make_shared<ExpertCache>(bytes.data(), static_cast<int64_t>(bytes.size()),
                                         std::vector<ExpertCache::Pool>{{most, slots}}, read, this);
  }
};

// Whether every byte of a held expert is the file's.
bool is_whole(const ExpertCall& call, const Wanted& wanted, void* slot) {
  for (int i = 0; i < wanted.count; ++i) {
    const ExpertCache::Piece& piece = wanted.pieces[i];
    if (std::memcmp(call.place(wanted, i, slot), piece.address, static_cast<size_t>(piece.bytes)) != 0) return false;
  }
  return true;
}

bool reads(ExpertCall& call, const Wanted& wanted) {
  bool is_there = false;
  void* const slot = call.hold(wanted, &is_there);
  const bool is_read = call.wait(slot);
  CHECK(!is_read || is_whole(call, wanted, slot));
  call.release(slot);
  return is_read;
}

void threads_read_what_the_file_holds() {
  File file;
  const auto cache = file.cache(4);
  CHECK(cache->is_open() && cache->has(file.bytes.data()) && !cache->has(file.bytes.data() + file.bytes.size()));
  std::vector<std::thread> threads;
  std::atomic<int64_t> held{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 40; ++round) {
        ExpertCall call(cache);
        CHECK(call.room(file.experts[0]) == 4);
        std::vector<std::pair<const Wanted*, void*>> all;
        for (int i = 0; i < 4; ++i) {  // all the room, in another order every time
          const Wanted& wanted = file.experts[static_cast<size_t>((t * 5 + round * (i + 1) + i * 3) % kExperts)];
          bool is_there = false;
          all.emplace_back(&wanted, call.hold(wanted, &is_there));
          ++held;
        }
        for (const auto& [wanted, slot] : all) {
          CHECK(call.wait(slot));
          CHECK(is_whole(call, *wanted, slot));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const ExpertCacheCounts counts = cache->counts();
  CHECK(counts.hits + counts.misses == held && counts.hits > 0 && counts.misses > kExperts && counts.failures == 0);
}

void short_and_interrupted_reads_go_on() {
  File file;
  const auto cache = file.cache(2);
  file.most = ExpertCache::kPage + 100;
  file.interrupted = 3;
  ExpertCall call(cache);
  for (const Wanted& wanted : file.experts) CHECK(reads(call, wanted));
}

void failed_reads_are_told_and_tried_again() {
  File file;
  const auto cache = file.cache(2);
  ExpertCall call(cache);
  file.error = EIO;
  CHECK(!reads(call, file.experts[0]));
  CHECK(call.problem().find("cannot be read") != std::string::npos);
  file.error = 0;
  CHECK(reads(call, file.experts[0]));
  CHECK(cache->counts().failures == kPieces);
  const size_t whole = file.bytes.size();
  file.bytes.resize(whole - 1);
  CHECK(!reads(call, file.experts[kExperts - 1]));
  CHECK(call.problem().find("ends before an expert") != std::string::npos);
  CHECK(reads(call, file.experts[1]));
}

void stopped_calls_give_up() {
  File file;
  const auto cache = file.cache(2);
  cache->stop(true);
  {
    ExpertCall call(cache);
    CHECK(!reads(call, file.experts[0]));
    CHECK(call.problem().find("stopped") != std::string::npos);
  }
  cache->stop(false);
  // Whoever stops does so from another thread.
  std::atomic<bool> is_over{false};
  std::thread stopper([&] {
    for (bool is_stopped = true; !is_over; is_stopped = !is_stopped) cache->stop(is_stopped);
    cache->stop(false);
  });
  int whole = 0;
  for (int round = 0; round < 100; ++round) {
    ExpertCall call(cache);
    for (const Wanted& wanted : file.experts) whole += reads(call, wanted) ? 1 : 0;
  }
  is_over = true;
  stopper.join();
  ExpertCall call(cache);
  for (const Wanted& wanted : file.experts) CHECK(reads(call, wanted));
}

void what_has_no_room_is_said_so() {
  File file;
  const auto cache =
      std::make_shared<ExpertCache>(file.bytes.data(), 1, std::vector<ExpertCache::Pool>{{4096, 1}}, File::read, &file);
  CHECK(cache->is_open());
  CHECK(ExpertCall(cache).room(file.experts[0]) == 0);
  for (const ExpertCache::Pool& pool : {ExpertCache::Pool{4096, 0}, {4095, 1}, {0, 1}}) {
    CHECK(!ExpertCache(file.bytes.data(), 1, {pool}, File::read, &file).is_open());
  }
}

}  // namespace
}  // namespace edge_rt

int main() {
#if !defined(_WIN32)  // where there is no cache
  edge_rt::threads_read_what_the_file_holds();
  edge_rt::short_and_interrupted_reads_go_on();
  edge_rt::failed_reads_are_told_and_tried_again();
  edge_rt::stopped_calls_give_up();
  edge_rt::what_has_no_room_is_said_so();
#endif
  return 0;
}
