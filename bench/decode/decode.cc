// Times decoding token by token, early and late in a long sequence. For linear mixers, the time and
// the state must not grow. The two are timed in pairs, token by token, because the speed of a
// shared machine changes within minutes. First checks that stepping equals the parallel form. On a
// GPU, a token's time ends when its logits exist. A step is one launch of a recorded graph, or with
// --no-cuda-graph a launch of each kernel. Prints one JSON line.
//
//   decode --config launch/recipes/quickstart.textproto --set model.mixer=mamba --tokens 100000
//   decode --device cuda --config launch/recipes/gla_340m.textproto --tokens 20000
#include <CLI/CLI.hpp>

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include <iostream>
#include <nlohmann/json.hpp>

#include "core/clock.h"
#include "core/error.h"
#include "core/philox.h"
#include "infer/generator.h"
#include "kernels/common/cpu/instruction_set.h"
#include "model/language_model.h"
#include "support/measure.h"
#include "support/program.h"
#include "train/config/run_config.h"

namespace halflife {
namespace {

struct Options {
  std::string config = "launch/recipes/quickstart.textproto", device = "cpu";
  std::string precision = "auto";  // as in halflife generate
  std::vector<std::string> overrides;
  int64_t early = 1000, tokens = 100000, window = 500;
  infer::DecoderConfig decoder;
};

constexpr int64_t kVocabSize = 259;  // Bytes.

int64_t Token(int64_t position) {
  const RandomKey key = MakeRandomKey(1, RandomPurpose::kTest, 0);
  return Draw(key, static_cast<uint64_t>(position), 0, 0).x[0] % kVocabSize;
}

model::ModelConfig ModelOf(const Options& options) {
  model::ModelConfig config = train::LoadRunConfig(options.config, options.overrides).model;
  config.vocab_size = kVocabSize;
  return config;
}

bool UsesBf16(const Options& options, const at::Device& device) {
  return options.precision == "bf16" || (options.precision == "auto" && device.is_cuda());
}

// Rounds the weights that the matrix products read to bf16, as a loaded model has them.
void UseBf16(model::LanguageModel& model) {
  model::ParameterSet& parameters = model.parameters();
  for (int i = 0; i < parameters.size(); ++i)
    if (parameters.specs()[i].region == dist::Region::kCompute)
      parameters.Bind(i, parameters.tensor(i).to(at::kBFloat16));
}

// Returns the largest |logit difference| between stepping and one parallel forward over 300 tokens.
// In bf16 the two round different intermediate values, which changes logits by about 1 % of the
// largest one in a model of 4 layers. The tolerance leaves room for deeper models. A wrong state
// changes logits by tens of percent.
double CheckAgainstParallel(const model::LanguageModel& model, const infer::DecoderConfig& config,
                            bool bf16) {
  constexpr int64_t kTokens = 300;
  at::Tensor tokens = at::zeros({1, kTokens}, at::kLong);
  for (int64_t t = 0; t < kTokens; ++t) tokens.mutable_data_ptr<int64_t>()[t] = Token(t);
  tokens = tokens.to(model.device());
  const auto slice = model::SequenceSlice::Contiguous(1, kTokens, 0, model.device());
  const at::Tensor parallel = model.Logits(model.Hidden(tokens, {.slice = &slice}));
  const double tolerance = bf16 ? 0.08 * parallel.abs().max().item<double>() : 1e-3;
  infer::Decoder decoder(model, model.EmptyState(1), config);
  double worst = 0;
  for (int64_t t = 0; t < kTokens; ++t) {
    const at::Tensor logits = decoder.Step(tokens.select(1, t));
    worst = bench::Worse(worst, logits.sub(parallel.select(1, t)).abs().max().item<double>());
  }
  HL_CHECK(worst < tolerance, "decoding is not the parallel form: logits differ by ", worst);
  return worst;
}

class Sequence {
 public:
  Sequence(const model::LanguageModel& model, const infer::DecoderConfig& config)
      : device_(model.device()), decoder_(model, model.EmptyState(1), config) {}
  int64_t num_tokens() const { return decoder_.num_tokens(); }
  int64_t state_bytes() const { return decoder_.state().bytes(); }
  bool uses_graph() const { return decoder_.uses_graph(); }
  double Step() {  // Returns seconds.
    const Stopwatch watch;
    decoder_.Step(at::full({1}, Token(num_tokens()), at::kLong).to(device_));
    bench::Synchronise(device_);
    return watch.Seconds();
  }

 private:
  at::Device device_;
  infer::Decoder decoder_;
};

void Run(const Options& options) {
  at::set_num_threads(1);
  const at::Device device = bench::FindDevice(options.device);
  const c10::InferenceMode inference;
  const model::ModelConfig config = ModelOf(options);
  model::LanguageModel model(config);
  const int64_t most = model.max_positions();
  HL_CHECK_AS(ExitCode::kUsage, most == 0 || options.tokens <= most, "the model takes ", most,
              " tokens at most; --tokens ", options.tokens, " is more");
  model.BindOwnMemory(1, false, device);
  const bool bf16 = UsesBf16(options, device);
  if (bf16) UseBf16(model);
  const double difference = CheckAgainstParallel(model, options.decoder, bf16);

  Sequence early(model, options.decoder), late(model, options.decoder);
  while (early.num_tokens() < options.early) early.Step();
  while (late.num_tokens() < options.tokens - options.window) late.Step();
  const int64_t early_bytes = early.state_bytes();
  std::vector<double> early_seconds, late_seconds;
  for (int64_t i = 0; i < options.window; ++i) {
    if (i % 2 == 0) early_seconds.push_back(early.Step());
    late_seconds.push_back(late.Step());
    if (i % 2 == 1) early_seconds.push_back(early.Step());
  }
  const double early_ms = 1e3 * bench::Median(early_seconds),
               late_ms = 1e3 * bench::Median(late_seconds);
  std::cout << nlohmann::ordered_json{{"device", bench::DeviceName(device)},
                                      {"precision", bf16 ? "bf16" : "fp32"},
                                      {"mixer", model::MixerSummary(config)},
                                      {"layers", config.num_layers},
                                      {"graph", early.uses_graph()},
                                      {"dim", config.model_dim},
                                      {"max_logit_difference", difference},
                                      {"early", options.early},
                                      {"early_ms_per_token", early_ms},
                                      {"early_state_bytes", early_bytes},
                                      {"tokens", options.tokens},
                                      {"late_ms_per_token", late_ms},
                                      {"late_state_bytes", late.state_bytes()},
                                      {"ratio", late_ms / early_ms}}
            << std::endl;
}

}  // namespace
}  // namespace halflife

int main(int argc, char** argv) {
  CLI::App app("Times decoding");
  halflife::Options options;
  app.add_option("--device", options.device, "cpu, or cuda: exit code 4 without a GPU");
  app.add_option("--precision", options.precision, "auto: bf16 on a GPU, fp32 on the CPU")
      ->check(CLI::IsMember({"auto", "fp32", "bf16"}));
  app.add_option("--config", options.config);
  app.add_option("--set", options.overrides)->take_all();
  app.add_option("--early", options.early)->check(CLI::Range(1, 1000000));
  app.add_option("--tokens", options.tokens)->check(CLI::Range(1000, 100000000));
  app.add_flag_callback(
      "--no-cuda-graph", [&options] { options.decoder.use_graph = false; },
      "Launch each kernel by itself");
  CLI11_PARSE(app, argc, argv);
  return halflife::bench::ExitCodeOf([&] {
    halflife::kernels::cpu::UseInstructionSetOfEnvironment();
    halflife::Run(options);
  });
}
