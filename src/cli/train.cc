// halflife train: trains one run from a recipe, as one process or as one rank under mpirun or srun.
#include <ATen/Parallel.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <string>
#include <thread>

#include "cli/command_line/options.h"
#include "cli/doctor/checks.h"
#include "cli/model_source.h"
#include "cli/readable_text.h"
#include "cli/world.h"
#include "core/error.h"
#include "core/hash.h"
#include "core/host.h"
#include "core/log.h"
#include "data/dataset.h"
#include "data/utf8.h"
#include "infer/generator.h"
#include "train/config/plan.h"
#include "train/device.h"
#include "train/loop/stop_policy.h"
#include "train/loop/trainer.h"
#include "train/plan/cluster_plan.h"
#include "train/plan/memory_plan.h"
#include "train/plan/plan_against.h"

namespace halflife::cli {
namespace {

// Returns the threads of this rank. 0: LibTorch's default.
int ThreadsOf(const train::RunConfig& config, const dist::RankContext& context) {
  if (config.train.threads > 0) return config.train.threads;
  // Results depend on the number of threads, which must not depend on the mesh.
  if (config.parallel.slices > 0) return 1;
  // A launcher may have set LibTorch's variable for the whole process.
  if (const char* const of_process = std::getenv("OMP_NUM_THREADS"); of_process != nullptr) {
    const int ranks = context.ranks_in_process();
    return ranks == 1 ? 0 : std::max(1, std::atoi(of_process) / ranks);
  }
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::max(1, cores / context.local_size());
}

// Throws an error if the ranks use devices of different kinds. With device 'auto', a host without a
// visible GPU would otherwise wait for the others in the wrong collective.
void RequireSameDevice(Device device, dist::RankContext& context) {
  const std::string own = device.is_cuda() ? "cuda" : "cpu";
  const auto all = dist::AllGatherBytes(context.control(), own, {"device", 0});
  for (size_t rank = 0; rank < all.size(); ++rank) {
    HL_CHECK_AS(ExitCode::kEnvironment, all[rank] == all[0], "rank 0 computes on ", all[0],
                ", rank ", rank, " on ", all[rank],
                ". Set train.device, or make the same devices visible on all hosts.");
  }
}

// Sets up this process before a Trainer is created: log file, flight record, device, LibTorch's
// threads and the heap. Collective. Returns the device to train on, which `context` communicates
// from. Throws Error kEnvironment if it is missing, or if ranks would use devices of different
// kinds.
Device PrepareTrainProcess(const train::RunConfig& config, const train::RunFolder& folder,
                           dist::RankContext& context) {
  const Device device = train::ChooseDevice(config.train.device, context.local_rank());
  const bool one_process = context.ranks_in_process() == context.world_size();
  if (context.rank_in_process() == 0)
    log::Init({.rank = context.rank(),
               .world_size = one_process ? 1 : context.world_size(),
               .console_level = log::ParseLevel(config.log.level),
               .file = folder.LogFile(context.rank())});
  RequireSameDevice(device, context);  // Other ranks of this process wait here for the log.
  context.flight().KeepIn(folder.FlightFolder(), folder.attempt());
  if (const int threads = ThreadsOf(config, context); threads > 0) at::set_num_threads(threads);
  WarnOfBusyCores(context);
  if (context.rank_in_process() == 0) PrepareHeap();
  train::RequireSlicesOn(device, config);
  doctor::RequireUsableGpu(device);
  train::PrepareDevice(device);
  train::UseComputeStream(device);
  context.UseDevice(device);
  return device;
}

const std::map<std::string, train::RowGrowth> kRowGrowth = {{"refuse", train::RowGrowth::kRefuse},
                                                            {"mean", train::RowGrowth::kMean},
                                                            {"init", train::RowGrowth::kInit}};

train::WarmStartRules InitRules(const TrainOptions& options) {
  train::WarmStartRules rules = options.init_rules;
  if (!options.init_map.empty()) rules.renames = train::ReadRenames(options.init_map);
  rules.new_rows = kRowGrowth.at(options.init_new_rows);
  return rules;
}

// Returns a run folder whose name contains the names of all recipes, so different combinations of
// files make different runs.
std::filesystem::path DefaultRun(const std::vector<std::string>& configs) {
  return std::filesystem::path("runs") / Join(configs, "+", [](const std::string& config) {
           return std::filesystem::path(config).stem().string();
         });
}

void PrintAssumedVocabulary(const train::RunConfig& config, std::ostream& out) {
  const std::string& path = config.data.main_path();
  out << "# there is no dataset" << (path.empty() ? "" : " " + path) << ": a vocabulary of "
      << config.model.vocab_size << " is assumed (--set data.path=DATASET for a dataset's, "
      << train::kAnotherVocabulary << ")\n";
}

// Returns the number of ranks of this process.
int RanksHere(const train::RunConfig& config, const TrainOptions& options) {
  // Under a launcher, a group has an MPI communicator for each pair of ranks that two processes may
  // be. MPI supports about ten thousand.
  const int most = ReadLauncherEvidence().world_size > 1 ? 16 : 1024;
  const int ranks = config.parallel.ranks_of_process();
  HL_CHECK_AS(ExitCode::kUsage, ranks <= most / options.local_ranks, "--local-ranks ",
              options.local_ranks, " times parallel.slices / parallel.sp, ", ranks,
              ", are the ranks of one process. Use at most ", most, ".");
  return options.local_ranks * ranks;
}

// Plans for other machines.
ExitCode Plan(train::RunConfig config, const TrainOptions& options) {
  HL_CHECK_AS(ExitCode::kUsage, config.parallel.slices == 0,
              "--plan supports one slice of a row per process. It does not support "
              "parallel.slices, ",
              config.parallel.slices, ". Use --set parallel.slices=0.");
  const train::PlanRequest request = train::ParsePlan(*options.plan);
  const std::optional<data::DatasetInfo> dataset = train::FindTrainingInfo(config);
  const data::DatasetInfo* const info = dataset ? &*dataset : nullptr;
  if (request.search) {
    // One rank until the search has chosen its own.
    config.parallel.sp = request.sp.value_or(1);
    config.train.micro_batch = 1;
  } else {
    config = train::ConfigFor(config, request);
  }
  const int ranks = request.search ? 1 : request.cluster.world_size();
  const bool assumed = train::CompleteForPlan(config, info, ranks);
  train::RequireRows(config, model::LanguageModel(config.model), info);
  std::optional<train::MeasuredStep> measured;
  if (options.against) measured = train::ReadMeasuredStep(*options.against);
  train::FoundPlan found;
  if (request.search) {
    found = train::SearchPlan(config, request);
  } else {
    found.plan = train::PlanCluster(config, request.cluster);
  }
  if (options.json) {
    nlohmann::ordered_json json = train::ClusterPlanJson(found.plan);
    json["vocab_size"] = config.model.vocab_size;
    json["vocab_assumed"] = assumed;
    if (request.search) {
      json["plans_possible"] = found.num_possible;
      json["plans_fitting"] = found.num_fitting;
    }
    if (measured) json["against"] = train::ComparisonJson(found.plan, *measured);
    std::cout << json.dump(2) << "\n";
    return ExitCode::kFinished;
  }
  if (measured) std::cout << train::ComparisonText(found.plan, *measured) << "\n";
  std::cout << train::ClusterPlanText(found.plan);
  if (request.search)
    std::cout << "the fastest of " << found.num_fitting << " plans that fit, of "
              << found.num_possible << "\n";
  if (assumed) PrintAssumedVocabulary(config, std::cout);
  return ExitCode::kFinished;
}

// `ranks_here`: number of ranks per process.
ExitCode DryRun(train::RunConfig config, int ranks_here) {
  const LauncherEvidence evidence = ReadLauncherEvidence();
  // The actual number of ranks, or as many as share a row.
  const int world = std::max(evidence.world_size * ranks_here, config.parallel.row_ranks());
  const int on_host = evidence.world_size > 1 ? evidence.local_size * ranks_here : world;
  std::string& path = config.data.main_path();
  const std::optional<data::DatasetInfo> dataset = train::FindTrainingInfo(config);
  const bool assumed = train::CompleteForPlan(config, dataset ? &*dataset : nullptr, world);
  if (assumed) PrintAssumedVocabulary(config, std::cout);
  if (path.empty()) path = "DATASET";
  train::PlanTarget target = train::CurrentTarget(config, world, on_host);
  target.train_tokens = dataset ? dataset->train.num_tokens : 0;
  if (dataset) target.order = train::OrderOf(config, *dataset);
  target.assumed_vocabulary = assumed;
  const model::LanguageModel model(config.model);
  train::RequireRows(config, model, dataset ? &*dataset : nullptr);
  std::cout << train::PlanText(config, model, target);
  const bool knows_steps = config.train.max_epochs == 0 || dataset.has_value();
  const std::string warning = train::ScheduleWarning(config.schedule, config.train.steps);
  if (knows_steps && !warning.empty()) HL_WARN("train", warning);
  return ExitCode::kFinished;
}

// Warns if the tokenizer differs from that of the initial weights. Embedding rows of other text are
// trained from noise, which is valid but rarely intended.
void WarnOfOtherTokens(const std::string& init_from, const std::string& dataset) {
  const auto own = OpenTokenizer(init_from);
  if (own == nullptr) return;
  const data::Dataset data = data::Dataset::Open(dataset);
  if (!data.info().has_tokenizer()) return;
  const auto theirs = data.LoadTokenizer();
  if (own->begins_with_bos() && !theirs->begins_with_bos())
    HL_WARN("train", "texts of the tokenizer of --init-from ", init_from,
            " begin with bos, but those of the dataset ", dataset,
            " do not. Prepare the text with that tokenizer.");
  const auto difference = data::FindDifference(*theirs, *own);
  if (!difference) return;
  HL_WARN("train", "--init-from ", init_from, " was trained with another tokenizer: token ",
          difference->id, " is '", difference->left, "' in the dataset, and '", difference->right,
          "' there. Prepare the text with `halflife prepare --tokenizer`, which "
          "accepts a tokenizer's folder.");
}

// Continues eval.sample_prompt with the same seed every time. Returns null if there is no prompt.
std::function<std::string(const model::LanguageModel&)> SampleText(const train::RunConfig& config) {
  const std::string prompt = config.eval.sample_prompt;
  if (prompt.empty()) return nullptr;
  const std::shared_ptr<const data::Tokenizer> tokenizer =
      data::Dataset::Open(config.data.main_path()).LoadTokenizer();
  constexpr auto kParse = data::SpecialTokens::kParse;  // as `generate` reads a prompt
  CheckReadable("eval.sample_prompt", prompt, *tokenizer, kParse, ExitCode::kUsage);
  const infer::GenerateConfig generate = {.max_tokens = config.eval.sample_tokens,
                                          .eos_id = tokenizer->eos_id(),
                                          .vocab_size = tokenizer->vocab_size(),
                                          .sampler = {.temperature = 0.8}};
  return [=](const model::LanguageModel& model) {
    data::StreamDecoder decoder(*tokenizer, data::StreamDecoder::Begins::kAfterText);
    std::string text = prompt;
    infer::Generate(model, tokenizer->EncodeText(prompt, kParse), generate, [&](int32_t id) {
      text += decoder.Push(id);
      return true;
    });
    return data::ReplaceInvalidUtf8(text + decoder.Finish());  // TensorBoard takes nothing else
  };
}

}  // namespace

ExitCode Run(const TrainOptions& options) {
  const ckpt::ResumeRequest resume = ckpt::ParseResume(options.resume);
  const std::filesystem::path run_dir =
      options.run.empty() ? DefaultRun(options.configs) : std::filesystem::path(options.run);
  const train::RunConfig config = train::LoadRunConfig(
      std::vector<std::filesystem::path>{options.configs.begin(), options.configs.end()},
      options.overrides);
  const bool named =
      resume.mode == ckpt::ResumeMode::kStep || resume.mode == ckpt::ResumeMode::kPath;
  // The same command with --resume auto would leave out data again after each restart.
  HL_CHECK_AS(ExitCode::kUsage, options.skip_data == 0 || (options.skip_data > 0 && named),
              "--skip-data ", options.skip_data,
              ": only a run that resumes from a named step can leave out data. Add --resume step=N "
              "or --resume path=DIR, and use a number >= 0.");
  if (options.plan) return Plan(config, options);
  const int ranks_here = RanksHere(config, options);
  if (options.dry_run) return DryRun(config, ranks_here);
  const train::WarmStartRules init_rules = InitRules(options);
  const std::unique_ptr<ckpt::WeightSource> init_from =
      options.init_from.empty() ? nullptr : OpenWeights(options.init_from);
  train::StopFlags::InstallHandlers();
  const auto body = [&](dist::RankContext& context, std::filesystem::path& abort_dir) {
    context.RequireSameConfig(ToHex(HashBytes(train::ToText(config))));
    train::Validate(config, context.world_size());
    const auto sample_text = SampleText(config);
    if (init_from != nullptr && context.rank() == 0)
      WarnOfOtherTokens(options.init_from, config.data.main_path());
    train::RunFolder folder =
        train::RunFolder::Open(run_dir, context, {.steal_lock = options.steal_lock});
    // A failed start removes a folder that it created, so no rank may write its error there.
    if (!folder.is_new()) abort_dir = run_dir;
    const Stopwatch clock;
    const Device device = PrepareTrainProcess(config, folder, context);
    train::Trainer trainer(config, device, std::move(folder), context,
                           {.resume = resume,
                            .allow_change = options.allow_change,
                            .skip_data = static_cast<uint64_t>(options.skip_data),
                            .init_from = init_from.get(),
                            .init_rules = init_rules,
                            .sample_text = sample_text,
                            .trace = {.file = options.trace, .steps = options.trace_steps},
                            .count_waits = options.check_sync,
                            .clock = clock});
    abort_dir = run_dir;
    return trainer.Run();
  };
  return RunInWorld(config.comm_timeout_s, body, ranks_here);
}

}  // namespace halflife::cli
