// The experts of a call of the operator that come from a cache.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ops/experts/expert_cache.h"
#include "ops/experts/experts.h"

namespace edge_rt {

class ReadExperts {
 public:
  // `jobs` have their matrices at the addresses that the cache stands for; `place` gives them those in the cache.
  ReadExperts(std::shared_ptr<ExpertCache> cache, std::vector<ExpertRows>& jobs)
      : call_(std::move(cache)), jobs_(jobs), all_(jobs.size()) {
    for (size_t i = 0; i < jobs.size(); ++i) {
      for (const LinearRows* linear : {&jobs[i].gate_up, &jobs[i].down}) {
        for (int part = 0; part < linear->weight.count; ++part) {
          const PackedWeight& weight = linear->weight.parts[part];
          all_[i].wanted.pieces[all_[i].wanted.count++] = {weight.data, weight.bytes()};
        }
      }
    }
  }

  int64_t slot_bytes() const { return all_[0].wanted.slot_bytes(); }
  int64_t room() { return call_.room(all_[0].wanted); }

  void hold(int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) at(i).slot = call_.hold(at(i).wanted, &at(i).is_there);
  }
  void release(int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) call_.release(at(i).slot);
  }
  // Whether a held expert was there when it was wanted.
  bool is_there(int64_t i) const { return all_[static_cast<size_t>(i)].is_there; }
  bool are_there(int64_t begin, int64_t end) const {
    while (begin < end && is_there(begin)) ++begin;
    return begin == end;
  }
  // Waits for a held expert and lets its job read it; false where it cannot be read.
  bool place(int64_t i) {
    One& one = at(i);
    if (!call_.wait(one.slot)) return false;
    ExpertRows& job = jobs_[static_cast<size_t>(i)];
    int piece = 0;
    for (LinearRows* linear : {&job.gate_up, &job.down}) {
      for (int part = 0; part < linear->weight.count; ++part) {
        linear->weight.parts[part].data = call_.place(one.wanted, piece++, one.slot);
      }
    }
    return true;
  }
  const std::string& problem() const { return call_.problem(); }

 private:
  struct One {
    ExpertCache::Wanted wanted;
    void* slot = nullptr;
    bool is_there = false;
  };

  One& at(int64_t i) { return all_[static_cast<size_t>(i)]; }

  ExpertCall call_;
  std::vector<ExpertRows>& jobs_;
  std::vector<One> all_;
};

}  // namespace edge_rt
