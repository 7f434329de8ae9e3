#include "data/dataset.h"

#include <fcntl.h>

#include <algorithm>
#include <list>
#include <numbers>

#include "core/error.h"
#include "core/files.h"
#include "data/block_cache.h"
#include "data/manifest.h"
#include "data/shard_reader.h"

namespace halflife::data {
namespace {

namespace fs = std::filesystem;

// Far below the usual limit of 1024 descriptors per process. Reopening a shard takes less than a
// millisecond.
constexpr size_t kMostOpenShards = 128;
// Per column of a dataset. This holds eight million tokens, which is less than a corpus but more
// than a small task.
constexpr size_t kMostCachedBytes = size_t{32} << 20;

struct SplitShards {
  std::vector<ShardReader> readers;
  // First token of each shard, as an index in the split, followed by the total.
  std::vector<int64_t> begins;
};

SplitShards MakeShards(const fs::path& folder, const Manifest& manifest, const SplitRecord& split) {
  SplitShards shards;
  shards.begins.push_back(0);
  for (const ShardRecord& record : split.shards) {
    shards.readers.emplace_back(folder, record, manifest.vocab_size, manifest.num_labels());
    shards.begins.push_back(shards.begins.back() + record.num_tokens);
  }
  return shards;
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
  constexpr const char* kNames[] = {"none", "task", "answers", "classes"};
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
  Impl(const fs::path& folder_arg, Manifest manifest_arg)
      : folder(folder_arg), manifest(std::move(manifest_arg)) {
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
    train = MakeShards(folder, manifest, manifest.train);
    validation = MakeShards(folder, manifest, manifest.validation);
    test = MakeShards(folder, manifest, manifest.test);
  }
  ~Impl() {
    const Hdf5Lock lock;  // destroying the readers closes their files
    train = {};
    validation = {};
    test = {};
  }

  SplitShards& shards(Split split) {
    return split == Split::kTrain ? train : split == Split::kValidation ? validation : test;
  }

  const SplitInfo& split(Split split) const {
    return split == Split::kTrain        ? info.train
           : split == Split::kValidation ? info.validation
                                         : info.test;
  }

  // Fills `out` with consecutive entries of a column, starting at `begin`. The column is read in
  // blocks of kBlockTokens, from all shards that the range covers.
  void ReadColumn(Split split, int64_t begin, std::span<int32_t> out, BlockCache<int32_t>& column,
                  std::vector<int32_t> (ShardReader::*read)(int64_t block)) {
    const SplitInfo& about = this->split(split);
    const int64_t end = begin + static_cast<int64_t>(out.size());
    HL_CHECK(begin >= 0 && end <= about.num_tokens, "tokens [", begin, ", ", end, ") of a ",
             Name(split), " split of ", about.num_tokens);
    SplitShards& source = shards(split);
    for (int64_t at = begin; at < end;) {
      const auto above = std::upper_bound(source.begins.begin(), source.begins.end(), at);
      const auto index = static_cast<size_t>(above - source.begins.begin() - 1);
      ShardReader& shard = source.readers[index];
      const int64_t local = at - source.begins[index];
      const auto block = CachedBlock(column, shard, local / kBlockTokens, read);
      const int64_t offset = local % kBlockTokens;
      const int64_t count = std::min(std::ssize(*block) - offset, end - at);
      std::copy_n(block->begin() + offset, count, out.begin() + (at - begin));
      at += count;
    }
  }

  template <typename T>
  typename BlockCache<T>::Block CachedBlock(BlockCache<T>& column, ShardReader& shard,
                                            int64_t number,
                                            std::vector<T> (ShardReader::*read)(int64_t block)) {
    return column.Get({&shard, number}, [&] {
      Touch(shard);
      return (shard.*read)(number);
    });
  }

  // Marks a shard as just used. Closes the least recently used shard if too many are open.
  void Touch(ShardReader& shard) {
    const Hdf5Lock lock;
    const auto found = std::find(recent.begin(), recent.end(), &shard);
    if (found != recent.end()) recent.erase(found);
    recent.push_front(&shard);
    if (recent.size() > kMostOpenShards) {
      recent.back()->Close();
      recent.pop_back();
    }
  }

  template <typename Visit>  // Visit(ShardReader&, int64_t)
  void ForEachShard(const Visit& visit) {
    for (SplitShards* split : {&train, &validation, &test}) {
      for (ShardReader& shard : split->readers) visit(shard);
    }
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
  SplitShards train, validation, test;
  BlockCache<int32_t> tokens{kMostCachedBytes}, labels{kMostCachedBytes};
  BlockCache<int64_t> starts{kMostCachedBytes};
  std::list<ShardReader*> recent;  // open shards, most recently used first; guarded by Hdf5Lock
};

Dataset::Dataset(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Dataset::Dataset(Dataset&&) noexcept = default;
Dataset& Dataset::operator=(Dataset&&) noexcept = default;
Dataset::~Dataset() = default;

Dataset Dataset::Open(const fs::path& folder) {
  std::error_code ignored;
  HL_CHECK_AS(ExitCode::kData, fs::is_directory(folder, ignored), "there is no dataset folder ",
              folder.string(), ". Make one with `halflife prepare --out ", folder.string(), "`.");
  Dataset dataset(std::make_unique<Impl>(folder, ReadManifest(folder / kManifestName)));
  dataset.impl_->ForEachShard([](const ShardReader& shard) { shard.CheckHeader(); });
  return dataset;
}

const DatasetInfo& Dataset::info() const { return impl_->info; }
const fs::path& Dataset::folder() const { return impl_->folder; }
const SplitInfo& Dataset::split(Split split) const { return impl_->split(split); }

std::vector<ShardInfo> Dataset::Shards(Split split) const {
  std::vector<ShardInfo> shards;
  for (const ShardReader& shard : impl_->shards(split).readers) {
    const ShardRecord& record = shard.record();
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
  SplitShards& shards = impl_->shards(split);
  for (size_t i = 0; i < shards.readers.size(); ++i) {
    const int64_t base = shards.begins[i];
    if (shards.begins[i + 1] <= begin || base >= end) continue;
    ShardReader& shard = shards.readers[i];
    const std::vector<int64_t>& firsts = shard.record().first_starts;
    // The first block that can contain `begin` is the last one that starts at or before it.
    const auto above = std::upper_bound(firsts.begin(), firsts.end(), begin - base);
    for (int64_t number = std::max<int64_t>(above - firsts.begin() - 1, 0);
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
  impl_->ForEachShard([this](ShardReader& shard) {
    shard.CheckWhole();
    impl_->Touch(shard);
    const ShardRecord& record = shard.record();
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
  HL_CHECK_AS(ExitCode::kUsage, vocab <= own.vocab_size(), "the dataset ",
              dataset.folder().string(), " has a vocabulary of ", vocab, ", but the tokenizer of ",
              where, " has one of ", own.vocab_size(), kRemedy);
  const auto difference = FindDifference(*dataset.LoadTokenizer(), own);
  if (!difference) return;
  HL_FAIL(ExitCode::kUsage, "token ", difference->id, " is '", difference->left,
          "' in the dataset ", dataset.folder().string(), ", but '", difference->right, "' in ",
          where, kRemedy);
}

}  // namespace halflife::data
