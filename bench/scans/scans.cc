// RWKV-4's time mixing and Mamba's selective scan compared with LibTorch's operations, forward and
// forward + backward, alternating in one run. Each form is first checked against the token-by-token
// form in fp64. With --lengths, measures the cost per token from 512 to 16,384 tokens instead. On a
// GPU, only our kernels are timed; compare_fla.py compares them with other programs.
//
//   build/cpu/bench/bench_scans --kind wkv4 --batch 2 --seq-len 2048 --dim 1024
//   build/cpu/bench/bench_scans --kind selective_scan --states 16 --lengths
#include <ATen/TensorOperators.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <torch/csrc/autograd/autograd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "eager.h"
#include "kernels/common/cpu/instruction_set.h"
#include "support/comparison.h"
#include "support/measure.h"
#include "support/operation_times.h"

namespace halflife::bench {
namespace {

struct Options {
  std::string kind = "wkv4", device = "cpu";
  int64_t batch = 2, seq_len = 2048, dim = 1024, states = 16;
  int rounds = 0, threads = 1;
  bool lengths = false;
  bool wkv() const { return kind == "wkv4"; }
};

// Returns operands as in a model at the start of training: RWKV's decays from 0.007 to 1 per token,
// Mamba's steps from 0.001 to 0.1. On a GPU, operands with rows are bf16.
Tensors MakeOperands(const Options& o, at::Device device) {
  const std::vector<int64_t> rows = {o.batch, o.seq_len, o.dim},
                             keys = {o.batch, o.seq_len, o.states};
  Tensors in;
  if (o.wkv()) {
    in = {at::randn(rows), at::randn(rows), -(at::rand({o.dim}) * 5 - 5).exp(), at::randn({o.dim})};
  } else {
    const at::Tensor step = (at::rand({o.dim}) * 4.6 - 6.9).exp();
    in = {at::randn(rows),
          at::randn(rows) * 0.1,
          step + (-(-step).expm1()).log(),
          -(at::rand({o.dim, o.states}) * 2.77).exp(),
          at::randn(keys),
          at::randn(keys),
          at::randn({o.dim})};
  }
  for (at::Tensor& x : in) {
    const bool has_rows = x.dim() == 3;
    x = x.to(device, device.is_cuda() && has_rows ? at::kBFloat16 : at::kFloat).requires_grad_();
  }
  return in;
}

EagerForm Ours(const Options& o) {
  if (o.wkv())
    return {"halflife", [](const Tensors& in) {
              return ops::Wkv4({.k = in[0],
                                .v = in[1],
                                .log_decay = in[2],
                                .bonus = in[3],
                                .starts = {},
                                .initial = {}})
                  .out;
            }};
  return {"halflife", [](const Tensors& in) {
            return ops::SelectiveScan({.x = in[0],
                                       .delta = in[1],
                                       .delta_bias = in[2],
                                       .a = in[3],
                                       .b = in[4],
                                       .c = in[5],
                                       .skip = in[6],
                                       .starts = {},
                                       .initial = {}})
                .y;
          }};
}

// Compares rows of 256 tokens and returns the largest error. Repeated decays and sums in another
// order explain errors of 1e-5. On a GPU, operands and results are rounded to bf16.
double Check(Options o, at::Device device, const std::vector<EagerForm>& forms,
             const EagerForm& exact) {
  o.batch = 1, o.seq_len = 256;
  const double allowed = device.is_cuda() ? 1e-2 : 1e-5;
  const Tensors in = MakeOperands(o, device);
  Tensors wide;
  for (const at::Tensor& x : in)
    wide.push_back(x.detach().to(at::kCPU, at::kDouble).requires_grad_());
  const at::Tensor dout = at::randn(in[0].sizes(), in[0].options().requires_grad(false));
  const Tensors want = ResultsOf(exact.run, wide, dout.to(at::kCPU, at::kDouble));
  double worst = 0;
  for (const EagerForm& form : forms) {
    const Tensors got = ResultsOf(form.run, in, dout);
    for (size_t i = 0; i < got.size(); ++i) {
      const double error = RelativeRms(got[i], want[i].detach());
      HL_CHECK(error < allowed, form.name, ": result ", i, " is off by ", error,
               " of the form in fp64");
      worst = Worse(worst, error);
    }
  }
  return worst;
}

nlohmann::ordered_json CompareOnCuda(const Options& o) {
  const EagerForm exact = (o.wkv() ? EagerWkv() : EagerScan()).front();
  const double error = Check(o, at::kCUDA, {Ours(o)}, exact);
  nlohmann::ordered_json result =
      TimeOnCuda({.run = Ours(o).run,
                  .make_operands = [&] { return MakeOperands(o, at::kCUDA); },
                  .dout = at::randn({o.batch, o.seq_len, o.dim},
                                    at::TensorOptions(at::kCUDA).dtype(at::kBFloat16))},
                 o.rounds);
  result.update({{"kind", o.kind},
                 {"batch", o.batch},
                 {"seq_len", o.seq_len},
                 {"dim", o.dim},
                 {"states", o.states},
                 {"dtype", "bf16"},
                 {"max_error", error}});
  return result;
}

void TimeForm(const EagerForm& form, const Tensors& in, const at::Tensor& dout, Times& times) {
  TimeOnce([&] { return form.run(in); }, in, dout, times);
}

nlohmann::ordered_json Compare(const Options& o) {
  std::vector<EagerForm> forms = o.wkv() ? EagerWkv() : EagerScan();
  const EagerForm exact = forms.front();
  forms.insert(forms.begin(), Ours(o));
  Check(o, at::kCPU, forms, exact);
  const Tensors in = MakeOperands(o, at::kCPU);
  const at::Tensor dout = at::randn({o.batch, o.seq_len, o.dim});
  std::map<std::string, Times> times;
  for (int round = 0; round < o.rounds + 1; ++round) {
    if (round == 1) times.clear();  // The first round is a warm-up.
    for (const EagerForm& form : forms) TimeForm(form, in, dout, times[form.name]);
  }
  nlohmann::ordered_json result = {
      {"kind", o.kind},
      {"batch", o.batch},
      {"seq_len", o.seq_len},
      {"dim", o.dim},
      {"threads", o.threads},
      {"instruction_set", kernels::cpu::NameOf(kernels::cpu::InstructionSetInUse())}};
  if (!o.wkv()) result["states"] = o.states;
  for (const EagerForm& form : forms) SetMedians(result[form.name], times[form.name]);
  const Times ours = times.extract("halflife").mapped();
  SetSpeedRatios(result, ours, times);
  return result;
}

nlohmann::ordered_json CompareLengths(Options o) {
  constexpr int64_t kTokens = 16384;
  nlohmann::ordered_json result = {{"kind", o.kind}, {"dim", o.dim}, {"threads", o.threads}};
  const auto time = [&](int64_t seq_len, Times& times) {
    o.seq_len = seq_len, o.batch = kTokens / seq_len;
    TimeForm(Ours(o), MakeOperands(o, at::kCPU), at::randn({o.batch, o.seq_len, o.dim}), times);
  };
  SetCostsByLength(result, {512, 2048, 8192, 16384}, o.rounds, kTokens, time);
  return result;
}

nlohmann::ordered_json Run(Options options) {
  HL_CHECK_AS(ExitCode::kUsage, options.wkv() || options.kind == "selective_scan", "unknown kind '",
              options.kind, "'. Use wkv4 or selective_scan.");
  HL_CHECK_AS(ExitCode::kUsage, options.seq_len % 64 == 0, "--seq-len ", options.seq_len,
              ". Use a multiple of 64, the eager form's largest chunk.");
  const bool cuda = FindDevice(options.device).is_cuda();
  if (options.rounds == 0) options.rounds = cuda ? 50 : 5;
  if (cuda) return CompareOnCuda(options);
  return options.lengths ? CompareLengths(options) : Compare(options);
}

}  // namespace
}  // namespace halflife::bench

int main(int argc, char** argv) {
  halflife::bench::Options options;
  CLI::App app("The scans of RWKV-4 and Mamba against LibTorch's operations; prints JSON");
  app.add_option("--device", options.device, "cpu, or cuda: bf16, exit code 4 without a GPU");
  app.add_option("--kind", options.kind, "wkv4 or selective_scan");
  app.add_option("--batch", options.batch);
  app.add_option("--seq-len", options.seq_len, "a multiple of 64");
  app.add_option("--dim", options.dim, "channels");
  app.add_option("--states", options.states, "of a channel of the selective scan");
  app.add_option("--rounds", options.rounds, "5 on the CPU, 50 on a GPU");
  app.add_option("--threads", options.threads);
  app.add_flag("--lengths", options.lengths, "cost of a token at 512 to 16,384 tokens instead");
  CLI11_PARSE(app, argc, argv);
  return halflife::bench::PrintReport(options.threads,
                                      [&] { return halflife::bench::Run(options).dump(2); });
}
