// Pages of a mapped file that are read once in a while: asked for before, and given back behind.
#pragma once

#include <cstddef>

namespace edge_rt {

// Whether memory lies in one mapping of a file, as far as this system tells; others do not.
bool is_mapped_file(const void* data, size_t bytes);
// Begins to read pages that are not in memory.
void fetch_pages(const void* data, size_t bytes);
// Takes whole pages out of this process; the system may keep them, and reading them brings them back. Of memory that
// is_mapped_file alone: other memory would lose what it holds.
void release_pages(const void* data, size_t bytes);

}  // namespace edge_rt
