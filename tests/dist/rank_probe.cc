// A program for rank_context_test.cc. Run under mpirun, it fails in the way that its argument
// names.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <iostream>
#include <string>
#include <thread>

#include "core/error.h"
#include "core/log.h"
#include "dist/rank_context.h"

namespace halflife::dist {
namespace {

[[noreturn]] void Die(const std::string& mode, RankContext& context) {
  if (mode == "death-kill") ::kill(::getpid(), SIGKILL);
  if (mode == "death-segv") ::kill(::getpid(), SIGSEGV);
  if (mode == "death-abort") context.AbortWorld(17);
  ::_exit(3);
}

void Act(const std::string& mode, RankContext& context) {
  Communicator& world = context.world();
  const bool odd = context.rank() == context.world_size() - 1;
  std::vector<float> x(1 << 20, 1.0f);
  const auto sum = [&](const char* what) {
    return world.AllReduce(Ref(x.data(), 1 << 20), ReduceOp::kSum, {what, 0}, nullptr);
  };
  if (mode == "throw" || mode == "throw-open") {
    // The other ranks wait for a rank that never arrives. `open`: the rank fails while it has an
    // operation in flight.
    Work open = mode == "throw-open" && odd ? sum("other") : Work();
    HL_CHECK_AS(ExitCode::kData, !odd, "shard 7 is damaged");
    sum("grads").WaitHost();
  } else if (mode == "timeout") {
    if (odd) std::this_thread::sleep_for(std::chrono::seconds(60));
    sum("grads").WaitHost();
  } else if (mode == "desync") {
    sum(odd ? "norm" : "loss").WaitHost();
  } else if (mode == "config") {
    context.RequireSameConfig(odd ? "beef" : "cafe");
  } else if (mode.starts_with("death-")) {
    if (odd) Die(mode, context);
    while (true) ::pause();         // Only the launcher can end it.
  } else if (mode == "slow-end") {  // Every rank finishes its own work at a different time.
    if (odd) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    std::cout << "rank " << context.rank() << " done" << std::endl;
  }
}

int Main(const std::string& mode) {
  std::unique_ptr<RankContext> context;
  try {
    const LauncherEvidence evidence = ReadLauncherEvidence();
    const bool odd = evidence.rank == evidence.world_size - 1;
    context = RankContext::Create({.timeout_s = 2, .build = mode == "build" && odd ? "b" : "a"});
    Act(mode, *context);
    if (mode == "context-info") {
      std::cout << context->rank() << " " << context->world_size() << " " << context->local_rank()
                << " " << context->world().size() << std::endl;
    }
  } catch (const Error& error) {
    HL_ERROR("probe", error.what());
    if (!context) return static_cast<int>(error.code());
    context->AbortWorld(static_cast<int>(error.code()));
  }
  context.reset();
  return mode == "requeue" ? static_cast<int>(ExitCode::kRequeue) : 0;
}

}  // namespace
}  // namespace halflife::dist

int main(int argc, char** argv) { return argc == 2 ? halflife::dist::Main(argv[1]) : 64; }
