// The training rows of a run, recipe or dataset, decoded.
#include <nlohmann/json.hpp>

#include "cli/inspect/artifact.h"
#include "core/error.h"
#include "core/human.h"
#include "data/utf8.h"
#include "train/config/run_config.h"
#include "train/loop/run_data.h"

namespace halflife::cli::inspect {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

namespace {

// Returns the recipe that decides the order of samples. A dataset has the default order of a run on
// it.
train::RunConfig RecipeOf(const fs::path& path) {
  if (IsRun(path)) return train::LoadRunConfig(path / "config.textproto", {});
  if (IsRecipe(path)) return train::LoadRunConfig(path, {});
  HL_CHECK_AS(ExitCode::kUsage, IsDataset(path), "--samples: ", path.string(),
              " has no training rows. Use the folder of a run or of a dataset, or a recipe.");
  train::RunConfig config;
  config.data.path = path.string();
  const data::DatasetInfo info = data::Dataset::Open(path).info();
  if (info.has_rows()) config.data.seq_len = info.row_len;
  config.data.seq_len =
      std::min(config.data.seq_len, std::max<int64_t>(info.train.num_tokens - 1, 1));
  config.train.global_batch = 1;
  return config;
}

// Decodes ids to text, or writes them as numbers if the dataset has no tokenizer.
class Decoder {
 public:
  explicit Decoder(const data::Dataset& dataset)
      : tokenizer_(dataset.info().has_tokenizer() ? dataset.LoadTokenizer() : nullptr) {}
  std::string operator()(const std::vector<int32_t>& ids) const {
    return tokenizer_ ? data::ReplaceInvalidUtf8(tokenizer_->Decode(ids)) : Join(ids, " ");
  }

 private:
  std::unique_ptr<data::Tokenizer> tokenizer_;
};

// Returns a range of tokens of a row.
std::vector<int32_t> Range(const std::vector<int32_t>& row, size_t begin, size_t end) {
  return {row.begin() + static_cast<int64_t>(begin), row.begin() + static_cast<int64_t>(end)};
}

// Returns the labels of a row. Text has its next tokens as labels, which are not repeated. Classes
// are shown by name. All other labels are texts, one for each range of labelled tokens.
Json Labels(const data::DatasetInfo& info, const data::Batch& row, const Decoder& decode) {
  Json labels = Json::array();
  for (size_t t = 0; t < row.targets.size(); ++t) {
    if (row.targets[t] < 0) continue;
    if (info.labels == data::RowLabels::kClasses) {
      labels.push_back(info.classes.at(static_cast<size_t>(row.targets[t])));
      continue;
    }
    size_t end = t + 1;
    while (end < row.targets.size() && row.targets[end] >= 0) ++end;
    labels.push_back(decode(Range(row.targets, t, end)));
    t = end;
  }
  return labels;
}

Json DescribeRow(const data::DatasetInfo& info, const data::Batch& row, const Decoder& decode) {
  Json documents = Json::array();
  for (size_t i = 0; i + 1 < row.cu_seqlens.size(); ++i)
    documents.push_back(decode(Range(row.inputs, static_cast<size_t>(row.cu_seqlens[i]),
                                     static_cast<size_t>(row.cu_seqlens[i + 1]))));
  Json json = {
      {"tokens", row.inputs.size()}, {"targets", row.num_targets}, {"documents", documents}};
  if (info.has_rows()) json["labels"] = Labels(info, row, decode);
  return json;
}

}  // namespace

Json DescribeSamples(const fs::path& path, int64_t count) {
  const train::RunConfig config = RecipeOf(path);
  train::RunData data(config);
  const auto source = data.MakeSource(config,
                                      {.seq_len = config.data.seq_len,
                                       .micro_batch = 1,
                                       .global_batch = config.train.global_batch,
                                       .seed = config.train.seed,
                                       .reset_at_documents = config.data.reset_at_documents,
                                       .prefetch = 0,
                                       .epoch_end = data::EpochEndOf(config.data.epoch_end)},
                                      /*stored=*/nullptr, /*num_steps=*/0);
  const Decoder decode(data.training());
  Json samples = Json::array();
  while (std::ssize(samples) < count) {
    const data::Batch row = source->Next();
    if (row.samples.front() == data::kNoSample) continue;  // Padding at the end of an epoch.
    Json json = {{"sample", row.samples.front()}};
    if (source->blend() != nullptr) {
      const data::Blend::Row at = source->blend()->At(row.samples.front());
      json["source"] = source->blend()->sources()[static_cast<size_t>(at.source)].name;
      json["window"] = at.window;
    }
    json.update(DescribeRow(data.training().info(), row, decode));
    samples.push_back(std::move(json));
  }
  return {{"samples", samples}};
}

std::string SamplesText(const fs::path& path, int64_t count) {
  const Json described = DescribeSamples(path, count);
  std::string text;
  for (const Json& sample : described["samples"]) {
    text += Concat("sample ", sample["sample"].dump());
    if (sample.contains("source")) text += ", source " + sample["source"].get<std::string>();
    text += Concat(", ", Counted(std::ssize(sample["documents"]), "document"), ", ",
                   sample["targets"].dump(), " of ", sample["tokens"].dump(),
                   " tokens have a target\n");
    for (const Json& document : sample["documents"])
      text += document.get<std::string>() + "\n---\n";
    if (sample.contains("labels"))
      text += Concat(
          "labels: ",
          Join(sample["labels"], " | ", [](const Json& label) { return label.get<std::string>(); }),
          "\n");
    text += "\n";
  }
  return text;
}

}  // namespace halflife::cli::inspect
