#include "cli/train_process.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <thread>

#include "cli/busy_cores.h"
#include "core/error.h"
#include "core/heap.h"
#include "core/log.h"
#include "train/config/plan.h"
#include "train/device.h"

namespace halflife::cli {
namespace {

// The threads of this rank. 0: LibTorch's default.
int ThreadsOf(const train::RunConfig& config, const dist::RankContext& context) {
  if (config.train.threads > 0) return config.train.threads;
  // Bits depend on their number, and that must not follow from the mesh.
  if (config.parallel.slices > 0) return 1;
  // LibTorch's own word for it: a launcher that set it, for the process, is believed.
  if (const char* const of_process = std::getenv("OMP_NUM_THREADS"); of_process != nullptr) {
    const int ranks = context.ranks_in_process();
    return ranks == 1 ? 0 : std::max(1, std::atoi(of_process) / ranks);
  }
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::max(1, cores / context.local_size());
}

// With device 'auto' a host without a visible GPU would wait for the others in the wrong
// collective.
void RequireSameDevice(Device device, dist::RankContext& context) {
  const std::string own = device.is_cuda() ? "cuda" : "cpu";
  const auto all = dist::AllGatherBytes(context.control(), own, {"device", 0});
  for (size_t rank = 0; rank < all.size(); ++rank) {
    HL_CHECK_AS(ExitCode::kEnvironment, all[rank] == all[0], "rank 0 computes on ", all[0],
                ", rank ", rank, " on ", all[rank],
                "; set train.device, or make the same devices visible on all hosts");
  }
}

}  // namespace

Device PrepareTrainProcess(const train::RunConfig& config, const train::RunFolder& folder,
                           dist::RankContext& context) {
  const Device device = train::ChooseDevice(config.train.device, context.local_rank());
  const bool one_process = context.ranks_in_process() == context.world_size();
  if (context.rank_in_process() == 0)
    log::Init({.rank = context.rank(),
               .world_size = one_process ? 1 : context.world_size(),
               .console_level = log::ParseLevel(config.log.level),
               .file = folder.LogFile(context.rank())});
  RequireSameDevice(device, context);  // no rank of this process goes on before its log is there
  context.flight().KeepIn(folder.FlightFolder(), folder.attempt());
  if (const int threads = ThreadsOf(config, context); threads > 0) at::set_num_threads(threads);
  WarnOfBusyCores(context);
  if (context.rank_in_process() == 0) PrepareHeap();
  train::RequireSlicesOn(device, config);
  if (device.is_cuda() && config.train.precision == "fp32" && context.rank() == 0)
    HL_WARN("train",
            "fp32 on a GPU: the kernels for matrix units take bf16, and most mixers go a much "
            "slower way; --set train.precision=bf16 uses them");
  train::PrepareDevice(device);
  context.UseDevice(device);
  return device;
}

}  // namespace halflife::cli
