// halflife eval: validation loss and perplexity of a checkpoint, or accuracy on labelled rows.
#include <ATen/Parallel.h>

#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/command_line/options.h"
#include "cli/eval_file.h"
#include "cli/eval_modes.h"
#include "cli/model_source.h"
#include "cli/readable_text.h"
#include "cli/world.h"
#include "core/error.h"
#include "core/files.h"
#include "core/hash.h"
#include "core/human.h"
#include "core/json_text.h"
#include "data/dataset.h"
#include "data/input_files.h"
#include "data/text_tokens.h"
#include "data/tokenizer.h"
#include "eval/multiple_choice.h"
#include "eval/validation.h"

namespace halflife::cli {
namespace {

// Throws an error if the model and the dataset list their classes differently. With the same number
// of classes in another order, scores would be wrong without any other error.
void RequireClasses(const infer::LoadedModel& loaded, const data::Dataset& dataset) {
  const std::vector<std::string>&own = loaded.state.data.classes, &given = dataset.info().classes;
  HL_CHECK_AS(ExitCode::kUsage, own.empty() || given.empty() || own == given, loaded.path.string(),
              " was trained on the classes ", Join(own, ", "), ", and ", dataset.folder().string(),
              " numbers ", Join(given, ", "), ". Prepare it with --classes ", Join(own, ","), ".");
}

void CheckVocabulary(const infer::LoadedModel& loaded, const data::Dataset& dataset) {
  const int64_t model_vocab = loaded.model->config().vocab_size;
  HL_CHECK_AS(ExitCode::kUsage, dataset.info().vocab_size <= model_vocab, "the dataset ",
              dataset.folder().string(), " has a vocabulary of ", dataset.info().vocab_size,
              ", the model of ", model_vocab, ". Prepare the text with the run's own tokenizer.");
  RequireClasses(loaded, dataset);
  if (!dataset.info().has_tokenizer()) return;
  if (loaded.tokenizer == nullptr) return;  // The step was copied away from its run.
  data::RequireSameTokens(dataset, *loaded.tokenizer, loaded.path.string());
}

// Returns true if the model was trained with resets at documents. Imported weights, and runs of
// versions without the setting, do not record it; they get its default.
bool ResetsAtDocuments(const infer::LoadedModel& loaded) {
  const auto& fields = loaded.state.trajectory;
  const auto found = fields.find("data.reset_at_documents");
  return found == fields.end() || found->second != "false";
}

// The scored data: a dataset's validation split, or texts.
class Scored {
 public:
  Scored(const EvalOptions& options, const infer::LoadedModel& loaded)
      : split_(data::SplitOf(options.split)), reset_at_documents_(ResetsAtDocuments(loaded)) {
    if (options.data.empty()) {
      text_ = data::EncodeFiles(options.texts, infer::RequireTokenizer(loaded));
    } else {
      dataset_ = data::Dataset::Open(options.data);
      CheckVocabulary(loaded, *dataset_);
      HL_CHECK_AS(ExitCode::kUsage, !options.bigram || !dataset_->info().has_rows(),
                  "--bigram counts pairs of consecutive tokens of text, and ", options.data,
                  " has labelled rows. Use a dataset of text.");
    }
  }
  // The view is valid as long as this object.
  data::TokenView tokens() const {
    return dataset_ ? data::ViewOf(*dataset_, split_, reset_at_documents_)
                    : data::ViewOf(text_, reset_at_documents_);
  }
  bool reset_at_documents() const { return reset_at_documents_; }
  const data::Dataset& dataset() const { return *dataset_; }  // Only with --data.
  const data::NameCounts& special_names() const { return text_.special_names; }
  SharedFact Fact(const EvalOptions& options) const {
    const std::string hash =
        ToHex(dataset_ ? dataset_->info().hash
                       : HashBytes(text_.ids.data(), text_.ids.size() * sizeof(int32_t)));
    const std::string from = dataset_ ? Concat("--data ", options.data, " --split ", options.split)
                                      : "--text " + Join(options.texts, " ");
    return {"the text", hash + options.split, Concat(from, " (hash ", hash, ")")};
  }

 private:
  std::optional<data::Dataset> dataset_;
  data::TextTokens text_;
  data::Split split_;
  bool reset_at_documents_;
};

// Checks that all ranks score the same windows. Otherwise they would wait for each other forever.
void CheckRanks(const EvalOptions& options, const infer::LoadedModel& loaded, const Scored& scored,
                int64_t seq_len, dist::RankContext& context) {
  if (context.world_size() == 1) return;
  const auto number = [](const char* name, int64_t value) {
    return SharedFact{name, Concat(value), Concat(value)};
  };
  std::vector<SharedFact> facts = {WeightsFact(loaded),
                                   scored.Fact(options),
                                   number("--seq-len", seq_len),
                                   number("--windows", options.windows),
                                   number("--batch", options.batch),
                                   number("--bin", options.bin),
                                   number("--samples", options.samples),
                                   number("--pairs", options.pairs),
                                   number("--seed", static_cast<int64_t>(options.seed)),
                                   number("--recall", options.recall ? 1 : 0),
                                   number("--attention", options.attention ? 1 : 0)};
  const auto list = [&](const char* name, const std::string& value) {
    facts.push_back({name, value, value});
  };
  list("--lengths", Join(options.lengths, ","));
  list("--method", Join(options.methods, ","));
  list("--protocol", Join(options.protocols, ","));
  list("--retrieval", options.retrieval);
  list("--depths", Join(options.depths, ","));
  RequireAlike(context, facts);
}

// Returns the tokens of a window: the user's choice, otherwise the training length. Labelled rows
// are not cut.
int64_t WindowOf(const data::TokenView& tokens, const infer::LoadedModel& loaded) {
  return tokens.row_len > 0 ? tokens.row_len : loaded.state.data.seq_len;
}

nlohmann::ordered_json PartJson(const eval::PartScore& part) {
  nlohmann::ordered_json json = {
      {"name", part.name}, {"tokens", part.num_targets}, {"loss", part.loss}};
  if (part.accuracy) json["accuracy"] = *part.accuracy;
  return json;
}

nlohmann::ordered_json ResultJson(const eval::ValidationResult& result) {
  nlohmann::ordered_json out = {
      {"windows_scored", result.num_windows}, {"windows_available", result.num_available},
      {"tokens", result.num_targets},         {"loss", result.loss},
      {"perplexity", result.perplexity()},    {"perplexity_hf", result.perplexity_hf()}};
  if (result.bits_per_byte) out["bits_per_byte"] = *result.bits_per_byte;
  if (result.accuracy) out["accuracy"] = *result.accuracy;
  if (result.classes) out["classes"] = ClassScoresJson(*result.classes);
  for (const eval::PartScore& segment : result.segments)
    out["segments"].push_back(PartJson(segment));
  for (const eval::PartScore& source : result.sources) out["sources"].push_back(PartJson(source));
  return out;
}

// Builds the text from the JSON, so that both contain the same values.
std::string ResultText(const nlohmann::ordered_json& out) {
  const auto number = [&](const char* key, int digits) {
    return Fixed(out.at(key).get<double>(), digits);
  };
  const bool documents = out.contains("classes");
  std::string text = Concat(
      "step ", out.at("step").dump(), ", ", out.at("tokens").dump(),
      documents ? " documents in rows of " : " tokens in windows of ", out.at("seq_len").dump(),
      "\n", eval::DescribeChoice(out.at("windows_scored"), out.at("windows_available")),
      "\nloss        ", number("loss", 4),
      documents ? " nats per document\n" : " nats per token\n");
  if (!documents) text += Concat("perplexity  ", number("perplexity", 3), "\n");
  if (out.contains("bits_per_byte"))
    text += Concat("text        ", number("bits_per_byte", 4), " bits per byte\n");
  if (out.contains("accuracy")) text += Concat("accuracy    ", number("accuracy", 4), "\n");
  if (documents) {
    for (const char* measure : {"mcc", "f1_macro", "f1", "auroc"}) {
      if (out["classes"].contains(measure))
        text += Concat(measure, std::string(12 - std::string_view(measure).size(), ' '),
                       Fixed(out["classes"][measure].get<double>(), 4), "\n");
    }
  }
  if (out.contains("segments")) {
    for (const auto& segment : out["segments"]) {
      text += Concat("  ", segment["name"].get<std::string>(), ": ",
                     Fixed(segment["accuracy"].get<double>(), 4), "\n");
    }
  }
  if (out.contains("sources")) {
    text += "by source, nats per token\n";
    for (const auto& source : out["sources"]) {
      text += Concat("  ", source["name"].get<std::string>(), ": ",
                     Fixed(source["loss"].get<double>(), 4), " (",
                     Counted(source["tokens"].get<int64_t>(), "token"), ")\n");
    }
  }
  if (out.contains("bigram_loss")) {
    text += Concat("bigram      ", number("bigram_loss", 4), " nats per token, ",
                   number("bigram_bits_per_byte", 4), " bits per byte (add-one smoothed)\n");
  }
  return text;
}

// Replaces folders by the text files in them.
std::vector<std::string> TextFiles(const std::vector<std::string>& names) {
  constexpr data::TextFormat kOnlyText[] = {data::TextFormat::kText};
  std::vector<std::string> files;
  for (const std::string& name : names) {
    std::error_code ignored;
    if (!std::filesystem::is_directory(name, ignored)) {
      files.push_back(name);
      continue;
    }
    for (const data::InputFile& file : data::FindInputFiles({name}, "--text", kOnlyText).files)
      files.push_back(file.path.string());
  }
  return files;
}

// Evaluates multiple choice tasks (--tasks).
ExitCode EvaluateTasks(const EvalOptions& options, const infer::LoadedModel& loaded,
                       const dist::RankContext& context) {
  HL_CHECK_AS(ExitCode::kUsage, context.world_size() == 1, "--tasks on ", context.world_size(),
              " ranks is not supported. Run it without mpirun.");
  const std::vector<eval::ChoiceQuestion> questions = eval::ReadQuestions(options.tasks);
  const eval::ChoiceScores scores =
      eval::ScoreChoices(*loaded.model, infer::RequireTokenizer(loaded), questions, {});
  const nlohmann::ordered_json out = {{"model", loaded.path.string()},
                                      {"step", loaded.state.step},
                                      {"tasks", options.tasks},
                                      {"questions", scores.num_questions},
                                      {"acc", scores.acc},
                                      {"acc_stderr", scores.acc_stderr},
                                      {"acc_norm", scores.acc_norm},
                                      {"acc_norm_stderr", scores.acc_norm_stderr}};
  if (options.json) {
    std::cout << JsonText(out, 2) << "\n";
  } else {
    std::cout << Counted(scores.num_questions, "question") << "\nacc         "
              << Fixed(scores.acc, 4) << " +- " << Fixed(scores.acc_stderr, 4) << "\nacc_norm    "
              << Fixed(scores.acc_norm, 4) << " +- " << Fixed(scores.acc_norm_stderr, 4) << "\n";
  }
  return ExitCode::kFinished;
}

void RequireFiles(const EvalOptions& options) {
  for (const std::string* file : {&options.out, &options.csv, &options.figure, &options.explain})
    if (!file->empty()) RequireWritable(*file, ExitCode::kEnvironment);
}

ExitCode Evaluate(const EvalOptions& options, dist::RankContext& context) {
  if (context.rank() == 0) RequireFiles(options);
  if (options.threads > 0) at::set_num_threads(options.threads);
  WarnOfBusyCores(context);
  const infer::LoadedModel loaded =
      LoadAnyModel(options.model, options.tokenizer,
                   PlacementOf(options.compute, context.local_rank()), options.weights);
  if (!options.tasks.empty()) return EvaluateTasks(options, loaded, context);
  const Scored scored(options, loaded);
  if (context.rank() == 0)
    WarnOfSpecialNames("eval", "--text", scored.special_names(), kMarkupInText);
  const int64_t seq_len = options.seq_len > 0 ? options.seq_len : WindowOf(scored.tokens(), loaded);
  CheckRanks(options, loaded, scored, seq_len, context);
  if (!options.explain.empty()) {
    HL_CHECK_AS(ExitCode::kUsage, context.world_size() == 1, "--explain on ", context.world_size(),
                " ranks is not supported. Run it without mpirun.");
    return ExplainWindows(options, loaded, scored.tokens(), seq_len);
  }
  if (!options.retrieval.empty())
    return EvaluateRetrieval(options, loaded, scored.tokens(), scored.Fact(options), context);
  if (!options.lengths.empty())
    return EvaluateLengths(options, loaded, scored.tokens(), scored.Fact(options), context);
  const eval::ValidationResult result =
      eval::Validate(*loaded.model, scored.tokens(),
                     {.seq_len = seq_len, .num_windows = options.windows, .batch = options.batch},
                     context.control());
  if (context.rank() != 0) return ExitCode::kFinished;
  nlohmann::ordered_json out = {
      {"model", loaded.path.string()}, {"step", loaded.state.step}, {"seq_len", seq_len}};
  out.update(ResultJson(result));
  if (options.bigram) {
    const eval::BigramResult bigram =
        eval::ScoreBigram(scored.dataset(), data::SplitOf(options.split), seq_len, options.windows,
                          scored.reset_at_documents());
    out["bigram_loss"] = bigram.loss;
    out["bigram_perplexity"] = std::exp(bigram.loss);
    out["bigram_bits_per_byte"] = bigram.bits_per_byte;
  }
  std::cout << (options.json ? JsonText(out, 2) + "\n" : ResultText(out)) << std::flush;
  return ExitCode::kFinished;
}

}  // namespace

ExitCode Run(const EvalOptions& options) {
  HL_CHECK_AS(
      ExitCode::kUsage, !options.data.empty() || !options.texts.empty() || !options.tasks.empty(),
      "there is no data to evaluate on. Use --data DATASET, --text FILE... or --tasks FILE.");
  EvalOptions with_files = options;
  with_files.texts = TextFiles(options.texts);
  return RunInWorld(kNoTimeout, [&](dist::RankContext& context, std::filesystem::path&) {
    return Evaluate(with_files, context);
  });
}

}  // namespace halflife::cli
