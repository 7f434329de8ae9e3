// halflife eval: validation loss and perplexity of a checkpoint.
#include <CLI/CLI.hpp>

#include <ATen/Parallel.h>

#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/command.h"
#include "cli/model_source.h"
#include "cli/world.h"
#include "core/error.h"
#include "core/files.h"
#include "core/hash.h"
#include "core/human.h"
#include "data/dataset.h"
#include "data/text_tokens.h"
#include "data/token_agreement.h"
#include "data/tokenizer.h"
#include "eval/bigram.h"
#include "train/validation.h"

namespace halflife::cli {
namespace {

struct Options {
  std::string model, tokenizer, data, json;
  std::vector<std::string> texts;
  int64_t seq_len = 0, windows = 0, batch = 8;
  int threads = 0;
  bool bigram = false;
};

void CheckVocabulary(const infer::LoadedModel& loaded, const data::Dataset& dataset) {
  const int64_t model_vocab = loaded.model->config().vocab_size;
  HL_CHECK_AS(ExitCode::kUsage, dataset.info().vocab_size <= model_vocab, "the dataset ",
              dataset.folder().string(), " has a vocabulary of ", dataset.info().vocab_size,
              ", the model of ", model_vocab, "; prepare the text with the run's own tokenizer");
  if (loaded.tokenizer == nullptr) return;  // a step that was copied away from its run
  data::RequireSameTokens(dataset, *loaded.tokenizer, loaded.path.string());
}

// What the model is scored on: a dataset's validation split, or texts.
class Scored {
 public:
  Scored(const Options& options, const infer::LoadedModel& loaded) {
    if (options.data.empty()) {
      text_ = data::EncodeFiles(options.texts, infer::RequireTokenizer(loaded));
    } else {
      dataset_ = data::Dataset::Open(options.data);
      CheckVocabulary(loaded, *dataset_);
    }
  }
  // Valid as long as this object.
  data::TokenView tokens() const {
    return dataset_ ? data::ViewOf(*dataset_, data::Split::kValidation) : data::ViewOf(text_);
  }
  const data::Dataset& dataset() const { return *dataset_; }  // with --data
  SharedFact Fact(const Options& options) const {
    const std::string hash =
        ToHex(dataset_ ? dataset_->info().hash
                       : HashBytes(text_.ids.data(), text_.ids.size() * sizeof(int32_t)));
    const std::string from =
        dataset_ ? "--data " + options.data : "--text " + Join(options.texts, " ");
    return {"the text", hash, Concat(from, " (hash ", hash, ")")};
  }

 private:
  std::optional<data::Dataset> dataset_;
  data::TextTokens text_;
};

void CheckOptions(const Options& options) {
  HL_CHECK_AS(ExitCode::kUsage, options.data.empty() != options.texts.empty(),
              options.data.empty() ? "nothing to evaluate on" : "both --data and --text",
              "; give either --data DATASET or --text FILE...");
  HL_CHECK_AS(ExitCode::kUsage, !options.bigram || options.texts.empty(),
              "--bigram counts the training split of a dataset, and --text has none; give --data "
              "DATASET, such as one of `halflife prepare --validation-input FILE`");
}

// Ranks that cut other windows, or other numbers of them, would wait for each other in vain.
void CheckRanks(const Options& options, const infer::LoadedModel& loaded, const Scored& scored,
                int64_t seq_len, dist::RankContext& context) {
  if (context.world_size() == 1) return;
  const auto number = [](const char* name, int64_t value) {
    return SharedFact{name, Concat(value), Concat(value)};
  };
  RequireAlike(context, {WeightsFact(loaded), scored.Fact(options), number("--seq-len", seq_len),
                         number("--windows", options.windows), number("--batch", options.batch)});
}

ExitCode Evaluate(const Options& options, dist::RankContext& context) {
  if (options.threads > 0) at::set_num_threads(options.threads);
  const infer::LoadedModel loaded = LoadAnyModel(options.model, options.tokenizer);
  const Scored scored(options, loaded);
  const int64_t seq_len = options.seq_len > 0 ? options.seq_len : loaded.state.data.seq_len;
  CheckRanks(options, loaded, scored, seq_len, context);
  const train::ValidationResult result =
      train::Validate(*loaded.model, scored.tokens(),
                      {.seq_len = seq_len, .num_windows = options.windows, .batch = options.batch},
                      at::kCPU, context.control());
  if (context.rank() != 0) return ExitCode::kFinished;
  nlohmann::ordered_json out = {{"model", loaded.path.string()},
                                {"step", loaded.state.step},
                                {"seq_len", seq_len},
                                {"tokens", result.num_targets},
                                {"loss", result.loss},
                                {"perplexity", result.perplexity()},
                                {"bits_per_byte", result.bits_per_byte}};
  std::cout << "step " << loaded.state.step << ", " << result.num_targets
            << " tokens in windows of " << seq_len << "\nloss        " << Fixed(result.loss, 4)
            << " nats per token\nperplexity  " << Fixed(result.perplexity(), 3) << "\ntext        "
            << Fixed(result.bits_per_byte, 4) << " bits per byte\n";
  if (options.bigram) {
    const eval::BigramResult bigram = eval::ScoreBigram(scored.dataset(), seq_len, options.windows);
    out["bigram_loss"] = bigram.loss;
    out["bigram_perplexity"] = std::exp(bigram.loss);
    out["bigram_bits_per_byte"] = bigram.bits_per_byte;
    std::cout << "bigram      " << Fixed(bigram.loss, 4) << " nats per token, "
              << Fixed(bigram.bits_per_byte, 4) << " bits per byte (add-one smoothed)\n";
  }
  if (!options.json.empty()) {
    AtomicWriteFile(options.json, out.dump(2) + "\n", ExitCode::kEnvironment);
  }
  return ExitCode::kFinished;
}

}  // namespace

void AddEval(CLI::App& app, Action& action) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("eval", "Validation loss and perplexity of a model");
  DescribeUse(
      *command,
      {.notes = "Windows are cut from the documents one after the other, each with its eos, and "
                "start from an empty state; what is left behind the last whole one is not scored. "
                "Under mpirun the ranks share the windows. --text reads as `prepare --documents "
                "file` and gives the same numbers: a file is one document of UTF-8, unpacked where "
                "it ends in .gz or .zst. Bits per byte compare models with different tokenizers: "
                "the loss in "
                "bits, times (tokens - documents) / bytes of text of the whole split. So a "
                "document's eos counts in place of its first token, which nothing predicts, and "
                "with the bytes tokenizer it is the loss / ln 2.",
       .examples = {"halflife eval --model runs/first --data datasets/mine --bigram",
                    "halflife eval --model runs/first --text chapter.txt"},
       .exit_codes = {ExitCode::kData, ExitCode::kEnvironment, ExitCode::kNoUsableCheckpoint}});
  command->add_option("--model", options->model, kModelHelp)->type_name("RUN")->required();
  command
      ->add_option("--data", options->data,
                   "A dataset folder, whose validation split is scored [none: --text]")
      ->type_name("DATASET");
  command
      ->add_option("--text", options->texts,
                   "Text files instead of --data, each one document, read by the tokenizer")
      ->type_name("FILE");
  command->add_option("--tokenizer", options->tokenizer, "A tokenizer folder [the model's]")
      ->type_name("DIR");
  command->add_option("--seq-len", options->seq_len, "Tokens a window [as trained]")
      ->check(CLI::PositiveNumber);
  command->add_option("--windows", options->windows, "Score the first so many windows [all]")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--batch", options->batch, "Windows of one forward")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--threads", options->threads, "Threads a rank [all cores]")
      ->check(CLI::NonNegativeNumber);
  command->add_flag("--bigram", options->bigram,
                    "Also score an add-one-smoothed bigram model of the training split");
  command->add_option("--json", options->json, "Also write the result to this file [none]")
      ->type_name("FILE");
  command->callback([=, &action] {
    action = [options] {
      CheckOptions(*options);
      return RunInWorld(dist::RankConfig{}.timeout_s,
                        [&](dist::RankContext& context, std::filesystem::path&) {
                          return Evaluate(*options, context);
                        });
    };
  });
}

}  // namespace halflife::cli
