// The output layer with its cross entropy, forward and backward: halflife's blocks of rows against
// the plain form, which holds [N, vocab] logits, log-probabilities and gradient. Peak memory of
// each in a process of its own, times in turn.
//
//   build/cpu/bench/bench_cross_entropy --rows 4096 --dim 512 --vocab 50280
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
#include <iostream>
#include <nlohmann/json.hpp>

#include "core/clock.h"
#include "core/error.h"
#include "kernels/cpu/instruction_set.h"
#include "kernels/cross_entropy/linear_cross_entropy.h"
#include "support/measure.h"

namespace halflife {
namespace {

using bench::Median;

struct Options {
  int64_t rows = 4096, dim = 512, vocab = 50280;
  int pairs = 5, threads = 1;
};

struct Problem {
  at::Tensor hidden, weight, targets;
  explicit Problem(const Options& options)
      : hidden(at::randn({options.rows, options.dim})),
        weight(at::randn({options.vocab, options.dim}).mul_(0.02)),
        targets(at::randint(options.vocab, {options.rows}, at::kLong)) {
    hidden.requires_grad_();
    weight.requires_grad_();
  }
};

struct Result {
  double loss = 0, dweight_norm = 0, ms = 0;
};

Result Run(const Problem& problem, bool fused) {
  const Stopwatch watch;
  const at::Tensor loss =
      fused ? kernels::LinearCrossEntropy({problem.hidden, problem.weight, problem.targets}, {})
                  .objective
            : at::nll_loss(at::log_softmax(at::linear(problem.hidden, problem.weight), 1),
                           problem.targets, {}, at::Reduction::Sum);
  const auto grads = torch::autograd::grad({loss}, {problem.hidden, problem.weight});
  const double ms = watch.Seconds() * 1e3;
  return {loss.item<double>(), grads[1].norm().item<double>(), ms};
}

// Growth of the peak resident memory over the inputs, in a child: the peak of a process never
// falls.
double PeakMiB(const Options& options, bool fused) {
  int pipe_ends[2];
  HL_CHECK(pipe(pipe_ends) == 0, "pipe");
  const pid_t child = fork();
  HL_CHECK(child >= 0, "fork");
  if (child == 0) {
    at::set_num_threads(1);
    const Problem problem(options);
    rusage before{}, after{};
    getrusage(RUSAGE_SELF, &before);
    Run(problem, fused);
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

nlohmann::json Compare(const Options& options) {
  // before the first parallel region of this process: its threads would not survive the fork
  const double plain_mib = PeakMiB(options, false), fused_mib = PeakMiB(options, true);
  at::set_num_threads(options.threads);
  const Problem problem(options);
  const Result fused = Run(problem, true), plain = Run(problem, false);
  HL_CHECK(std::abs(fused.loss / plain.loss - 1) < 1e-5 &&
               std::abs(fused.dweight_norm / plain.dweight_norm - 1) < 1e-4,
           "the forms disagree: losses ", fused.loss, " and ", plain.loss, ", |dweight| ",
           fused.dweight_norm, " and ", plain.dweight_norm);
  std::vector<double> plain_ms, fused_ms;
  for (int pair = 0; pair < options.pairs; ++pair) {
    plain_ms.push_back(Run(problem, false).ms);
    fused_ms.push_back(Run(problem, true).ms);
  }
  return {{"rows", options.rows},
          {"dim", options.dim},
          {"vocab", options.vocab},
          {"threads", options.threads},
          {"plain_ms", Median(plain_ms)},
          {"fused_ms", Median(fused_ms)},
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
  app.add_option("--rows", options.rows, "tokens");
  app.add_option("--dim", options.dim);
  app.add_option("--vocab", options.vocab);
  app.add_option("--pairs", options.pairs);
  app.add_option("--threads", options.threads);
  CLI11_PARSE(app, argc, argv);
  try {
    halflife::kernels::cpu::UseInstructionSetOfEnvironment();
    std::cout << halflife::Compare(options).dump(2) << "\n";
  } catch (const halflife::Error& error) {
    std::cerr << error.what() << "\n";
    return static_cast<int>(error.code());
  }
}
