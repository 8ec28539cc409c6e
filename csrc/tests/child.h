// Work in a process of its own, for tests of what must fail.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>

#include "tests/check.h"

namespace edge_rt {

// Whether a process of its own comes to the end of `work` within so many seconds; what it complains of is not shown.
inline bool comes_through(const std::function<void()>& work, unsigned seconds) {
  std::fflush(stdout);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    CHECK(std::freopen("/dev/null", "w", stderr) != nullptr);
    alarm(seconds);
    work();
    std::_Exit(0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  return status == 0;
}

}  // namespace edge_rt
