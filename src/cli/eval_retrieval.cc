#include "cli/eval_modes.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "cli/eval_file.h"
#include "cli/model_source.h"
#include "core/error.h"
#include "core/human.h"
#include "eval/length_method.h"
#include "eval/length_table.h"
#include "eval/retrieval.h"

namespace halflife::cli {
namespace {

using nlohmann::ordered_json;

constexpr CsvColumn kRetrievalColumns[] = {{"model", "/model"},
                                           {"train_len", "/train_len"},
                                           {"retrieval", "/retrieval"},
                                           {"method", "/method"},
                                           {"length", "/length"},
                                           {"depth", "/depth"},
                                           {"answers", "/answers"},
                                           {"tokens", "/tokens"},
                                           {"retrieval_accuracy", "/retrieval_accuracy"},
                                           {"token_accuracy", "/token_accuracy"},
                                           {"loss", "/loss"}};

ordered_json KeyOf(const std::string& method, int64_t length, double depth) {
  return {{"method", method}, {"length", length}, {"depth", depth}};
}

using NeedleOf = std::function<eval::Needle(uint64_t sample, const std::vector<int32_t>& haystack)>;

NeedleOf Passkeys(const EvalOptions& options, const infer::LoadedModel& loaded) {
  eval::RequireAnswers(*loaded.model, /*labels_will_do=*/false);
  return [&tokenizer = infer::RequireTokenizer(loaded), seed = options.seed](
             uint64_t sample, const std::vector<int32_t>&) {
    return eval::PasskeyNeedle(tokenizer, seed, sample);
  };
}

NeedleOf OfRuler(const EvalOptions& options, const infer::LoadedModel& loaded) {
  using eval::RulerTask;
  eval::RequireAnswers(*loaded.model, /*labels_will_do=*/false);
  const RulerTask task = options.retrieval == "multi_key"     ? RulerTask::kMultiKey
                         : options.retrieval == "multi_value" ? RulerTask::kMultiValue
                                                              : RulerTask::kVariables;
  return [task, &tokenizer = infer::RequireTokenizer(loaded), count = options.pairs,
          seed = options.seed](uint64_t sample, const std::vector<int32_t>&) {
    return eval::RulerNeedle(task, tokenizer, count, seed, sample);
  };
}

// Returns the ids that represent text. Without a tokenizer, the model was trained on labelled rows,
// which are padded with 0, so ids start at 1.
std::vector<int32_t> OrdinaryTokens(const infer::LoadedModel& loaded, int32_t eos_id) {
  std::vector<int32_t> ordinary;
  std::string bytes;
  for (int32_t id = 1; id < loaded.model->config().vocab_size; ++id) {
    const bool text = loaded.tokenizer == nullptr ||
                      (id < loaded.tokenizer->vocab_size() &&
                       loaded.tokenizer->AppendBytes(id, /*at_start=*/false, bytes));
    if (text && id != eos_id) ordinary.push_back(id);
  }
  return ordinary;
}

NeedleOf Pairs(const EvalOptions& options, const infer::LoadedModel& loaded, int32_t eos_id) {
  eval::RequireAnswers(*loaded.model, /*labels_will_do=*/true);
  return [config = eval::MqarNeedles{.vocab_size = loaded.model->config().vocab_size,
                                     .ordinary = OrdinaryTokens(loaded, eos_id),
                                     .num_pairs = options.pairs},
          seed = options.seed](uint64_t sample, const std::vector<int32_t>& haystack) {
    return eval::MqarNeedle(config, haystack, seed, sample);
  };
}

// The needles of all samples and the texts of the longest haystack, of which others have the
// beginning.
class Samples {
 public:
  Samples(const EvalOptions& options, const infer::LoadedModel& loaded,
          const data::TokenView& tokens) {
    const bool bos = loaded.tokenizer != nullptr && loaded.tokenizer->begins_with_bos();
    const int32_t bos_id = bos ? loaded.tokenizer->special_ids().bos : -1;
    const eval::Haystack haystack(tokens, options.seed, bos_id);
    const NeedleOf needle_of = options.retrieval == "passkey" ? Passkeys(options, loaded)
                               : options.retrieval == "mqar" ? Pairs(options, loaded, tokens.eos_id)
                                                             : OfRuler(options, loaded);
    for (int64_t sample = 0; sample < options.samples; ++sample) {
      const auto number = static_cast<uint64_t>(sample);
      texts_.push_back(haystack.Text(number, std::ranges::max(options.lengths)));
      needles_.push_back(needle_of(number, texts_.back()));
      if (bos) needles_.back().begin = {bos_id};
    }
  }
  eval::Prompt Prompt(uint64_t sample, int64_t length, double depth) const {
    return eval::Hide(needles_[sample], texts_[sample], length, depth);
  }
  void RequireRoom(int64_t length) const {  // before hours of others
    for (uint64_t sample = 0; sample < needles_.size(); ++sample) Prompt(sample, length, 0);
  }

 private:
  std::vector<std::vector<int32_t>> texts_;
  std::vector<eval::Needle> needles_;
};

ordered_json RowJson(const ordered_json& key, const eval::RetrievalScore& score) {
  ordered_json row = key;
  row["answers"] = score.num_answers;
  row["tokens"] = score.num_tokens;
  row["retrieval_accuracy"] = score.accuracy;
  row["token_accuracy"] = score.token_accuracy;
  row["loss"] = score.loss;
  return row;
}

std::string TableText(const EvalFile& file, const EvalOptions& options) {
  std::string text;
  for (const std::string& method : options.methods) {
    text += Concat(options.retrieval, ", ", method, ": share of answers that are right\n",
                   Padded("depth", 12));
    for (const int64_t length : options.lengths) text += Padded(Concat(length), 10);
    for (const double depth : options.depths) {
      text += "\n" + Padded(Fixed(depth, 2), 12);
      for (const int64_t length : options.lengths) {
        const ordered_json row = file.RowOf(KeyOf(method, length, depth));
        text += Padded(Fixed(row["retrieval_accuracy"].get<double>(), 3), 10);
      }
    }
    text += "\n";
  }
  return text;
}

ordered_json FactsOf(const EvalOptions& options, const infer::LoadedModel& loaded,
                     const SharedFact& tokens_fact) {
  ordered_json facts = {
      {"model", loaded.path.string()},  {"weights", WeightsFact(loaded).value},
      {"text", tokens_fact.value},      {"train_len", loaded.state.data.seq_len},
      {"retrieval", options.retrieval}, {"longest", std::ranges::max(options.lengths)},
      {"samples", options.samples},     {"seed", options.seed}};
  if (options.retrieval != "passkey") facts["pairs"] = options.pairs;
  return facts;
}

}  // namespace

ExitCode EvaluateRetrieval(const EvalOptions& options, const infer::LoadedModel& loaded,
                           const data::TokenView& tokens, const SharedFact& tokens_fact,
                           dist::RankContext& context) {
  const int64_t train_len = loaded.state.data.seq_len;
  eval::RequirePositions(*loaded.model, options.lengths);
  const Samples samples(options, loaded, tokens);
  for (const int64_t length : options.lengths) samples.RequireRoom(length);
  const std::vector<eval::LengthMethod> methods = eval::LengthMethod::ParseAll(
      options.methods, *loaded.model, {.train_len = train_len, .length = options.lengths.front()});
  const bool writes = context.rank() == 0;
  EvalFile file({.json = writes ? options.out : "", .csv = writes ? options.csv : ""},
                FactsOf(options, loaded, tokens_fact), kRetrievalColumns);
  std::vector<ordered_json> keys;
  for (const std::string& method : options.methods)
    for (const int64_t length : options.lengths)
      for (const double depth : options.depths) keys.push_back(KeyOf(method, length, depth));
  const std::vector<bool> there = RowsThere(file, keys, context);
  size_t number = 0;
  for (const eval::LengthMethod& method : methods) {
    for (const int64_t length : options.lengths) {
      const auto model =
          method.AppliedTo(*loaded.model, {.train_len = train_len, .length = length});
      for (const double depth : options.depths) {
        const size_t cell = number++;
        if (there[cell]) continue;
        const eval::RetrievalScore score = eval::ScoreRetrieval(
            {.num_samples = options.samples,
             .batch = std::max<int64_t>(1, BatchTokens(options, loaded) / length),
             .joined_answers = options.retrieval != "mqar"},
            [&](uint64_t sample) { return samples.Prompt(sample, length, depth); },
            eval::ScorerOf(*model), context.control());
        file.Add(RowJson(keys[cell], score));
      }
    }
  }
  if (writes) PrintEvaluation(file, options, file.json(), TableText(file, options));
  return ExitCode::kFinished;
}

}  // namespace halflife::cli
