// The server of HTTP reports what it cannot start.
#include "serve/http_server.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "support/address_limit.h"

namespace halflife::serve {
namespace {

TEST(HttpServer, ReportsThatItsThreadsCannotStart) {
  // The memory is enough for the stacks of some threads. These threads are joined.
  EXPECT_EXIT(halflife::test::ExitUnderAddressLimit(64 << 20,
                                                    [] {
                                                      HttpServer server({.max_connections = 256},
                                                                        {});
                                                      server.Bind("127.0.0.1", 0);
                                                    }),
              testing::ExitedWithCode(static_cast<int>(ExitCode::kEnvironment)),
              "cannot start a thread: .*ulimit -v");
}

}  // namespace
}  // namespace halflife::serve
