// The output layer with cross entropy, forward and backward: halflife's blocks of rows compared
// with the plain form, which stores [N, vocab] logits, log-probabilities and gradient. Measures the
// peak memory of each (on the CPU in separate processes), and alternating times. fp32 on the CPU,
// bf16 on a GPU.
//
//   build/cpu/bench/bench_cross_entropy --rows 4096 --dim 512 --vocab 50280
//   build/cuda/bench/bench_cross_entropy --device cuda --rows 16384 --dim 2048 --vocab 32000
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/nll_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <torch/csrc/autograd/autograd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/error.h"
#include "kernels/common/cpu/instruction_set.h"
#include "ops/cross_entropy/linear_cross_entropy.h"
#include "support/measure.h"
#include "support/program.h"

namespace halflife {
namespace {

using bench::Median;
using bench::Timer;

struct Options {
  std::string device = "cpu";
  int64_t rows = 4096, dim = 512, vocab = 50280;
  int pairs = 5, threads = 1;
};

struct Problem {
  at::Tensor hidden, weight, targets;
  explicit Problem(const Options& options, at::Device device = at::kCPU)
      : hidden(at::randn({options.rows, options.dim}, StoredOn(device))),
        weight(at::randn({options.vocab, options.dim}, StoredOn(device)).mul_(0.02)),
        targets(at::randint(options.vocab, {options.rows},
                            at::TensorOptions(device).dtype(at::kLong))) {
    hidden.requires_grad_();
    weight.requires_grad_();
  }
  static at::TensorOptions StoredOn(at::Device device) {
    return at::TensorOptions(device).dtype(device.is_cuda() ? at::kBFloat16 : at::kFloat);
  }
};

struct Result {
  double loss = 0, dweight_norm = 0, ms = 0;
};

Result Run(const Problem& problem, bool fused, Timer& timer) {
  at::Tensor loss;
  std::vector<at::Tensor> grads;
  const double ms = timer.Milliseconds([&] {
    loss = fused ? ops::LinearCrossEntropy({problem.hidden, problem.weight, problem.targets}, {})
                       .objective
                 : at::nll_loss(
                       at::log_softmax(at::linear(problem.hidden, problem.weight), 1, at::kFloat),
                       problem.targets, {}, at::Reduction::Sum);
    grads = torch::autograd::grad({loss}, {problem.hidden, problem.weight});
  });
  return {loss.item<double>(), grads[1].to(at::kFloat).norm().item<double>(), ms};
}

// Returns how far the peak resident memory grows above the inputs. Runs in a child, because the
// peak of a process never falls.
double PeakMiBOfChild(const Options& options, bool fused) {
  int pipe_ends[2];
  HL_CHECK(pipe(pipe_ends) == 0, "pipe");
  const pid_t child = fork();
  HL_CHECK(child >= 0, "fork");
  if (child == 0) {
    at::set_num_threads(1);
    const Problem problem(options);
    rusage before{}, after{};
    getrusage(RUSAGE_SELF, &before);
    Timer timer(at::kCPU);
    Run(problem, fused, timer);
    getrusage(RUSAGE_SELF, &after);
    const double mib = static_cast<double>(after.ru_maxrss - before.ru_maxrss) / 1024;
    const bool sent = write(pipe_ends[1], &mib, sizeof(mib)) == sizeof(mib);
    _exit(sent ? 0 : 1);
  }
  double mib = 0;
  const bool received = read(pipe_ends[0], &mib, sizeof(mib)) == sizeof(mib);
  int status = 0;
  waitpid(child, &status, 0);
  HL_CHECK(received && status == 0, "the child that measures memory failed");
  return mib;
}

double PeakMiBOnGpu(const Problem& problem, bool fused, Timer& timer) {
  bench::ForgetPeakBytes(problem.hidden.device());
  const int64_t before = bench::PeakBytes(problem.hidden.device());
  Run(problem, fused, timer);
  return static_cast<double>(bench::PeakBytes(problem.hidden.device()) - before) / (1 << 20);
}

// Both forms of one problem in one process.
class Pair {
 public:
  explicit Pair(const Problem& problem)
      : problem_(problem), plain_(problem.hidden.device()), fused_(problem.hidden.device()) {}

  // fp32: another order of sums. bf16: the plain form rounds logits and their gradients by 2^-9
  // each, halflife only the gradients.
  void Check() {
    const bool rounded = problem_.hidden.scalar_type() == at::kBFloat16;
    const double loss = rounded ? 0x1p-9 : 1e-5, norm = rounded ? 0x1p-8 : 1e-4;
    const Result fused = Fused(), plain = Plain();
    HL_CHECK(std::abs(fused.loss / plain.loss - 1) < loss &&
                 std::abs(fused.dweight_norm / plain.dweight_norm - 1) < norm,
             "the forms disagree: losses ", fused.loss, " and ", plain.loss, ", |dweight| ",
             fused.dweight_norm, " and ", plain.dweight_norm);
  }
  Result Plain() { return Run(problem_, false, plain_); }
  Result Fused() { return Run(problem_, true, fused_); }
  double PlainPeakMiB() { return PeakMiBOnGpu(problem_, false, plain_); }
  double FusedPeakMiB() { return PeakMiBOnGpu(problem_, true, fused_); }
  void StartCounting() { plain_.StartCounting(), fused_.StartCounting(); }
  double plain_late_share() const { return plain_.late_share(); }
  double fused_late_share() const { return fused_.late_share(); }

 private:
  const Problem& problem_;
  Timer plain_, fused_;
};

nlohmann::json Compare(const Options& options) {
  constexpr int kGpuWarmUps = 10;
  const at::Device device = bench::FindDevice(options.device);
  double plain_mib = 0, fused_mib = 0;
  if (device.is_cpu()) {
    // Before the first parallel region of this process, because its threads would not survive the
    // fork.
    plain_mib = PeakMiBOfChild(options, false), fused_mib = PeakMiBOfChild(options, true);
  }
  at::set_num_threads(options.threads);
  const Problem problem(options, device);
  Pair both(problem);
  both.Check();
  if (device.is_cuda()) {
    for (int i = 0; i < kGpuWarmUps; ++i) both.Plain(), both.Fused();
    plain_mib = both.PlainPeakMiB(), fused_mib = both.FusedPeakMiB();
  }
  both.StartCounting();
  std::vector<double> plain_ms, fused_ms;
  for (int pair = 0; pair < options.pairs; ++pair) {
    plain_ms.push_back(both.Plain().ms);
    fused_ms.push_back(both.Fused().ms);
  }
  return {{"device", bench::DeviceName(device)},
          {"rows", options.rows},
          {"dim", options.dim},
          {"vocab", options.vocab},
          {"threads", options.threads},
          {"plain_ms", Median(plain_ms)},
          {"plain_late_share", both.plain_late_share()},
          {"fused_ms", Median(fused_ms)},
          {"fused_late_share", both.fused_late_share()},
          {"speed_ratio", Median(plain_ms) / Median(fused_ms)},
          {"plain_peak_mib", plain_mib},
          {"fused_peak_mib", fused_mib},
          {"memory_ratio", plain_mib / fused_mib}};
}

}  // namespace
}  // namespace halflife

int main(int argc, char** argv) {
  halflife::Options options;
  CLI::App app("The output layer with its cross entropy against the plain form; prints JSON");
  app.add_option("--device", options.device, "cpu, or cuda: bf16, exit code 4 without a GPU");
  app.add_option("--rows", options.rows, "tokens");
  app.add_option("--dim", options.dim);
  app.add_option("--vocab", options.vocab);
  app.add_option("--pairs", options.pairs);
  app.add_option("--threads", options.threads);
  CLI11_PARSE(app, argc, argv);
  return halflife::bench::ExitCodeOf([&] {
    halflife::kernels::cpu::UseInstructionSetOfEnvironment();
    std::cout << halflife::Compare(options).dump(2) << "\n";
  });
}
