// Decay attention: compared with the fp64 oracle, then timed, forward and forward + backward,
// alternating in one run. On the CPU it is compared with a form in LibTorch's operations and the
// machine's matmul, on a GPU with the GPU's copies and matmul.
//
//   build/cpu/bench/bench_decay_attention --kind per_head --batch 2 --seq-len 4096 --heads 8
//       --dim 64
//   build/cpu/bench/bench_decay_attention --kind per_head --lengths     # cost per token from
//       1,024 to 65,536 tokens
//   build/cuda/bench/bench_decay_attention --device cuda --kind per_token --batch 2 --seq-len
//       16384 --heads 16 --dim 128
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "core/clock.h"
#include "core/error.h"
#include "cuda_times.h"
#include "eager.h"
#include "kernels/common/cpu/instruction_set.h"
#include "problem.h"
#include "support/comparison.h"
#include "support/measure.h"

namespace halflife::bench {
namespace {

struct Options : Shape {
  std::string device = "cpu";
  int rounds = 0;  // 0: 7 on the CPU, 50 on a GPU
  int threads = 1;
  bool lengths = false, skip_eager = false;
};

using Form = std::function<at::Tensor(const Problem&)>;

void TimeForm(const Form& form, const Problem& p, Times& times) {
  TimeOnce([&] { return form(p); }, p.leaves(), p.dout, times);
}

double MatmulGflops() {
  constexpr int64_t kSize = 1536;
  const at::Tensor a = at::randn({kSize, kSize}), b = at::randn({kSize, kSize});
  at::Tensor c = at::empty({kSize, kSize});
  const Stopwatch watch;
  at::mm_out(c, a, b);
  return 2.0 * kSize * kSize * kSize / watch.Seconds() * 1e-9;
}

struct EagerChoice {
  std::string name;
  int64_t chunk_size, sub_chunk;
};
const EagerChoice kEagerChoices[] = {
    {"eager_chunk_32", 32, 0}, {"eager_chunk_64", 64, 0}, {"eager_safe_chunk_32", 32, 8}};

EagerForm MakeEager(const Shape& o, const Problem& p, const EagerChoice& choice) {
  const EagerShape shape = {
      .seq_len = o.seq_len, .chunk_size = choice.chunk_size, .sub_chunk = choice.sub_chunk};
  HL_CHECK_AS(ExitCode::kUsage, o.groups() == o.heads,
              "no LibTorch form with shared heads of q and k; use --skip-eager");
  if (o.kind == "per_head") return MakeEagerPerHead(shape, p.log_decay, p.scale);
  HL_CHECK_AS(ExitCode::kUsage, o.kind == "per_channel", "no LibTorch form of kind ", o.kind,
              "; use --skip-eager");
  return MakeEagerPerChannel(shape, p.scale);
}

nlohmann::json Compare(const Options& o) {
  const double error = WorstError(o, at::kFloat);
  HL_CHECK(error < 1e-5, "the kernel is off by ", error, " of the oracle's output");
  const Problem p(o, at::kFloat);
  Times ours;
  std::map<std::string, Times> eager;  // Only the best one counts.
  std::vector<double> matmul_gflops;
  for (int round = 0; round < o.rounds + 1; ++round) {
    // The first round is a warm-up.
    if (round == 1) ours = {}, eager.clear(), matmul_gflops.clear();
    TimeForm(Ours, p, ours);
    matmul_gflops.push_back(MatmulGflops());
    if (o.skip_eager) continue;
    for (const EagerChoice& choice : kEagerChoices) {
      if (o.kind == "per_head" && choice.sub_chunk != 0) continue;
      const EagerForm form = MakeEager(o, p, choice);
      TimeForm([&](const Problem& x) { return form(x.q, x.k, x.v, x.log_decay); }, p,
               eager[choice.name]);
    }
  }
  const double peak = Median(matmul_gflops);
  const auto report = [&](const Times& times) -> nlohmann::json {
    const double forward = times.forward(), both = times.both();
    return {{"forward_ms", forward},
            {"forward_backward_ms", both},
            {"forward_gflops", Flops(o, false) / forward * 1e-6},
            {"forward_backward_gflops", Flops(o, true) / both * 1e-6},
            {"forward_share_of_matmul", Flops(o, false) / forward * 1e-6 / peak},
            {"forward_backward_share_of_matmul", Flops(o, true) / both * 1e-6 / peak}};
  };
  nlohmann::json result = {
      {"kind", o.kind},
      {"batch", o.batch},
      {"seq_len", o.seq_len},
      {"heads", o.heads},
      {"dim", o.dim},
      {"dim_v", o.values()},
      {"qk_heads", o.groups()},
      {"threads", o.threads},
      {"instruction_set", kernels::cpu::NameOf(kernels::cpu::InstructionSetInUse())},
      {"max_error", error},
      {"matmul_gflops", peak},
      {"halflife", report(ours)}};
  for (const auto& [name, times] : eager) result[name] = report(times);
  SetSpeedRatios(result, ours, eager);
  return result;
}

nlohmann::json CompareLengths(Options o) {
  constexpr int64_t kTokens = 65536;
  nlohmann::json result = {{"kind", o.kind}, {"heads", o.heads}, {"dim", o.dim}};
  const auto time = [&](int64_t seq_len, Times& times) {
    o.seq_len = seq_len, o.batch = kTokens / seq_len;
    TimeForm(Ours, Problem(o, at::kFloat), times);
  };
  SetCostsByLength(result, {1024, 4096, 16384, 65536}, o.rounds,
                   static_cast<double>(kTokens * o.heads), time);
  return result;
}

nlohmann::json Run(Options options) {
  const bool cuda = FindDevice(options.device).is_cuda();
  if (options.rounds == 0) options.rounds = cuda ? 50 : 7;
  if (cuda) return CompareOnCuda(options, options.rounds);
  return options.lengths ? CompareLengths(options) : Compare(options);
}

}  // namespace
}  // namespace halflife::bench

int main(int argc, char** argv) {
  halflife::bench::Options options;
  CLI::App app("Decay attention against what the machine can do; prints JSON");
  app.add_option("--device", options.device, "cpu, or cuda: bf16, exit code 4 without a GPU");
  app.add_option("--kind", options.kind, "per_head, per_token or per_channel");
  app.add_option("--batch", options.batch);
  app.add_option("--seq-len", options.seq_len, "on the CPU a multiple of 64");
  app.add_option("--heads", options.heads);
  app.add_option("--dim", options.dim, "K and, without --dim-v, V of a head");
  app.add_option("--dim-v", options.dim_v, "V of a head");
  app.add_option("--qk-heads", options.qk_heads, "heads of q and k, shared by --heads of v");
  app.add_option("--segments", options.segments,
                 "of a row, scanned side by side; 0: what the plan of the shape says");
  app.add_option("--rounds", options.rounds, "7 on the CPU, 50 on a GPU");
  app.add_option("--threads", options.threads);
  app.add_flag("--lengths", options.lengths, "cost of a token at 1,024 to 65,536 tokens instead");
  app.add_flag("--skip-eager", options.skip_eager);
  CLI11_PARSE(app, argc, argv);
  return halflife::bench::PrintReport(options.threads,
                                      [&] { return halflife::bench::Run(options).dump(2); });
}
