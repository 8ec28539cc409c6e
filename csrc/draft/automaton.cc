#include "draft/automaton.h"

#include <algorithm>

#include "draft/source.h"

namespace edge_rt::draft {

Automaton::Automaton(size_t most) { reset(most); }

void Automaton::reset(size_t most) {
  // Swapped, because assigning would keep the memory.
  std::vector<int32_t>().swap(text_);
  std::vector<State>().swap(states_);
  std::vector<Edge>().swap(edges_);
  std::vector<int32_t>().swap(buckets_);
  // n tokens have at most 2 n states, and fewer than n transitions that are not the first of their state.
  text_.reserve(most);
  states_.reserve(2 * most + 1);
  edges_.reserve(most);
  clear();
}

void Automaton::clear() {
  text_.clear();
  states_.clear();
  edges_.clear();
  std::fill(buckets_.begin(), buckets_.end(), kNoState);
  last_ = 0;
  match_ = {0, 0};
  add(0, kNoState, -1, 0);
}

int32_t Automaton::add(int32_t length, int32_t link, int32_t end, int32_t count) {
  states_.push_back(State{length, link, end, count, kNoToken, kNoState, kNoState});
  return static_cast<int32_t>(states_.size() - 1);
}

size_t Automaton::bucket(int32_t state, int32_t token) const {
  const uint64_t key = static_cast<uint64_t>(static_cast<uint32_t>(state)) << 32 | static_cast<uint32_t>(token);
  return static_cast<size_t>((key * 0x9E3779B97F4A7C15u) >> 32) & (buckets_.size() - 1);
}

int32_t Automaton::find(int32_t state, int32_t token) const {
  if (states_[state].newest == kNoState) return kNoState;
  int32_t edge = buckets_[bucket(state, token)];
  while (edge != kNoState && (edges_[edge].state != state || edges_[edge].token != token)) edge = edges_[edge].chained;
  return edge;
}

void Automaton::grow_table() {
  std::vector<int32_t>().swap(buckets_);
  size_t size = 16;
  while (size < 2 * edges_.size()) size *= 2;
  buckets_.assign(size, kNoState);
  for (size_t edge = 0; edge < edges_.size(); ++edge) {
    int32_t& first = buckets_[bucket(edges_[edge].state, edges_[edge].token)];
    edges_[edge].chained = first;
    first = static_cast<int32_t>(edge);
  }
}

void Automaton::add_edge(int32_t state, int32_t token, int32_t target) {
  const int32_t edge = static_cast<int32_t>(edges_.size());
  edges_.push_back(Edge{state, token, target, edge, kNoState, edge});
  // The ring goes from the newest edge to the oldest, and on in their order.
  const int32_t newest = states_[state].newest;
  if (newest != kNoState) {
    const int32_t oldest = edges_[newest].next;
    edges_[edge].next = oldest;
    edges_[edge].previous = newest;
    edges_[newest].next = edge;
    edges_[oldest].previous = edge;
  }
  states_[state].newest = edge;
  if (edges_.size() > buckets_.size()) {
    grow_table();
    return;
  }
  int32_t& first = buckets_[bucket(state, token)];
  edges_[edge].chained = first;
  first = edge;
}

void Automaton::append(int32_t token) {
  const int32_t position = static_cast<int32_t>(text_.size());
  text_.push_back(token);
  int32_t state = last_;
  const int32_t created = add(position + 1, kNoState, position, 1);
  last_ = created;
  int32_t found = kNoState;
  while (state >= 0) {
    State& at = states_[state];
    if (at.token == kNoToken) {
      at.token = token;
      at.target = created;
    } else if (at.token == token) {
      found = at.target;
      break;
    } else if (const int32_t edge = find(state, token); edge != kNoState) {
      found = edges_[edge].target;
      break;
    } else {
      add_edge(state, token, created);
    }
    state = states_[state].link;
  }
  if (state < 0) {
    states_[created].link = 0;
    match_ = {0, 0};
    return;
  }
  if (states_[found].length != states_[state].length + 1) found = split(found, state, token);
  states_[created].link = found;
  match_ = {found, states_[found].length};
  for (int updated = 0; updated < kUpdatedLinks && found > 0; ++updated) {
    states_[found].end = position;
    ++states_[found].count;
    found = states_[found].link;
  }
}

int32_t Automaton::split(int32_t old, int32_t state, int32_t token) {
  const int32_t made = add(states_[state].length + 1, states_[old].link, states_[old].end, states_[old].count);
  states_[made].token = states_[old].token;
  states_[made].target = states_[old].target;
  if (const int32_t newest = states_[old].newest; newest != kNoState) {
    int32_t edge = newest;
    do {
      edge = edges_[edge].next;
      add_edge(made, edges_[edge].token, edges_[edge].target);
    } while (edge != newest);
  }
  states_[old].link = made;
  while (state >= 0) {
    State& at = states_[state];
    if (at.token == token) {
      if (at.target != old) break;
      at.target = made;
    } else {
      const int32_t edge = find(state, token);
      if (edge == kNoState || edges_[edge].target != old) break;
      edges_[edge].target = made;
    }
    state = at.link;
  }
  return made;
}

int32_t Automaton::next(int32_t state, int32_t token) const {
  if (states_[state].token == token) return states_[state].target;
  const int32_t edge = find(state, token);
  return edge == kNoState ? kNoState : edges_[edge].target;
}

Match Automaton::advance(int32_t state, int32_t length, int32_t token) const {
  while (state >= 0) {
    const int32_t behind = next(state, token);
    if (behind >= 0) return {behind, length + 1};
    state = states_[state].link;
    length = state >= 0 ? states_[state].length : 0;
  }
  return {0, 0};
}

int Automaton::following(int32_t state, Transition* found) const {
  const State& at = states_[state];
  if (at.newest == kNoState) {
    if (at.token == kNoToken) return 0;
    found[0] = {at.token, at.target};
    return 1;
  }
  int size = 0;
  int32_t edge = at.newest;
  do {
    edge = edges_[edge].next;
    found[size++] = {edges_[edge].token, edges_[edge].target};
  } while (edge != at.newest && size < 2 * kScanned);
  if (edge != at.newest) {
    // Many: the first ones, then the newest, beginning with the last.
    size = kScanned;
    edge = at.newest;
    while (size < 2 * kScanned) {
      found[size++] = {edges_[edge].token, edges_[edge].target};
      edge = edges_[edge].previous;
    }
  }
  found[size++] = {at.token, at.target};
  // By insertion: of equal counts the first stays first, and nothing is allocated.
  for (int i = 1; i < size; ++i) {
    const Transition moved = found[i];
    int place = i;
    for (; place > 0 && states_[found[place - 1].state].count < states_[moved.state].count; --place) {
      found[place] = found[place - 1];
    }
    found[place] = moved;
  }
  int latest = 0;
  for (int i = 1; i < size; ++i) {
    if (states_[found[i].state].end > states_[found[latest].state].end) latest = i;
  }
  std::rotate(found, found + latest, found + latest + 1);
  return size;
}

size_t Automaton::memory_bytes() const {
  return used_bytes(text_) + used_bytes(states_) + used_bytes(edges_) + bytes_of(buckets_);
}

}  // namespace edge_rt::draft
