// The parts of a step that memory bandwidth limits: norms, rotary encoding, SwiGLU, short
// convolution, AdamW, the gradient's norm, rows of cross entropy, decoding's state update; and one
// that the matmul limits, the weight gradients of linear layers. Each is checked against the same
// formula in fp64, then timed in pairs with LibTorch's operations, together with the speed of
// copies in the same run (for updates, of negation in place): on the CPU of as many bytes as the
// pass must move, on a GPU of 2 GiB. A pass that is wrong or fails has a problem instead of times
// in its row. The others continue, and the exit code is 1.
//
//   build/cpu/bench/bench_row_kernels --only swiglu --dtype bf16
//   build/cuda/bench/bench_row_kernels --device cuda
#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "cases.h"
#include "core/error.h"
#include "core/host.h"
#include "kernels/common/cpu/instruction_set.h"
#include "support/measure.h"
#include "support/program.h"

namespace halflife::bench {
namespace {

constexpr double kMaxErrorBf16 =
    4e-3;  // For bf16 results: at most two successive roundings of 2^-9.
constexpr double kMaxErrorFp64 = 1e-11;  // For sums of 10^8 terms, 2^-53 each, in both forms.

struct Options {
  std::string device = "cpu", dtype, size = "both", only;
  int rounds = 0;  // 0: 7 on the CPU, 50 on a GPU
  int threads = 1;
};

Tensors Copies(const Tensors& operands, bool wide) {
  Tensors copies;
  for (const at::Tensor& x : operands) {
    const bool widen = wide && x.is_floating_point();
    copies.push_back(x.detach().to(x.device(), widen ? at::kDouble : x.scalar_type(), false, true));
    copies.back().requires_grad_(x.requires_grad());
  }
  return copies;
}

// Returns the largest relative RMS error of the pass's results. Throws if it exceeds the bound of
// the dtype.
double Check(const Case& one, const Pass& pass) {
  const Tensors operands = one.make();
  const Tensors got = pass.ours(Copies(operands, false)), want = pass.eager(Copies(operands, true));
  HL_CHECK(got.size() == want.size(), one.family, ": ", got.size(), " results, not ", want.size());
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double error = RelativeRms(got[i], want[i].detach());
    const double allowed = got[i].scalar_type() == at::kBFloat16 ? kMaxErrorBf16
                           : got[i].scalar_type() == at::kDouble ? kMaxErrorFp64
                                                                 : one.max_error;
    HL_CHECK(error <= allowed, one.family, " ", one.shape, ", ", pass.name, ": result ", i,
             " is off by ", error, " of LibTorch's form in fp64; ", allowed, " is allowed");
    worst = Worse(worst, error);
  }
  return worst;
}

// Returns operands in rotation. On a GPU there are enough of them that none is still in the cache.
class Operands {
 public:
  Operands(const Case& one, const Pass& pass, at::Device device) {
    const double wanted =
        std::min(64.0, 2.0 * static_cast<double>(CacheBytes(device)) / pass.bytes);
    do {
      sets_.push_back(one.make());
    } while (static_cast<double>(sets_.size()) < wanted);
  }
  const Tensors& Next() { return sets_[next_++ % sets_.size()]; }

 private:
  std::vector<Tensors> sets_;
  size_t next_ = 0;
};

nlohmann::ordered_json Time(const Case& one, const Pass& pass, at::Device device, int rounds) {
  constexpr int64_t kGpuBytes = int64_t{1} << 31;
  const double error = Check(one, pass);
  Operands operands(one, pass, device);
  std::optional<MemoryCeiling> memory;
  if (pass.ceiling)
    memory.emplace(device, device.is_cuda() ? kGpuBytes : static_cast<int64_t>(pass.bytes),
                   *pass.ceiling);
  const int warm_ups = device.is_cuda() ? 10 : 2;
  std::vector<double> ours_ms, eager_ms, ratios, moved;
  Timer our_timer(device), eager_timer(device);
  for (int round = -warm_ups; round < rounds; ++round) {
    if (round == 0) our_timer.StartCounting(), eager_timer.StartCounting();
    const auto time = [&](const Form& form, Timer& timer) {
      const Tensors& in = operands.Next();
      return timer.Milliseconds([&] { form(in); });
    };
    const bool first = round % 2 == 0;  // The order within a pair alternates.
    const double before = first ? 0 : time(pass.eager, eager_timer);
    const double ours = time(pass.ours, our_timer),
                 eager = first ? time(pass.eager, eager_timer) : before;
    const double gigabytes_per_s = memory ? memory->GigabytesPerSecond() : 0;
    if (round < 0) continue;
    ours_ms.push_back(ours), eager_ms.push_back(eager), ratios.push_back(eager / ours);
    moved.push_back(gigabytes_per_s);
  }
  const double ms = Median(ours_ms);
  nlohmann::ordered_json row = {{"family", one.family},
                                {"shape", one.shape},
                                {"pass", pass.name},
                                {"max_error", error},
                                {"ms", ms},
                                {"ms_p10", Quantile(ours_ms, 0.1)},
                                {"ms_p90", Quantile(ours_ms, 0.9)},
                                {"late_share", our_timer.late_share()},
                                {"eager_ms", Median(eager_ms)},
                                {"eager_late_share", eager_timer.late_share()},
                                {"speed_ratio", Median(ratios)}};
  if (memory) {
    const double bandwidth = pass.bytes / ms * 1e-6, ceiling = Median(moved);
    row.update({{"gb_per_s", bandwidth},
                {"ceiling_gb_per_s", ceiling},
                {"share_of_ceiling", bandwidth / ceiling}});
  }
  return row;
}

std::vector<Case> MakeCases(const Options& options, const CaseOptions& wanted) {
  std::vector<Case> cases = MakeLayerCases(wanted);
  for (Case& one : MakeUpdateCases(wanted)) cases.push_back(std::move(one));
  if (options.only.empty()) return cases;
  std::string families;
  for (const Case& one : cases) families += " " + one.family;
  std::erase_if(cases, [&](const Case& one) { return one.family != options.only; });
  HL_CHECK_AS(ExitCode::kUsage, !cases.empty(), "unknown family '", options.only,
              "'. Use one of:", families);
  return cases;
}

// Adds the rows of one size.
void AddRows(const Options& options, const CaseOptions& wanted, nlohmann::ordered_json& rows,
             Problems& problems) {
  for (const Case& one : MakeCases(options, wanted))
    for (const Pass& pass : one.passes) {
      nlohmann::ordered_json row;
      const std::string problem =
          problems.Of([&] { row = Time(one, pass, wanted.device, options.rounds); });
      if (!problem.empty())
        row = {{"family", one.family},
               {"shape", one.shape},
               {"pass", pass.name},
               {"problem", problem}};
      rows.push_back(row);
    }
}

nlohmann::ordered_json Run(Options options, Problems& problems) {
  const at::Device device = FindDevice(options.device);
  if (options.rounds == 0) options.rounds = device.is_cuda() ? 50 : 7;
  if (options.dtype.empty()) options.dtype = device.is_cuda() ? "bf16" : "fp32";
  HL_CHECK_AS(ExitCode::kUsage, options.dtype == "fp32" || options.dtype == "bf16",
              "unknown dtype '", options.dtype, "'. Use fp32 or bf16.");
  HL_CHECK_AS(ExitCode::kUsage,
              options.size == "step" || options.size == "large" || options.size == "both",
              "unknown size '", options.size, "'. Use step, large or both.");
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const bool large : {false, true}) {
    if (options.size == (large ? "step" : "large")) continue;
    const CaseOptions wanted = {.device = device,
                                .dtype = options.dtype == "bf16" ? at::kBFloat16 : at::kFloat,
                                .large = large};
    // After a fault of the device, operands cannot be made either.
    if (rows.empty())
      AddRows(options, wanted, rows, problems);
    else
      problems.Of([&] { AddRows(options, wanted, rows, problems); });
  }
  return {{"device", DeviceName(device)},
          {"dtype", options.dtype},
          {"threads", options.threads},
          {"instruction_set", kernels::cpu::NameOf(kernels::cpu::InstructionSetInUse())},
          {"rounds", options.rounds},
          {"rows", rows}};
}

}  // namespace
}  // namespace halflife::bench

int main(int argc, char** argv) {
  halflife::bench::Options options;
  CLI::App app(
      "The row-wise and elementwise parts of a step against LibTorch and a copy of memory; prints "
      "JSON");
  app.add_option("--device", options.device, "cpu, or cuda: exit code 4 without a GPU");
  app.add_option("--dtype", options.dtype, "of activations: fp32 (the CPU's) or bf16 (a GPU's)");
  app.add_option(
      "--size", options.size,
      "step: a layer of a 6 x 256 step, 8 x 512 tokens; large: beyond the cache; or both");
  app.add_option("--only", options.only, "one family");
  app.add_option("--rounds", options.rounds, "7 on the CPU, 50 on a GPU");
  app.add_option("--threads", options.threads);
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(options.threads);
  // Every call allocates its results. Reusing freed memory makes the benchmark time the loops, not
  // page faults.
  halflife::PrepareHeap();
  return halflife::bench::ExitCodeOf([&] {
    halflife::kernels::cpu::UseInstructionSetOfEnvironment();
    halflife::bench::Problems problems;
    std::cout << halflife::bench::Run(options, problems).dump(2) << "\n";
    problems.ThrowIfAny();
  });
}
