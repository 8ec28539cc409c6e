"""Draft sources: n-grams, suffix matches, recycled tokens, reference texts and corpora."""
