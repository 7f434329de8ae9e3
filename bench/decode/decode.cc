// Times decoding one token at a time, early and late in a long sequence: for linear mixers the time and the state must
// not grow. Checks first that stepping equals the parallel form. Prints one JSON line.
//
//   decode --mixer gla --tokens 100000
#include <CLI/CLI.hpp>

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "core/clock.h"
#include "core/error.h"
#include "core/philox.h"
#include "model/language_model.h"

namespace halflife {
namespace {

struct Options {
  std::string mixer = "gla";
  int64_t layers = 6, dim = 256, heads = 4, tokens = 100000, window = 500;
};

int64_t Token(int64_t position) {
  const RandomKey key = MakeRandomKey(1, RandomPurpose::kTest, 0);
  return Draw(key, static_cast<uint64_t>(position), 0, 0).x[0] % 259;
}

// Largest |logit difference| between stepping and one parallel forward over 300 tokens.
double CheckAgainstParallel(const model::LanguageModel& model) {
  constexpr int64_t kTokens = 300;
  at::Tensor tokens = at::zeros({1, kTokens}, at::kLong);
  for (int64_t t = 0; t < kTokens; ++t) tokens.mutable_data_ptr<int64_t>()[t] = Token(t);
  const auto slice = model::SequenceSlice::Contiguous(1, kTokens, 0, at::kCPU);
  const at::Tensor parallel = model.Logits(model.Hidden(tokens, {.slice = &slice}));
  model::ModelState state = model.EmptyState(1);
  double worst = 0;
  for (int64_t t = 0; t < kTokens; ++t) {
    const at::Tensor logits = model.Step(tokens.select(1, t), state);
    worst = std::max(worst, logits.sub(parallel.select(1, t)).abs().max().item<double>());
  }
  HL_CHECK(worst < 1e-3, "decoding is not the parallel form: logits differ by ", worst);
  return worst;
}

double MedianMilliseconds(std::vector<double> seconds) {
  std::nth_element(seconds.begin(), seconds.begin() + seconds.size() / 2, seconds.end());
  return 1e3 * seconds[seconds.size() / 2];
}

void Run(const Options& options) {
  at::set_num_threads(1);
  const c10::InferenceMode inference;
  model::LanguageModel model(
      {.model_dim = options.dim,
       .num_layers = options.layers,
       .mixer = {.name = options.mixer,
                 .options = {{"num_heads", std::to_string(options.heads)}}}});
  model.BindOwnMemory(1, false);
  const double difference = CheckAgainstParallel(model);

  model::ModelState state = model.EmptyState(1);
  std::vector<double> early, late;
  int64_t early_bytes = 0;
  for (int64_t t = 0; t < options.tokens; ++t) {
    const Stopwatch watch;
    const at::Tensor logits = model.Step(at::full({1}, Token(t), at::kLong), state);
    const double seconds = watch.Seconds();
    if (t >= 1000 && t < 1000 + options.window) early.push_back(seconds);
    if (t >= options.tokens - options.window) late.push_back(seconds);
    if (t == 1000) early_bytes = state.bytes();
  }
  const double early_ms = MedianMilliseconds(early), late_ms = MedianMilliseconds(late);
  std::cout << nlohmann::ordered_json{{"mixer", options.mixer},
                                      {"layers", options.layers},
                                      {"dim", options.dim},
                                      {"max_logit_difference", difference},
                                      {"ms_per_token_at_1000", early_ms},
                                      {"ms_per_token_at_end", late_ms},
                                      {"tokens", options.tokens},
                                      {"ratio", late_ms / early_ms},
                                      {"state_bytes_at_1000", early_bytes},
                                      {"state_bytes_at_end", state.bytes()}}
            << std::endl;
}

}  // namespace
}  // namespace halflife

int main(int argc, char** argv) {
  CLI::App app("Times decoding");
  halflife::Options options;
  app.add_option("--mixer", options.mixer);
  app.add_option("--layers", options.layers);
  app.add_option("--dim", options.dim);
  app.add_option("--heads", options.heads);
  app.add_option("--tokens", options.tokens)->check(CLI::Range(2000, 100000000));
  CLI11_PARSE(app, argc, argv);
  halflife::Run(options);
}
