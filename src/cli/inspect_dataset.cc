#include "cli/inspect_dataset.h"

#include <nlohmann/json.hpp>
#include <ostream>

#include "core/human.h"
#include "data/dataset.h"

namespace halflife::cli {
namespace {

using data::Dataset;
using data::Split;

// Tokens of a document on average, its eos included.
double MeanLength(const data::SplitInfo& split) {
  return split.num_documents == 0
             ? 0
             : static_cast<double>(split.num_tokens) / static_cast<double>(split.num_documents);
}

nlohmann::ordered_json SplitJson(const Dataset& dataset, Split split) {
  const data::SplitInfo& info = dataset.split(split);
  nlohmann::ordered_json json = {{"tokens", info.num_tokens},
                                 {"documents", info.num_documents},
                                 {"text_bytes", info.num_bytes},
                                 {"mean_document_tokens", MeanLength(info)},
                                 {"shards", nlohmann::ordered_json::array()}};
  for (const data::ShardInfo& shard : dataset.Shards(split)) {
    json["shards"].push_back({{"file", shard.name},
                              {"tokens", shard.num_tokens},
                              {"documents", shard.num_documents},
                              {"bytes", shard.num_bytes}});
  }
  return json;
}

void PrintSplit(const Dataset& dataset, Split split, std::ostream& out) {
  const data::SplitInfo& info = dataset.split(split);
  out << Name(split) << ": " << info.num_tokens << " tokens in " << info.num_documents
      << " documents (" << Fixed(MeanLength(info), 1) << " tokens each on average), "
      << HumanBytes(static_cast<uint64_t>(info.num_bytes)) << " of text\n";
  for (const data::ShardInfo& shard : dataset.Shards(split)) {
    out << "  " << shard.name << ": " << shard.num_tokens << " tokens, " << shard.num_documents
        << " documents start here, " << HumanBytes(shard.num_bytes) << "\n";
  }
}

}  // namespace

void PrintDataset(const std::filesystem::path& folder, bool json, std::ostream& out) {
  const Dataset dataset = Dataset::Open(folder);
  const data::DatasetInfo& info = dataset.info();
  if (json) {
    const nlohmann::ordered_json object = {
        {"dataset", folder.string()},
        {"hash", ToHex(info.hash)},
        {"tokenizer",
         {{"kind", info.tokenizer_kind}, {"vocab_size", info.vocab_size}, {"eos_id", info.eos_id}}},
        {"train", SplitJson(dataset, Split::kTrain)},
        {"validation", SplitJson(dataset, Split::kValidation)}};
    out << object.dump(2) << "\n";
    return;
  }
  out << "dataset " << folder.string() << "\n"
      << "hash: " << ToHex(info.hash) << "\n"
      << "tokenizer: " << info.tokenizer_kind << ", " << info.vocab_size << " ids, eos "
      << info.eos_id << "\n";
  PrintSplit(dataset, Split::kTrain, out);
  PrintSplit(dataset, Split::kValidation, out);
}

}  // namespace halflife::cli
