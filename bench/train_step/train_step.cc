// Times whole training steps of a model: forward, backward, gradients into the arena, norm,
// clipping, AdamW, with random tokens on one rank. The losses must be those of a model that
// memorises its one batch (see CheckLosses). Prints one JSON line: the shape, the seconds that the
// initial weights took, the losses, the median and the spread of the step time, GFLOP/s and the
// share of the peak (on a CPU: sgemm, measured in the same process; on a GPU that is not known by
// name: its bf16 matmul), the peak of memory (on a CPU: resident; on a GPU: from LibTorch's
// allocator, without CUDA's context and NCCL's buffers), and with --profile the launches and waits
// of another step. The PyTorch counterpart is pytorch_step.py. compare.py runs both in pairs and
// compares the losses of their first steps, from the same parameters and batch.
//
//   train_step --mixer gla --layers 6 --dim 256 --seq-len 512 --batch 8 --heads 4 --steps 10
//       --threads 1
//   train_step --mixer gla --save-start start.pt     # the input of pytorch_step.py --start
//   train_step --list-mixers                         # the values of --mixer
#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <ctime>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/clock.h"
#include "core/concat.h"
#include "core/error.h"
#include "core/host.h"
#include "core/philox.h"
#include "dist/communicator.h"
#include "dist/gradient_reducer.h"
#include "dist/rank_context.h"
#include "kernels/common/cpu/instruction_set.h"
#include "model/model_cost.h"
#include "ops/torch/tensor_views.h"
#include "profile.h"
#include "support/measure.h"
#include "support/program.h"
#include "train/device.h"
#include "train/step/arena_optimizer.h"
#include "train/step/float8_layers.h"
#include "train/step/gradient_norm.h"
#include "train/step/gradient_sync.h"
#include "train/step/micro_batch_graph.h"
#include "train/step/parameter_arena.h"
#include "train/step/step.h"

namespace halflife {
namespace {

struct Options {
  std::string mixer = "gla", precision = "fp32", device = "cpu", save_start;
  int64_t layers = 6, dim = 256, seq_len = 512, batch = 8, heads = 4, vocab = 259, mlp_dim = 0,
          documents = 1;
  int steps = 10, warmup = 2, threads = 1;
  bool profile = false, cuda_graphs = false;
};

at::Tensor RandomTokens(const Options& options, uint64_t stream) {
  at::Tensor tokens = at::empty({options.batch, options.seq_len}, at::kLong);
  const RandomKey key = MakeRandomKey(1, RandomPurpose::kTest, 0);
  int64_t* ids = tokens.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < tokens.numel(); ++i) {
    ids[i] = Draw(key, stream, static_cast<uint32_t>(i), 0).x[0] % options.vocab;
  }
  return tokens;
}

// Returns the starts of the documents, as in a run's batches, so slices also carry their tables for
// the layers.
std::vector<int32_t> Starts(const Options& options) {
  std::vector<int32_t> starts;
  for (int64_t n = 0; n <= options.batch * options.documents; ++n)
    starts.push_back(static_cast<int32_t>(n * options.seq_len / options.documents));
  return starts;
}

constexpr uint64_t kSeed = 1;

// Uses the mixer's own defaults otherwise. Not every mixer has heads.
model::MixerConfig MixerOf(const Options& options) {
  model::MixerConfig mixer(options.mixer);
  const std::vector<model::Assignment> values = mixer.Values();
  if (std::ranges::count(values, std::string("num_heads"), &model::Assignment::name) > 0)
    mixer.Set("num_heads", options.heads);
  return mixer;
}

model::ModelConfig ConfigOf(const Options& options) {
  return {.vocab_size = options.vocab,
          .model_dim = options.dim,
          .num_layers = options.layers,
          .mixer = MixerOf(options),
          .channel_mixer = model::ChannelMixerConfig("swiglu", {{"width", options.mlp_dim}})};
}

// Saves the parameters (fp32, by name), `inputs` and `targets` of the first step as a dict of
// tensors for torch.load.
void SaveStart(const Options& options) {
  model::LanguageModel model(ConfigOf(options));
  c10::Dict<std::string, at::Tensor> start;
  for (int i = 0; i < model.parameters().size(); ++i) {
    const dist::ParamSpec& spec = model.parameters().specs()[i];
    const at::Tensor value = at::empty(spec.shape, at::kFloat);
    model.parameters().Initialise(i, kSeed, value.mutable_data_ptr<float>());
    start.insert(spec.name, value);
  }
  start.insert("inputs", RandomTokens(options, 0));
  start.insert("targets", RandomTokens(options, 1));
  const std::vector<char> bytes = torch::jit::pickle_save(start);
  std::ofstream file(options.save_start, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size())).flush();
  HL_CHECK_AS(ExitCode::kEnvironment, file.good(), "cannot write ", options.save_start);
}

// Returns the device, prepared as for a run, so that sums have one order.
Device PreparedDevice(const Options& options) {
  const Device device = train::ChooseDevice(options.device, 0);
  train::PrepareDevice(device);
  return device;
}

train::ParameterArena::Config ArenaConfigOf(const Options& options, at::Device device) {
  train::ParameterArena::Config config;
  config.device = device;
  config.compute_dtype = options.precision == "fp32" ? at::kFloat : at::kBFloat16;
  config.states = train::OptimizerConfig().state_names();
  return config;
}

// Returns a run with the FP8 layers of the benchmark.
train::RunConfig RunOf(const Options& options) {
  train::RunConfig run;
  run.train.precision = options.precision;
  return run;
}

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        model_(ConfigOf(options)),
        control_(dist::MakeSelfCommunicator("bench")),
        device_(PreparedDevice(options)),
        world_(device_.is_cuda()
                   ? dist::MakeDeviceWorld(*control_, device_, {.timeout_s = kTimeoutS},
                                           /*watch=*/nullptr)
                   : dist::MakeSelfCommunicator("world")),
        arena_(model_.parameters(), ArenaConfigOf(options, train::ToTorch(device_))),
        float8_(RunOf(options), model_.parameters()),
        gradients_(arena_, *world_, {.one_by_one = options.cuda_graphs}),
        optimizer_(arena_, {}),
        batch_{.inputs = RandomTokens(options, 0).to(train::ToTorch(device_)),
               .targets = RandomTokens(options, 1).to(train::ToTorch(device_)),
               .slice = model::SequenceSlice::Packed(options.batch, options.seq_len,
                                                     Starts(options), train::ToTorch(device_)),
               .num_targets = options.batch * options.seq_len,
               .samples = at::arange(
                   options.batch, at::TensorOptions(at::kLong).device(train::ToTorch(device_)))} {
    gradients_.Attach(model_.parameters());
    const Stopwatch watch;
    arena_.Initialise(kSeed);
    initial_weights_s_ = watch.Seconds();
    if (options.cuda_graphs)
      graph_.emplace(train::ToTorch(device_), [this](const eval::BatchTensors& batch) {
        return Differentiate(batch, [this] { gradients_.BeginRecorded(); });
      });
  }

  double Step() {
    const at::Tensor loss = graph_ ? Replayed() : Launched();
    gradients_.Finish();
    const double norm = std::sqrt(train::SumOfSquares(arena_.updated_fragments(), arena_.grads()));
    optimizer_.Update(1e-3, std::min(1.0, 1.0 / (norm + 1e-6)), ++num_updates_);
    float8_.Invalidate();
    // item() waits for the device, so the timed work is finished.
    return loss.item<double>() / static_cast<double>(batch_.num_targets);
  }

  const model::LanguageModel& model() const { return model_; }
  // The seconds that the initial weights took.
  double initial_weights_s() const { return initial_weights_s_; }

 private:
  // Returns the sum of the targets' losses.
  template <typename BeginBackward>
  at::Tensor Differentiate(const eval::BatchTensors& batch, BeginBackward begin_backward) {
    const model::LossSums sums =
        model_.Loss(batch.inputs, batch.targets, {.slice = &batch.slice, .training = true});
    begin_backward();
    sums.objective.div(static_cast<double>(batch.num_targets)).backward();
    gradients_.EndMicroBatch();
    return sums.loss.detach();
  }
  at::Tensor Launched() {
    return Differentiate(batch_, [this] { gradients_.BeginMicroBatch(0, 1); });
  }
  // As StepRunner with train.cuda_graphs on one rank.
  at::Tensor Replayed() {
    arena_.grads().zero_();
    float8_.Refresh();  // the recorded graph reads the copies
    const at::Tensor loss = graph_->Run(batch_);
    gradients_.SumReplayed();
    return loss;
  }

  Options options_;
  model::LanguageModel model_;
  static constexpr double kTimeoutS = 180;
  std::unique_ptr<dist::Communicator> control_;
  Device device_;
  // One rank. Sums gradients as a run on this device does: with NCCL on a GPU.
  std::unique_ptr<dist::Communicator> world_;
  train::ParameterArena arena_;
  train::Float8Layers float8_;
  train::GradientSync gradients_;
  train::ArenaOptimizer optimizer_;
  eval::BatchTensors batch_;
  double initial_weights_s_ = 0;
  std::optional<train::MicroBatchGraph> graph_;
  uint64_t num_updates_ = 0;
};

// Measures the peak in this run: on a CPU with a 1024^3 fp32 matmul on the same threads, on a GPU
// that is not known by name with an 8192^3 bf16 one. Uses random numbers, because a GPU has a
// higher clock for ones.
train::ComputePeak FindPeak(const Device& device) {
  if (const auto known = train::FindComputePeak(device)) return *known;
  const int64_t size = device.is_cuda() ? 8192 : 1024;
  const auto on = at::TensorOptions(train::ToTorch(device))
                      .dtype(device.is_cuda() ? at::kBFloat16 : at::kFloat);
  const at::Tensor a = at::randn({size, size}, on), b = at::randn({size, size}, on);
  at::Tensor c = at::empty({size, size}, on);
  double best_ms = 1e300;
  for (int i = 0; i < 4; ++i)  // The first one is a warm-up.
    best_ms = std::min(best_ms,
                       bench::Milliseconds(train::ToTorch(device), [&] { at::mm_out(c, a, b); }));
  const double flops = 2.0 * static_cast<double>(size * size * size);
  return {flops / best_ms * 1e3,
          device.is_cuda() ? "measured bf16 matmul"
                           : Concat("measured sgemm, ", at::get_num_threads(), " threads")};
}

// If the profiler does not work, the earlier times are still valid.
nlohmann::ordered_json ProfileStep(at::Device device, Bench& trained) {
  try {
    return bench::Profile(device, [&] { trained.Step(); });
  } catch (const std::exception& error) {
    return {{"failed", bench::WordsOf(error)}};
  }
}

// At the start, the logits of a token are normal with variance s^2 = dim x 0.02^2, because the
// final norm gives channels of size 1 and the output matrix has a standard deviation of 0.02. The
// loss is then ln(vocab) + s^2 / 2, minus the mean of the targets' logits, whose standard error is
// s / sqrt(tokens), because random targets are independent of them. The rest of the bound is for
// the norm's gain, bf16 and a small vocabulary.
void CheckFirstLoss(const Options& options, double loss) {
  constexpr double kDeviation = 0.02, kRest = 0.1;
  const auto tokens = static_cast<double>(options.batch * options.seq_len);
  const double s = kDeviation * std::sqrt(static_cast<double>(options.dim));
  const double want = std::log(static_cast<double>(options.vocab)) + s * s / 2;
  const double allowed = 5 * s / std::sqrt(tokens) + kRest;
  HL_CHECK(std::abs(loss - want) <= allowed, "the first loss is ", loss,
           ", but an untrained model's lies within ", allowed, " of ", want);
}

// Checks the losses before each step, all on one batch. NaN fails.
void CheckLosses(const Options& options, const std::vector<double>& losses) {
  for (size_t i = 0; i < losses.size(); ++i)
    HL_CHECK(std::isfinite(losses[i]), "the loss before step ", i, " is ", losses[i]);
  CheckFirstLoss(options, losses.front());
  HL_CHECK(losses.back() <= losses.front(), "the loss rose from ", losses.front(), " to ",
           losses.back(), " in ", losses.size() - 1, " steps on one batch");
}

void Run(const Options& options) {
  kernels::cpu::UseInstructionSetOfEnvironment();
  if (!options.save_start.empty()) return SaveStart(options);
  at::set_num_threads(options.threads);
  PrepareHeap();  // As in the trainer.
  const Device device = train::ChooseDevice(options.device, 0);
  const train::ComputePeak peak = FindPeak(device);
  Bench trained(options);
  std::vector<double> losses;
  for (int i = 0; i < options.warmup; ++i) losses.push_back(trained.Step());
  bench::StartProfiler(train::ToTorch(device));
  std::vector<double> seconds, processor_seconds;
  for (int i = 0; i < options.steps; ++i) {
    const Stopwatch watch;
    const std::clock_t begin = std::clock();
    losses.push_back(trained.Step());
    seconds.push_back(watch.Seconds());
    processor_seconds.push_back(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
  }
  CheckLosses(options, losses);
  std::sort(seconds.begin(), seconds.end());
  std::sort(processor_seconds.begin(), processor_seconds.end());
  const double median = seconds[seconds.size() / 2];
  const model::FlopCount flops = model::ModelCost(trained.model(), options.seq_len).FlopsPerToken();
  const double per_step =
      3 * (flops.matmul + flops.mixing) * static_cast<double>(options.batch * options.seq_len);
  nlohmann::ordered_json result = {
      {"implementation", "halflife"},
      {"mixer", options.mixer},
      {"device", options.device},
      {"precision", options.precision},
      {"layers", options.layers},
      {"dim", options.dim},
      {"seq_len", options.seq_len},
      {"batch", options.batch},
      {"heads", options.heads},
      {"threads", options.threads},
      {"documents", options.documents},
      {"cuda_graphs", options.cuda_graphs},
      {"instruction_set", kernels::cpu::NameOf(kernels::cpu::InstructionSetInUse())},
      {"parameters", trained.model().CountParameters().total()},
      {"initial_weights_s", trained.initial_weights_s()},
      {"first_losses", std::vector<double>(losses.begin(), losses.begin() + options.warmup)},
      {"first_loss", losses.front()},
      {"last_loss", losses.back()},
      {"updates_between", losses.size() - 1},
      {"median_ms", 1e3 * median},
      {"median_processor_ms", 1e3 * processor_seconds[processor_seconds.size() / 2]},
      {"min_ms", 1e3 * seconds.front()},
      {"max_ms", 1e3 * seconds.back()},
      {"gflops", per_step / median / 1e9},
      {"share_of_peak", per_step / median / peak.flops_per_s},
      {"peak", peak.source},
      {"peak_memory_mib", static_cast<double>(train::PeakMemoryBytes(device)) / (1 << 20)}};
  if (options.profile) result["profile"] = ProfileStep(train::ToTorch(device), trained);
  std::cout << result << std::endl;
}

}  // namespace
}  // namespace halflife

int main(int argc, char** argv) {
  CLI::App app("Times the training step");
  halflife::Options options;
  bool list_mixers = false;
  app.add_option("--mixer", options.mixer);
  app.add_flag("--list-mixers", list_mixers,
               "print the names that --mixer takes, and time nothing");
  app.add_option("--device", options.device, "cpu or cuda: exit code 4 without a GPU");
  app.add_option("--precision", options.precision, "fp32, bf16 or fp8, as train.precision")
      ->check(CLI::IsMember({"fp32", "bf16", "fp8"}));
  app.add_option("--layers", options.layers);
  app.add_option("--dim", options.dim);
  app.add_option("--mlp-dim", options.mlp_dim);
  app.add_option("--seq-len", options.seq_len);
  app.add_option("--batch", options.batch);
  app.add_option("--documents", options.documents, "of a row, of equal lengths")
      ->check(CLI::PositiveNumber);
  app.add_option("--heads", options.heads, "of mixers that have heads");
  app.add_option("--vocab", options.vocab);
  app.add_option("--steps", options.steps);
  app.add_option("--warmup", options.warmup);
  app.add_option("--threads", options.threads);
  app.add_flag("--profile", options.profile,
               "one more step, under LibTorch's profiler: launches, synchronisations, what takes "
               "longest");
  app.add_flag("--cuda-graphs", options.cuda_graphs,
               "replay forward and backward from a recording, as train.cuda_graphs");
  app.add_option("--save-start", options.save_start,
                 "write the first step's parameters and batch to this file, and time nothing");
  CLI11_PARSE(app, argc, argv);
  if (list_mixers) {
    for (const std::string& name : halflife::model::NamesOf(halflife::model::kMixers))
      std::cout << name << "\n";
    return 0;
  }
  return halflife::bench::ExitCodeOf([&] { halflife::Run(options); });
}
