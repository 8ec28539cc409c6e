// Objects that live while somebody holds them, each known by a key to whoever asks for it meanwhile. Of the process: it
// is made once and never destroyed, as sessions may outlive static objects.
#pragma once

#include <iterator>
#include <map>
#include <memory>
#include <mutex>

namespace edge_rt::gpu {

template <class Key, class Type>
class HeldObjects {
 public:
  // The one of a key, if it is held and `suits(object)`; else what `make()` gives, from now on.
  template <class Suits, class Make>
  std::shared_ptr<Type> get(const Key& key, const Suits& suits, const Make& make) {
    const std::lock_guard<std::mutex> guard(lock_);
    for (auto entry = known_.begin(); entry != known_.end();) {
      entry = entry->second.expired() ? known_.erase(entry) : std::next(entry);
    }
    std::weak_ptr<Type>& known = known_[key];
    if (std::shared_ptr<Type> found = known.lock(); found != nullptr && suits(*found)) return found;
    std::shared_ptr<Type> made = make();
    known = made;
    return made;
  }

 private:
  std::mutex lock_;
  std::map<Key, std::weak_ptr<Type>> known_;
};

}  // namespace edge_rt::gpu
