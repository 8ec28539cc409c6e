// Follows a text that the answer mostly repeats; equals ReferenceSource of tests/reference/copies.py.
#pragma once

#include <vector>

#include "draft/source.h"

namespace edge_rt::draft {

// A cursor is a place in the text, the tokens copied so far, and the tokens since a mismatch.
class ReferenceSource : public Source {
 public:
  // `count` is at least 1.
  ReferenceSource(const int32_t* tokens, size_t count);

  void begin(const int32_t* tokens, size_t count) override;
  void extend(const int32_t* tokens, size_t count) override;
  bool root(Cursor* cursor) const override;
  int children(const Cursor& cursor, Guess* guesses) const override;
  size_t memory_bytes() const override { return bytes_of(text_) + bytes_of(places_) + bytes_of(known_); }

 private:
  void resume();
  int32_t agreement(int32_t place) const;

  std::vector<int32_t> text_;
  // Positions from 2 on, in the order of the two tokens before them, then of the positions.
  std::vector<int32_t> places_;
  std::vector<int32_t> known_;
  int32_t pointer_ = 0, run_ = 0, astray_ = 0;
};

}  // namespace edge_rt::draft
