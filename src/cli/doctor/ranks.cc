
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/remainder.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "cli/doctor/checks.h"
#include "cli/doctor/system_files.h"
#include "core/clock.h"
#include "core/concat.h"
#include "core/human.h"
#include "ops/torch/tensor_views.h"
#include "train/device.h"

namespace halflife::cli::doctor {
namespace {

constexpr double kRanksTestSeconds = 5;

struct Size {
  int64_t count;  // fp32 elements. Odd counts do not divide evenly over the ranks.
  const char* name;
};
constexpr Size kSizes[] = {{1, "all-reduce 4 B"},
                           {1023, "all-reduce 4 KiB"},
                           {65537, "all-reduce 256 KiB"},
                           {1 << 20, "all-reduce 4 MiB"},
                           {16 << 20, "all-reduce 64 MiB"}};

// Returns small whole numbers, so every partial sum over fewer than 2^15 ranks is exact in fp32.
at::Tensor Pattern(int64_t count) { return at::remainder(at::arange(count, at::kFloat), 251); }

struct Measurement {
  int64_t num_wrong = 0;  // Wrong elements, summed over all ranks.
  int64_t runs = 0;
  double seconds = 0;  // Per run.
};

class AllReduceTest {
 public:
  AllReduceTest(dist::Communicator& comm, Device device) : comm_(comm), device_(device) {}

  Measurement Run(int64_t count, double budget_s) {
    const at::Tensor pattern = Pattern(count).to(train::ToTorch(device_));
    const int ranks = comm_.size();
    at::Tensor sum = pattern + comm_.rank();
    Measurement result;
    const Stopwatch first;
    Sum(ops::RefOf(sum), ops::CurrentStream(device_));
    // n * pattern + (0 + ... + n - 1)
    const at::Tensor expected = pattern * ranks + 0.5 * ranks * (ranks - 1);
    result.num_wrong = at::ne(sum, expected).sum().item<int64_t>();
    result.num_wrong = SumOverRanks(result.num_wrong);
    result.runs = FromRankZero(std::clamp<int64_t>(
        static_cast<int64_t>(0.5 * budget_s / std::max(first.Seconds(), 1e-6)), 1, 10000));
    sum.zero_();  // Zeros stay zero in every repetition.
    const Stopwatch watch;
    for (int64_t i = 0; i < result.runs; ++i) {
      Sum(ops::RefOf(sum), ops::CurrentStream(device_));
    }
    result.seconds = watch.Seconds() / static_cast<double>(result.runs);
    return result;
  }

 private:
  void Sum(TensorRef tensor, cudaStream_t stream) {
    comm_.AllReduce(tensor, dist::ReduceOp::kSum, {"doctor", 0}, stream).WaitHost();
  }
  int64_t SumOverRanks(int64_t value) {
    at::Tensor tensor = at::arange(1, at::kDouble).add(value).to(train::ToTorch(device_));
    Sum(ops::RefOf(tensor), ops::CurrentStream(device_));
    return static_cast<int64_t>(tensor.item<double>());
  }
  int64_t FromRankZero(int64_t value) { return SumOverRanks(comm_.rank() == 0 ? value : 0); }

  dist::Communicator& comm_;
  const Device device_;
};

Finding Describe(const Size& size, const Measurement& measured) {
  const double bytes = 4.0 * static_cast<double>(size.count);
  const double gb_per_s = 1e-9 * bytes / std::max(measured.seconds, 1e-12);
  Finding finding{
      Verdict::kOk,
      size.name,
      Concat("correct, ", Fixed(1e6 * measured.seconds, 1), " us, ", Fixed(gb_per_s, 3), " GB/s"),
      "",
      {{"bytes", bytes}, {"seconds", measured.seconds}, {"gb_per_s", gb_per_s}}};
  if (measured.num_wrong > 0) {
    finding.verdict = Verdict::kFail;
    finding.text = Concat("WRONG in ", measured.num_wrong, " elements over all ranks");
    finding.remedy = "do not train here; try other hosts, and NCCL_DEBUG=INFO with GPUs";
    finding.values["num_wrong"] = static_cast<double>(measured.num_wrong);
  }
  return finding;
}

std::string Encode(const RankPlace& place, const std::string& cpu_list) {
  return Concat(place.host, "\n", cpu_list, "\n", place.threads, " ", place.on_gpu ? 1 : 0);
}
RankPlace Decode(const std::string& text) {
  RankPlace place;
  std::string cpus;
  std::istringstream in(text);
  std::getline(in, place.host);
  std::getline(in, cpus);
  in >> place.threads >> place.on_gpu;
  place.cpus = ParseCpuList(cpus);
  return place;
}

}  // namespace

std::vector<Finding> JudgePlaces(const std::vector<RankPlace>& places) {
  std::map<std::string, std::vector<const RankPlace*>> hosts;
  for (const RankPlace& place : places) hosts[place.host].push_back(&place);
  std::vector<Finding> findings;
  for (const auto& [host, ranks] : hosts) {
    std::set<int> all;
    int threads = 0;
    size_t least = SIZE_MAX;
    bool short_of_cores = false, on_gpu = false;
    for (const RankPlace* rank : ranks) {
      all.insert(rank->cpus.begin(), rank->cpus.end());
      threads += rank->threads;
      least = std::min(least, rank->cpus.size());
      short_of_cores |= rank->cpus.size() < static_cast<size_t>(rank->threads);
      on_gpu |= rank->on_gpu;
    }
    // Ranks that are not bound share the cores of the host.
    const size_t per_rank = std::min(least, all.size() / ranks.size());
    Finding finding{Verdict::kOk,
                    "ranks",
                    Concat(ranks.size(), " on ", host, ", each on at least ", least, " of ",
                           Counted(static_cast<int64_t>(all.size()), "core"), ", ",
                           Counted(threads, "thread"), " in total"),
                    "",
                    {{"ranks", static_cast<double>(ranks.size())},
                     {"cores", static_cast<double>(all.size())},
                     {"threads", threads}}};
    if (on_gpu && per_rank < kCoresOfGpuRank) {
      finding.verdict = Verdict::kFail;
      finding.text += Concat(": ", Counted(static_cast<int64_t>(per_rank), "core"),
                             " per rank, and a rank on a GPU needs ", kCoresOfGpuRank);
      finding.remedy =
          "under Slurm, submit with --exclusive --mem=0, as launch/slurm/train.sbatch does, or "
          "with "
          "--cpus-per-task; elsewhere start fewer ranks on this host";
    } else if (short_of_cores || static_cast<size_t>(threads) > all.size()) {
      finding.verdict = Verdict::kWarn;
      finding.text += ": more threads than cores";
      finding.remedy =
          "launch/mpirun/run.sh gives each rank its share of the cores (OMP_NUM_THREADS, binding)";
    }
    findings.push_back(std::move(finding));
  }
  return findings;
}

std::vector<Finding> JudgeDevices(const std::vector<std::string>& of_ranks) {
  const auto other = std::ranges::find_if(
      of_ranks, [&](const std::string& device) { return device != of_ranks[0]; });
  if (other == of_ranks.end()) return {};
  return {{Verdict::kFail, "all-reduce",
           Concat("not possible: rank 0 computes on ", of_ranks[0], ", rank ",
                  other - of_ranks.begin(), " on ", *other),
           "make the same devices visible on all hosts, or train with train.device: \"cpu\""}};
}

std::vector<Finding> TestAllReduce(dist::Communicator& comm, Device device, double seconds) {
  std::vector<Finding> findings;
  AllReduceTest test(comm, device);
  for (const Size& size : kSizes) {
    findings.push_back(Describe(size, test.Run(size.count, seconds / std::size(kSizes))));
  }
  return comm.rank() == 0 ? findings : std::vector<Finding>{};
}

std::vector<Finding> CheckRankPlaces(const CheckInputs& inputs, dist::RankContext& context) {
  const std::string cpus =
      ParseField(inputs.Read(inputs.proc / "self/status"), "Cpus_allowed_list");
  const RankPlace mine{.host = context.host(),
                       .threads = at::get_num_threads(),
                       .on_gpu = train::ChooseDevice("auto", context.local_rank()).is_cuda()};
  std::vector<RankPlace> places;
  for (const std::string& text :
       dist::AllGatherBytes(context.control(), Encode(mine, cpus), {"doctor places", 0})) {
    places.push_back(Decode(text));
  }
  return context.rank() == 0 ? JudgePlaces(places) : std::vector<Finding>{};
}

std::vector<Finding> CheckAllReduce(const CheckInputs& inputs, dist::RankContext& context) {
  if (!inputs.measure) return {};
  if (context.world_size() == 1) {
    return {{Verdict::kOk, "all-reduce",
             "not tested with one rank; "
             "run launch/mpirun/run.sh --ranks 2 -- halflife doctor"}};
  }
  const Device device = train::ChooseDevice("auto", context.local_rank());
  std::vector<Finding> differing = JudgeDevices(dist::AllGatherBytes(
      context.control(), device.is_cuda() ? "cuda" : "cpu", {"doctor devices", 0}));
  if (!differing.empty()) return context.rank() == 0 ? differing : std::vector<Finding>{};
  context.UseDevice(device);
  return TestAllReduce(context.world(), device, kRanksTestSeconds);
}

}  // namespace halflife::cli::doctor
