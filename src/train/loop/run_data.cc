#include "train/loop/run_data.h"

#include <algorithm>

#include "core/error.h"
#include "eval/validation.h"
#include "train/config/plan.h"

namespace halflife::train {
namespace {

// Throws an error if the name of a set is also that of a part of the unnamed set. The metrics of
// both have the same form.
void RequireFreeName(const std::string& name, const data::SplitInfo& unnamed) {
  const auto require = [&](const auto& parts, const char* what) {
    for (const auto& part : parts)
      HL_CHECK_AS(ExitCode::kUsage, part.name != name, "eval.set '", name, "': ", what,
                  " of the validation split of data.path has the same name, so both would be ",
                  "val_loss/", name, ". Use another name for the set.");
  };
  require(unnamed.sources, "a file");
  require(unnamed.segments, "a segment");
}

// Requires that token ids represent the same text in both datasets.
void RequireSameVocabulary(const data::Dataset& other, const std::string& field,
                           const data::Dataset& training) {
  const std::string where = Concat("the training data ", training.folder().string());
  HL_CHECK_AS(ExitCode::kUsage, other.info().has_tokenizer() == training.info().has_tokenizer(),
              field, ": the dataset ", other.folder().string(),
              other.info().has_tokenizer() ? " has a" : " has no", " tokenizer, and ", where,
              training.info().has_tokenizer() ? " has one" : " has none",
              ". Use a dataset that was prepared like the training data.");
  if (!other.info().has_tokenizer()) return;
  data::RequireSameTokens(other, *training.LoadTokenizer(), where);
}

// Throws an error if both datasets have classes and number them differently. With the same number
// of classes in another order, losses would be wrong without any other error.
void RequireSameClasses(const data::Dataset& other, const std::string& field,
                        const data::Dataset& training) {
  const std::vector<std::string>&own = training.info().classes, &given = other.info().classes;
  HL_CHECK_AS(ExitCode::kUsage, own.empty() || given.empty() || own == given, field,
              ": the training data ", training.folder().string(), " numbers the classes ",
              Join(own, ", "), ", and ", other.folder().string(), " numbers ", Join(given, ", "),
              ". Prepare it with --classes ", Join(own, ","), ".");
}

// Throws an error if a layer supports only one document per row and the rows of a validation set
// hold several. The same condition as for the training data, in RequireRows.
void RequireDocuments(const model::LanguageModel& model, const data::TokenView& tokens) {
  const bool text = tokens.row_len == 0;
  const bool several = text ? tokens.reset_at_documents : tokens.labels != data::RowLabels::kTask;
  const std::string layer = model.LayerOfOneDocument();
  HL_CHECK_AS(ExitCode::kUsage, layer.empty() || !several || tokens.info.num_documents <= 1,
              "eval.set: ", layer, " mixes whole rows, and rows of ", tokens.name,
              " are packed with several documents. Use ",
              text ? "text that is one document (`prepare --documents file`), "
                     "data.reset_at_documents=false, or "
                   : "",
              "a mixer whose state restarts with a document, e.g. gla.");
}

void RequireVocabulary(const data::Dataset& dataset, const std::string& field,
                       const RunConfig& config, const data::Dataset& training) {
  HL_CHECK_AS(ExitCode::kUsage, dataset.info().vocab_size <= config.model.vocab_size, field,
              ": the dataset ", dataset.folder().string(), " has a vocabulary of ",
              dataset.info().vocab_size, ", and the model one of ", config.model.vocab_size,
              ". Prepare the dataset with the tokenizer of the training data ",
              training.folder().string(), ".");
  RequireSameVocabulary(dataset, field, training);
  RequireSameClasses(dataset, field, training);
}

std::string SourceField(const std::string& name) { return Concat("data.source '", name, "'"); }

// Returns the counts of a cycle for each source of the blend, from the weights of the recipe.
std::vector<uint32_t> CountsAfter(const DataConfig& config, int64_t num_steps,
                                  const std::vector<data::BlendSource>& sources) {
  std::vector<double> weights;
  for (const data::BlendSource& source : sources) {
    const auto found = std::ranges::find(config.sources, source.name, &DataSource::name);
    weights.push_back(found == config.sources.end() ? 0 : found->WeightAfter(num_steps));
  }
  return data::BlendCounts(weights);
}

}  // namespace

RunData::RunData(const RunConfig& config) {
  const size_t num_datasets =
      (config.data.is_blend() ? config.data.sources.size() : 1) + config.eval.sets.size();
  const auto open = [&](const std::string& path) {
    return data::Dataset::Open(path, num_datasets);
  };
  if (!config.data.is_blend()) training_.push_back(open(config.data.path));
  for (const DataSource& source : config.data.sources) training_.push_back(open(source.path));
  for (const ValidationSetConfig& set : config.eval.sets) of_sets_.push_back(open(set.path));
}

Hash128 RunData::hash() const {
  if (training_.size() == 1) return training().info().hash;
  std::string all;
  for (const data::Dataset& dataset : training_) all += ToHex(dataset.info().hash);
  return HashBytes(all);
}

std::string RunData::AllHashes() const {
  std::vector<std::string> hashes;
  for (const std::vector<data::Dataset>* some : {&training_, &of_sets_})
    for (const data::Dataset& dataset : *some) hashes.push_back(ToHex(dataset.info().hash));
  return Join(hashes, ", ");
}

std::string RunData::Description(const RunConfig& config) const {
  return Join(training_, "; ",
              [&](const data::Dataset& dataset) {
                return Concat(dataset.folder().string(), ", hash ", ToHex(dataset.info().hash));
              }) +
         (config.data.is_blend() ? "; weights " + config.data.SourcesText() : "");
}

std::vector<ValidationSet> RunData::ValidationSets(const RunConfig& config) const {
  std::vector<ValidationSet> sets;
  const auto add = [&](const std::string& name, const data::Dataset& dataset,
                       const std::string& split, int64_t num_windows) {
    const bool resets = config.data.reset_at_documents || dataset.info().has_rows();
    sets.push_back({.name = name,
                    .tokens = data::ViewOf(dataset, data::SplitOf(split), resets),
                    .num_windows = num_windows});
    if (!name.empty()) sets.back().tokens.name = Concat("the validation set '", name, "'");
  };
  if (HasValidationSplit(config, training().info()))
    add("", training(), config.eval.split, config.eval.windows);
  for (size_t i = 0; i < config.data.sources.size(); ++i)
    if (training_[i].split(data::SplitOf(config.eval.split)).num_tokens > 0)
      add(config.data.sources[i].name, training_[i], config.eval.split, config.eval.windows);
  for (size_t i = 0; i < of_sets_.size(); ++i) {
    const ValidationSetConfig& set = config.eval.sets[i];
    add(set.name, of_sets_[i], set.split, set.windows > 0 ? set.windows : config.eval.windows);
  }
  return sets;
}

void RunData::Require(const RunConfig& config, const model::LanguageModel& model) const {
  for (size_t i = 0; i < training_.size(); ++i) {
    if (i > 0)
      RequireVocabulary(training_[i], SourceField(config.data.sources[i].name), config, training());
    RequireDataset(config, model, training_[i]);
  }
  for (size_t i = 0; i < of_sets_.size(); ++i) {
    const std::string& name = config.eval.sets[i].name;
    RequireVocabulary(of_sets_[i], Concat("eval.set '", name, "'"), config, training());
    if (HasValidationSplit(config, training().info()))
      RequireFreeName(name, training().split(data::SplitOf(config.eval.split)));
  }
  const std::vector<ValidationSet> sets = ValidationSets(config);
  const std::string& best = config.ckpt.store.retention.keep_best;
  for (const ValidationSet& set : sets) {
    eval::RequireLabelsOf(model, set.tokens);
    RequireDocuments(model, set.tokens);
    HL_CHECK_AS(
        ExitCode::kUsage,
        config.train.preference.is_on() || set.tokens.labels != data::RowLabels::kPreferences,
        "eval.set: ", set.tokens.name,
        " holds pairs of answers, which only a run with train.preference compares, in "
        "data.path. Use a dataset of `halflife prepare --labels answers` or messages.");
    eval::RequireWindows(set.tokens, config.data.seq_len);
    HL_CHECK_AS(ExitCode::kUsage,
                set.tokens.row_len > 0 || !model.objective().predicts_next_token() ||
                    best != "val_error/" + set.name,
                "ckpt.keep_best: ", best, ". Use val_loss/", set.name,
                ": next-token prediction on text has no accuracy.");
  }
  HL_CHECK_AS(ExitCode::kUsage, !config.data.is_blend() || !sets.empty() || config.eval.every == 0,
              "eval.every: no dataset of data.source has a ", config.eval.split,
              " split, and there is no eval.set. Add eval { set { ... } }, prepare a dataset with "
              "--validation-tail 0.05, or set eval.every to 0.");
  const std::string awaited = config.ckpt.validation_metric();
  HL_CHECK_AS(ExitCode::kUsage,
              config.train.patience == 0 ||
                  std::ranges::any_of(sets,
                                      [&](const ValidationSet& set) {
                                        const std::string suffix =
                                            set.name.empty() ? "" : "/" + set.name;
                                        return awaited == "val_loss" + suffix ||
                                               awaited == "val_error" + suffix;
                                      }),
              "train.patience waits for ", awaited,
              ", which no validation set has. Name the metric "
              "of a set in ckpt.keep_best, for example val_loss/NAME.");
  const auto scored = [&](const std::string& metric) {
    return std::ranges::any_of(sets, [&](const ValidationSet& set) {
      return best == metric + (set.name.empty() ? "" : "/" + set.name);
    });
  };
  HL_CHECK_AS(ExitCode::kUsage,
              !config.ckpt.keeps_best_validation() || scored("val_loss") || scored("val_error"),
              "ckpt.keep_best: ", best, ". Use the name of a set that is validated: ",
              sets.empty()
                  ? "there is none"
                  : Join(sets, ", ",
                         [](const ValidationSet& set) {
                           return Concat("val_loss", set.name.empty() ? "" : "/", set.name);
                         }),
              ".");
}

void RunData::RequireSameSources(const RunConfig& config, const ckpt::DataCursor& stored) const {
  for (size_t i = 0; config.data.is_blend() && i < training_.size(); ++i) {
    const std::string& name = config.data.sources[i].name;
    const Hash128 hash = training_[i].info().hash;
    const auto found = std::ranges::find(stored.blend, name, &ckpt::BlendCounter::corpus);
    HL_CHECK_AS(ExitCode::kUsage, found == stored.blend.end() || found->dataset == hash,
                SourceField(name), ": the dataset ", training_[i].folder().string(),
                " has the hash ", ToHex(hash),
                ", and the checkpoint has drawn rows of one with the hash ", ToHex(found->dataset),
                ". Use that dataset, or give the other one a name of its own.");
  }
}

std::unique_ptr<data::TokenSource> RunData::MakeSource(const RunConfig& config,
                                                       const data::TokenSourceConfig& source,
                                                       const ckpt::DataCursor* stored,
                                                       int64_t num_steps) {
  if (!config.data.is_blend())
    return std::make_unique<data::TokenSource>(training(), data::Split::kTrain, source);
  if (stored != nullptr) RequireSameSources(config, *stored);
  // Stored sources keep their places, and new ones follow.
  std::vector<std::string> names;
  blend_hashes_.clear();
  for (const ckpt::BlendCounter& counter :
       stored ? stored->blend : std::vector<ckpt::BlendCounter>()) {
    names.push_back(counter.corpus);
    blend_hashes_.push_back(counter.dataset);
  }
  for (size_t i = 0; i < training_.size(); ++i) {
    const std::string& name = config.data.sources[i].name;
    const Hash128 hash = training_[i].info().hash;
    const auto found = static_cast<size_t>(std::ranges::find(names, name) - names.begin());
    if (found == names.size()) {
      names.push_back(name);
      blend_hashes_.push_back(hash);
    }
  }
  std::vector<data::BlendSource> sources;
  std::vector<data::TokenView> views;
  for (const std::string& name : names) {
    const auto at =
        static_cast<size_t>(std::ranges::find(config.data.sources, name, &DataSource::name) -
                            config.data.sources.begin());
    const bool removed = at == config.data.sources.size();
    views.push_back(
        removed ? data::TokenView{.name = name, .info = {}, .read = nullptr}
                : data::ViewOf(training_[at], data::Split::kTrain, config.data.reset_at_documents));
    sources.push_back(
        {.name = name,
         .num_windows = removed ? 0 : data::NumWindows(views.back(), config.data.seq_len),
         .seed = data::BlendSeed(config.train.seed, name)});
  }
  data::Blend blend(sources, config.train.seed);
  for (const ckpt::BlendSegment& segment :
       stored ? stored->segments : std::vector<ckpt::BlendSegment>())
    blend.Restore({segment.first_sample, segment.counts, segment.base});
  const auto begin = [&](int64_t step) {
    blend.Begin(static_cast<uint64_t>(step * config.train.global_batch),
                CountsAfter(config.data, step, sources));
  };
  begin(num_steps);
  for (const int64_t step : config.data.WeightSteps())
    if (step > num_steps) begin(step);
  return std::make_unique<data::TokenSource>(std::move(views), std::move(blend), source);
}

void RunData::AddBlend(const RunConfig& config, const data::Blend& blend, int64_t num_steps,
                       ckpt::DataCursor& cursor) const {
  const std::vector<uint64_t> drawn = blend.Drawn(cursor.next_sample);
  cursor.blend.clear();
  for (size_t i = 0; i < drawn.size(); ++i) {
    const std::string& name = blend.sources()[i].name;
    const auto found = std::ranges::find(config.data.sources, name, &DataSource::name);
    cursor.blend.push_back(
        {.corpus = name,
         .drawn = drawn[i],
         .weight = found == config.data.sources.end() ? 0 : found->WeightAfter(num_steps),
         .dataset = blend_hashes_[i]});
  }
  cursor.segments.clear();
  for (const data::BlendSegment& segment : blend.segments())
    if (segment.first_sample < cursor.next_sample)
      cursor.segments.push_back({segment.first_sample, segment.counts, segment.base});
}

}  // namespace halflife::train
