#include "data/dataset.h"

#include <nlohmann/json.hpp>

#include "cli/inspect/artifact.h"
#include "data/shard_layout.h"
#include "data/shard_reader.h"

namespace halflife::cli::inspect {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using data::Dataset;
using data::Split;

Json SplitJson(const Dataset& dataset, Split split) {
  const data::SplitInfo& info = dataset.split(split);
  Json json = {{"tokens", info.num_tokens},
               {"documents", info.num_documents},
               {"text_bytes", info.num_bytes},
               {"mean_document_tokens", MeanDocumentTokens(info)},
               {"shards", Json::array()}};
  for (const data::Segment& segment : info.segments) {
    json["segments"].push_back(
        {{"name", segment.name}, {"rows", segment.num_rows}, {"seed", segment.seed}});
  }
  for (const data::Source& source : info.sources) {
    json["sources"].push_back({{"name", source.name},
                               {"tokens", source.num_tokens},
                               {"documents", source.num_documents}});
  }
  for (const data::ShardInfo& shard : dataset.Shards(split)) {
    json["shards"].push_back({{"file", shard.name},
                              {"tokens", shard.num_tokens},
                              {"documents", shard.num_documents},
                              {"bytes", shard.num_bytes}});
  }
  return json;
}

// Returns the splits of a dataset. Labelled rows have a test split in addition to the two splits of
// text.
std::vector<Split> SplitsOf(const data::DatasetInfo& info) {
  std::vector<Split> splits = {Split::kTrain, Split::kValidation};
  if (info.has_rows()) splits.push_back(Split::kTest);
  return splits;
}

Json RowsJson(const data::DatasetInfo& info) {
  Json json = {
      {"seq_len", info.row_len}, {"vocab_size", info.vocab_size}, {"generator", info.generator}};
  json["labels"] = Name(info.labels);
  if (!info.classes.empty()) json["classes"] = info.classes;
  return json;
}

}  // namespace

// Returns true if the path is a dataset. This includes a folder of shards without a manifest, for
// which Dataset::Open then reports the missing file.
bool IsDataset(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return false;
  if (fs::exists(path / data::kManifestName, ignored)) return true;
  for (const fs::directory_entry& entry : fs::directory_iterator(path, ignored)) {
    if (entry.path().extension() == ".h5") return true;
  }
  return false;
}

Json DescribeDataset(const fs::path& path) {
  const Dataset dataset = Dataset::Open(path);
  const data::DatasetInfo& info = dataset.info();
  Json json = {{"hash", ToHex(info.hash)}};
  if (info.has_rows()) json["rows"] = RowsJson(info);
  if (info.has_tokenizer()) {
    json["tokenizer"] = {
        {"kind", info.tokenizer_kind}, {"vocab_size", info.vocab_size}, {"eos_id", info.eos_id}};
  }
  for (const Split split : SplitsOf(info)) json[Name(split)] = SplitJson(dataset, split);
  return json;
}

bool IsShard(const fs::path& path) {
  std::error_code ignored;
  return path.extension() == ".h5" && fs::is_regular_file(path, ignored);
}

Json DescribeShard(const fs::path& path) {
  const data::ShardFile shard = data::ReadShardFile(path);
  const auto or_null = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  return {
      {"bytes", shard.bytes},
      {"tokens", shard.num_tokens},
      {"documents", shard.num_documents},
      {"mean_document_tokens", data::MeanDocumentTokens({.num_tokens = shard.num_tokens,
                                                         .num_documents = shard.num_documents})},
      {"token_width", shard.token_bytes},
      {"labels", shard.has_labels},
      {"split", or_null(shard.split)},
      {"dataset", or_null(shard.dataset_hash)}};
}

}  // namespace halflife::cli::inspect
