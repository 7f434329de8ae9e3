// Imitates a full disk.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <cstdint>

namespace halflife::test {

// During its lifetime, files of this process cannot grow beyond `bytes`. A write beyond the limit
// is truncated, and the next one fails.
class FullDisk {
 public:
  explicit FullDisk(uintmax_t bytes) : handler_(::signal(SIGXFSZ, SIG_IGN)) {
    EXPECT_EQ(::getrlimit(RLIMIT_FSIZE, &old_), 0);
    rlimit limit = old_;
    limit.rlim_cur = bytes;
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  }
  ~FullDisk() {
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &old_), 0);
    ::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit old_{};
  const sighandler_t handler_;
};

}  // namespace halflife::test
