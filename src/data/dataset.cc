#include "data/dataset.h"

#include <algorithm>
#include <numbers>
#include <set>
#include <utility>

#include "core/error.h"
#include "core/files.h"
#include "data/block_cache.h"
#include "data/manifest.h"
#include "data/shard_reader.h"

namespace halflife::data {
namespace {

namespace fs = std::filesystem;

// A dataset with at most this number of shards checks all of them when it is opened. A larger one
// would open slowly on a cluster, so it checks each shard when the shard is first read.
constexpr size_t kMaxShardsCheckedFirst = 16;
// Per column of a dataset. This holds eight million tokens, which is less than a corpus but more
// than a small task.
constexpr size_t kMaxCachedBytes = size_t{32} << 20;

// Returns the first token of each shard, as an index in the split, followed by the total.
std::vector<int64_t> ShardBegins(const SplitRecord& split) {
  std::vector<int64_t> begins;
  begins.reserve(split.shards.size() + 1);
  begins.push_back(0);
  for (const ShardRecord& record : split.shards)
    begins.push_back(begins.back() + record.num_tokens);
  return begins;
}

std::string DescribeGenerator(const Manifest& manifest) {
  if (!manifest.has_rows()) return "";
  std::vector<std::string> parameters;
  for (const auto& [name, value] : manifest.parameters)
    parameters.push_back(Concat(name, " ", value));
  return Concat(manifest.generator, " ", manifest.generator_version, ": ", Join(parameters, ", "));
}

}  // namespace

const char* Name(Split split) {
  return split == Split::kTrain ? "train" : split == Split::kValidation ? "validation" : "test";
}

const char* Name(RowLabels labels) {
  constexpr const char* kNames[] = {"none", "task", "answers", "classes", "preferences"};
  return kNames[static_cast<int>(labels)];
}

Split SplitOf(const std::string& name) {
  for (const Split split : kSplits) {
    if (name == Name(split)) return split;
  }
  HL_FAIL(ExitCode::kUsage, "'", name, "' is not a split. Use train, validation or test.");
}

double MeanDocumentTokens(const SplitInfo& split) {
  if (split.num_documents == 0) return 0;
  return static_cast<double>(split.num_tokens) / static_cast<double>(split.num_documents);
}

double BitsPerByte(double nats_per_target, const SplitInfo& split, bool reset_at_documents) {
  const int64_t num_sequences = reset_at_documents ? split.num_documents : 1;
  const auto targets = static_cast<double>(split.num_tokens - num_sequences);
  return nats_per_target / std::numbers::ln2 * targets / static_cast<double>(split.num_bytes);
}

class Dataset::Impl {
 public:
  Impl(const fs::path& folder_arg, Manifest manifest_arg, size_t num_datasets)
      : folder(folder_arg),
        manifest(std::move(manifest_arg)),
        open_shards(folder, manifest.vocab_size, manifest.num_labels(),
                    RaisedLimits(num_datasets)) {
    info = {.train = manifest.train.info,
            .validation = manifest.validation.info,
            .test = manifest.test.info,
            .vocab_size = manifest.vocab_size,
            .eos_id = manifest.eos_id,
            .tokenizer_kind = manifest.tokenizer_kind,
            .row_len = manifest.row_len,
            .generator = DescribeGenerator(manifest),
            .labels = manifest.labels,
            .classes = manifest.classes,
            .hash = manifest.hash};
    for (const Split split : kSplits)
      begins[static_cast<size_t>(split)] = ShardBegins(manifest.of(split));
  }

  // Returns the index of the first token of each of the split's shards (ShardBegins).
  const std::vector<int64_t>& begins_of(Split split) const {
    return begins[static_cast<size_t>(split)];
  }

  const SplitInfo& split(Split split) const {
    return split == Split::kTrain        ? info.train
           : split == Split::kValidation ? info.validation
                                         : info.test;
  }

  // Fills `out` with consecutive entries of a column, starting at `begin`. The column is read in
  // blocks of kBlockTokens, from all shards that the range covers.
  void ReadColumn(Split split, int64_t begin, std::span<int32_t> out, BlockCache<int32_t>& column,
                  std::vector<int32_t> (ShardReader::*read)(int64_t block) const) {
    const SplitInfo& about = this->split(split);
    const int64_t end = begin + static_cast<int64_t>(out.size());
    HL_CHECK(begin >= 0 && end <= about.num_tokens, "tokens [", begin, ", ", end, ") of a ",
             Name(split), " split of ", about.num_tokens);
    const std::vector<int64_t>& first_tokens = begins_of(split);
    for (int64_t at = begin; at < end;) {
      const auto above = std::upper_bound(first_tokens.begin(), first_tokens.end(), at);
      const auto index = static_cast<size_t>(above - first_tokens.begin() - 1);
      const ShardRecord& shard = manifest.of(split).shards[index];
      const int64_t local = at - first_tokens[index];
      const auto block = CachedBlock(column, shard, local / kBlockTokens, read);
      const int64_t offset = local % kBlockTokens;
      const int64_t count = std::min(std::ssize(*block) - offset, end - at);
      std::copy_n(block->begin() + offset, count, out.begin() + (at - begin));
      at += count;
    }
  }

  template <typename T>
  typename BlockCache<T>::Block CachedBlock(BlockCache<T>& column, const ShardRecord& shard,
                                            int64_t number,
                                            std::vector<T> (ShardReader::*read)(int64_t block)
                                                const) {
    return column.Get({&shard, number}, [&] { return (*open_shards.Get(shard).*read)(number); });
  }

  template <typename Visit>  // Visit(const ShardRecord&, const ShardReader&)
  void OpenEachShard(const Visit& visit) const {
    for (const Split split : kSplits)
      for (const ShardRecord& shard : manifest.of(split).shards)
        visit(shard, *open_shards.Open(shard));
  }

  // Checks presence, size and header of the shards of a small dataset.
  void CheckFirst() const {
    size_t num_shards = 0;
    for (const Split split : kSplits) num_shards += manifest.of(split).shards.size();
    if (num_shards > kMaxShardsCheckedFirst) return;
    OpenEachShard([](const ShardRecord&, const ShardReader& shard) { shard.CheckHeader(); });
  }

  void CheckTokenizerFiles() const {
    for (const FileRecord& record : manifest.tokenizer_files) {
      const fs::path path = folder / kTokenizerFolder / record.name;
      const std::string bytes = ReadFile(path, ExitCode::kData);
      HL_CHECK_AS(ExitCode::kData, bytes.size() == record.bytes && HashBytes(bytes) == record.hash,
                  path.string(),
                  " does not have the size and hash of the manifest: it is damaged; ",
                  kDamageRemedy);
    }
  }

  const fs::path folder;
  const Manifest manifest;
  DatasetInfo info;
  std::vector<int64_t> begins[std::size(kSplits)];  // by split
  OpenShards open_shards;
  BlockCache<int32_t> tokens{kMaxCachedBytes}, labels{kMaxCachedBytes};
  BlockCache<int64_t> starts{kMaxCachedBytes};
};

Dataset::Dataset(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Dataset::Dataset(Dataset&&) noexcept = default;
Dataset& Dataset::operator=(Dataset&&) noexcept = default;
Dataset::~Dataset() = default;

namespace {

// Throws an error if `folder` is a file. Such a file is usually the text from which the dataset
// should be made, so the message names `halflife prepare`.
void RequireFolder(const fs::path& folder) {
  std::error_code ignored;
  if (fs::is_directory(folder, ignored)) return;
  const std::string name = folder.string();
  HL_CHECK_AS(ExitCode::kData, fs::is_regular_file(folder, ignored), "there is no dataset folder ",
              name, ". Make one with `halflife prepare --input TEXT --tokenizer TOKENIZER --out ",
              name, "`.");
  const bool has_ids = folder.extension() == ".bin";
  HL_FAIL(ExitCode::kData, name, " is a file, not a dataset folder. ",
          has_ids ? "Link its ids" : "Make one", " with `halflife prepare --input ", name,
          has_ids ? " --in-place --validation-fraction 0" : "", " --tokenizer TOKENIZER --out ",
          fs::path(folder).replace_extension("data").string(), "`.");
}

}  // namespace

Dataset Dataset::Open(const fs::path& folder, size_t num_datasets) {
  RequireFolder(folder);
  Dataset dataset(
      std::make_unique<Impl>(folder, ReadManifest(folder / kManifestName), num_datasets));
  dataset.impl_->CheckFirst();
  return dataset;
}

const DatasetInfo& Dataset::info() const { return impl_->info; }
const fs::path& Dataset::folder() const { return impl_->folder; }
const SplitInfo& Dataset::split(Split split) const { return impl_->split(split); }

std::vector<ShardInfo> Dataset::Shards(Split split) const {
  std::vector<ShardInfo> shards;
  for (const ShardRecord& record : impl_->manifest.of(split).shards) {
    shards.push_back(
        {record.file.name, record.num_tokens, record.num_documents, record.file.bytes});
  }
  return shards;
}

void Dataset::Read(Split split, int64_t begin, std::span<int32_t> ids) const {
  impl_->ReadColumn(split, begin, ids, impl_->tokens, &ShardReader::ReadTokens);
}

void Dataset::ReadLabels(Split split, int64_t begin, std::span<int32_t> labels) const {
  HL_CHECK(info().has_rows(), folder().string(),
           " contains text, whose labels are its next tokens");
  impl_->ReadColumn(split, begin, labels, impl_->labels, &ShardReader::ReadLabels);
}

std::vector<int64_t> Dataset::DocumentStarts(Split split, int64_t begin, int64_t end) const {
  std::vector<int64_t> starts;
  const std::vector<int64_t>& begins = impl_->begins_of(split);
  const auto above = std::upper_bound(begins.begin(), begins.end(), begin);
  for (size_t i = static_cast<size_t>(std::max<int64_t>(above - begins.begin() - 1, 0));
       i + 1 < begins.size() && begins[i] < end; ++i) {
    const int64_t base = begins[i];
    const ShardRecord& shard = impl_->manifest.of(split).shards[i];
    const std::shared_ptr<const ShardReader> reader = impl_->open_shards.Get(shard);
    const std::vector<int64_t>& firsts = reader->index().first_starts;
    // The first block that can contain `begin` is the last one that starts at or before it.
    const auto first_above = std::upper_bound(firsts.begin(), firsts.end(), begin - base);
    for (int64_t number = std::max<int64_t>(first_above - firsts.begin() - 1, 0);
         number < std::ssize(firsts) && base + firsts[static_cast<size_t>(number)] < end;
         ++number) {
      const auto block = impl_->CachedBlock(impl_->starts, shard, number, &ShardReader::ReadStarts);
      const auto first = std::ranges::lower_bound(*block, begin - base);
      for (auto start = first; start != block->end() && base + *start < end; ++start)
        starts.push_back(base + *start);
    }
  }
  return starts;
}

std::unique_ptr<Tokenizer> Dataset::LoadTokenizer() const {
  HL_CHECK_AS(ExitCode::kUsage, info().has_tokenizer(), folder().string(),
              " contains labelled rows (", impl_->manifest.generator,
              "), not text, and has no tokenizer. Use a dataset of `halflife prepare --input`.");
  impl_->CheckTokenizerFiles();
  std::unique_ptr<Tokenizer> tokenizer = data::LoadTokenizer(impl_->folder / kTokenizerFolder);
  HL_CHECK_AS(ExitCode::kData, tokenizer->vocab_size() == info().vocab_size, "the tokenizer of ",
              impl_->folder.string(), " has ", tokenizer->vocab_size(),
              " ids, but the manifest says ", info().vocab_size, "; ", kDamageRemedy);
  return tokenizer;
}

void Dataset::Verify() const {
  impl_->CheckTokenizerFiles();
  // Linked shards may be parts of one file, which is hashed once.
  std::set<std::pair<fs::path, std::string>> hashed;
  impl_->OpenEachShard([&](const ShardRecord& record, const ShardReader& shard) {
    const fs::path file = fs::canonical(folder() / record.file.name);
    if (hashed.emplace(file, ToHex(record.file.hash)).second) {
      shard.CheckWhole();
    } else {
      shard.CheckHeader();
    }
    for (int64_t i = 0; i < NumBlocks(record.num_tokens, kBlockTokens); ++i) {
      shard.ReadTokens(i);
      if (info().has_rows()) shard.ReadLabels(i);
    }
    for (int64_t i = 0; i < NumBlocks(record.num_documents, kBlockStarts); ++i) shard.ReadStarts(i);
  });
}

std::optional<TokenDifference> FindDifference(const Tokenizer& left, const Tokenizer& right) {
  const int32_t count = std::min(left.vocab_size(), right.vocab_size());
  for (TokenDifference at; at.id < count; ++at.id) {
    at.left.clear();
    at.right.clear();
    left.AppendBytes(at.id, false, at.left);
    right.AppendBytes(at.id, false, at.right);
    if (at.left != at.right) return at;
  }
  return std::nullopt;
}

void RequireSameTokens(const Dataset& dataset, const Tokenizer& own, const std::string& where) {
  constexpr char kRemedy[] =
      ". Prepare the text with the run's own tokenizer (`halflife prepare --tokenizer "
      "RUN/tokenizer`).";
  const int64_t vocab = dataset.info().vocab_size;
  const std::string name = Concat("the dataset ", dataset.folder().string());
  HL_CHECK_AS(ExitCode::kUsage, vocab <= own.vocab_size(), name, " has a vocabulary of ", vocab,
              ", but the tokenizer of ", where, " has one of ", own.vocab_size(), kRemedy);
  const std::unique_ptr<Tokenizer> theirs = dataset.LoadTokenizer();
  const bool bos = theirs->begins_with_bos();
  HL_CHECK_AS(ExitCode::kUsage, bos == own.begins_with_bos(), "texts of ", bos ? name : where,
              " begin with bos, but those of ", bos ? where : name, " do not", kRemedy);
  const auto difference = FindDifference(*theirs, own);
  if (!difference) return;
  HL_FAIL(ExitCode::kUsage, "token ", difference->id, " is '", difference->left, "' in ", name,
          ", but '", difference->right, "' in ", where, kRemedy);
}

}  // namespace halflife::data
