#include "data/prepare/token_files.h"

#include <fcntl.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "data/input_files.h"
#include "data/manifest.h"
#include "data/prepare/document_encoder.h"
#include "data/prepare/publish_dataset.h"
#include "data/prepare/shard_writer.h"
#include "data/shard_layout.h"
#include "data/shard_reader.h"
#include "data/tokenizer_folder.h"

namespace halflife::data {
namespace {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "token files are little endian");

// A file whose reads are checked.
class BinaryFile {
 public:
  explicit BinaryFile(const fs::path& path) : path_(path), in_(path, std::ios::binary) {
    std::error_code error;
    size_ = fs::file_size(path, error);
    HL_CHECK_AS(ExitCode::kData, in_ && !error, "cannot read ", path.string(),
                ": there is no such file, or it may not be read. Check the name.");
  }
  uint64_t size() const { return size_; }
  const fs::path& path() const { return path_; }

  void Read(uint64_t offset, void* out, uint64_t bytes) {
    HL_CHECK_AS(ExitCode::kData, offset <= size_ && bytes <= size_ - offset, path_.string(),
                " has ", size_, " bytes, and bytes ", offset, " to ", offset + bytes,
                " are needed: it is cut off, or not a token file. Copy it again.");
    in_.clear();
    in_.seekg(static_cast<std::streamoff>(offset));
    in_.read(static_cast<char*>(out), static_cast<std::streamsize>(bytes));
    HL_CHECK_AS(ExitCode::kData, in_.gcount() == static_cast<std::streamsize>(bytes),
                "cannot read ", path_.string(), " at byte ", offset, ". Copy the file again.");
  }
  template <typename T>
  T Value(uint64_t offset) {
    T value;
    Read(offset, &value, sizeof value);
    return value;
  }
  template <typename T>
  std::vector<T> Values(uint64_t offset, uint64_t count) {
    HL_CHECK_AS(ExitCode::kData, count <= size_ / sizeof(T), path_.string(), " has no room for ",
                count, " entries: it is damaged. Copy it again.");
    std::vector<T> values(count);
    Read(offset, values.data(), count * sizeof(T));
    return values;
  }

 private:
  fs::path path_;
  std::ifstream in_;
  uint64_t size_ = 0;
};

enum class IdType : uint8_t { kU8, kI8, kI16, kU16, kI32, kI64 };
uint64_t BytesOf(IdType type) {
  constexpr uint64_t kBytes[] = {1, 1, 2, 2, 4, 8};
  return kBytes[static_cast<int>(type)];
}

template <typename T>
void Convert(const std::vector<char>& bytes, std::vector<int64_t>& ids) {
  for (size_t i = 0; i < ids.size(); ++i) {
    T id;
    std::memcpy(&id, bytes.data() + i * sizeof(T), sizeof id);
    ids[i] = static_cast<int64_t>(id);
  }
}

// The part of a token file that holds a run of ids, with the end of a document behind it or not.
struct Piece {
  uint64_t offset = 0;  // In bytes of X.bin.
  uint64_t count = 0;   // Number of ids.
  bool ends = false;
};

constexpr std::string_view kNanoGpt = "nanogpt", kLlmC = "llm.c", kMegatron = "megatron";

struct TokenFileLayout {
  std::string_view format;
  IdType type = IdType::kU16;
  std::vector<Piece> pieces;
};

// Reads the index of Megatron's MMapIndexedDataset: magic, version, type, numbers of sequences and
// of document ends; then int32 lengths, int64 offsets and int64 document ends
// (megatron/core/datasets/indexed_dataset.py).
TokenFileLayout ReadMegatronIndex(const fs::path& path) {
  constexpr char kMagic[] = "MMIDIDX\0";
  BinaryFile index(path);
  char magic[9] = {};
  index.Read(0, magic, sizeof magic);
  HL_CHECK_AS(ExitCode::kData,
              std::memcmp(magic, kMagic, sizeof magic) == 0 && index.Value<uint64_t>(9) == 1,
              path.string(),
              " is not an index of Megatron-LM of version 1. Remove it if the .bin "
              "file beside it is of nanoGPT.");
  const int code = index.Value<uint8_t>(17);
  constexpr std::optional<IdType> kTypes[] = {std::nullopt, IdType::kU8,  IdType::kI8,
                                              IdType::kI16, IdType::kI32, IdType::kI64,
                                              std::nullopt, std::nullopt, IdType::kU16};
  HL_CHECK_AS(ExitCode::kData, code < static_cast<int>(std::size(kTypes)) && kTypes[code],
              path.string(), ": the type of ids ", code,
              " is unknown. Preprocess the text again with a known version of Megatron-LM.");
  const auto num_sequences = index.Value<uint64_t>(18), num_ends = index.Value<uint64_t>(26);
  const auto lengths = index.Values<int32_t>(34, num_sequences);
  const auto offsets = index.Values<int64_t>(34 + 4 * num_sequences, num_sequences);
  const auto ends = index.Values<int64_t>(34 + 12 * num_sequences, num_ends);
  TokenFileLayout layout = {.format = kMegatron, .type = *kTypes[code], .pieces = {}};
  for (uint64_t i = 0; i < num_sequences; ++i) {
    HL_CHECK_AS(ExitCode::kData, lengths[i] >= 0 && offsets[i] >= 0, path.string(), ": sequence ",
                i, " has the length ", lengths[i], ": the index is damaged. Copy it again.");
    layout.pieces.push_back({static_cast<uint64_t>(offsets[i]), static_cast<uint64_t>(lengths[i])});
  }
  for (const int64_t end : ends) {
    HL_CHECK_AS(ExitCode::kData, end >= 0 && end <= static_cast<int64_t>(num_sequences),
                path.string(), ": a document ends at sequence ", end, " of ", num_sequences,
                ": the index is damaged. Copy it again.");
    if (end > 0) layout.pieces[static_cast<size_t>(end - 1)].ends = true;
  }
  return layout;
}

// Reads the header of a file of llm.c, which has 256 int32: magic, version, number of ids, ...
TokenFileLayout ReadLayout(BinaryFile& file, int vocab_size) {
  fs::path index = file.path();
  index.replace_extension(".idx");
  std::error_code ignored;
  if (fs::exists(index, ignored)) return ReadMegatronIndex(index);
  constexpr uint64_t kHeaderBytes = 1024;
  constexpr int32_t kSixteenBits = 20240520, kThirtyTwoBits = 20240801;
  const int32_t magic = file.size() >= kHeaderBytes ? file.Value<int32_t>(0) : 0;
  if (magic == kSixteenBits || magic == kThirtyTwoBits) {
    return {.format = kLlmC,
            .type = magic == kSixteenBits ? IdType::kU16 : IdType::kI32,
            .pieces = {{kHeaderBytes, static_cast<uint32_t>(file.Value<int32_t>(8)), true}}};
  }
  const IdType type = vocab_size > (1 << 16) ? IdType::kI32 : IdType::kU16;
  HL_CHECK_AS(ExitCode::kData, file.size() % BytesOf(type) == 0, file.path().string(), " has ",
              file.size(), " bytes, which are no whole ids of ", 8 * BytesOf(type),
              " bits. Copy it again, or use a tokenizer of the right vocabulary.");
  return {.format = kNanoGpt, .type = type, .pieces = {{0, file.size() / BytesOf(type), true}}};
}

// Reads the ids of a token file, document by document.
class TokenFile {
 public:
  // Opens X.bin, and X.idx if it exists. Throws Error kData if the file is not of a known form.
  TokenFile(const fs::path& path, int vocab_size)
      : file_(path), vocab_size_(vocab_size), layout_(ReadLayout(file_, vocab_size)) {}

  // Reads the next ids into `ids`, at most `most`, and returns true if a document of the index, or
  // the file, ends behind them. Throws Error kData for an id that is not below the vocabulary size.
  bool Next(size_t most, std::vector<int32_t>& ids) {
    ids.clear();
    while (at_ < layout_.pieces.size()) {
      const Piece& piece = layout_.pieces[at_];
      const uint64_t count = std::min<uint64_t>(most, piece.count - done_);
      Read(piece.offset + done_ * BytesOf(layout_.type), count, ids);
      done_ += count;
      const bool whole = done_ == piece.count;
      if (whole) {
        ++at_;
        done_ = 0;
      }
      if (!ids.empty() || (whole && piece.ends)) return whole && piece.ends;
    }
    return false;
  }

  bool at_end() const { return at_ == layout_.pieces.size(); }
  std::string_view format() const { return layout_.format; }
  // True if an index says where documents end.
  bool has_index() const { return layout_.format == kMegatron; }
  // If all ids are one piece of the file, returns its first byte; otherwise nothing. Megatron's
  // files have several pieces, even if they are adjacent.
  std::optional<uint64_t> only_piece() const {
    if (layout_.pieces.size() != 1) return std::nullopt;
    return layout_.pieces.front().offset;
  }
  uint64_t id_bytes() const { return BytesOf(layout_.type); }  // Bytes of one id in the file.
  uint64_t num_bytes() const { return file_.size(); }          // Size of X.bin.
  uint64_t num_bytes_read() const { return num_bytes_read_; }  // So far.

 private:
  void Read(uint64_t offset, uint64_t count, std::vector<int32_t>& ids) {
    std::vector<char> bytes(count * BytesOf(layout_.type));
    file_.Read(offset, bytes.data(), bytes.size());
    num_bytes_read_ += bytes.size();
    // In the order of IdType.
    constexpr void (*kConvert[])(const std::vector<char>&, std::vector<int64_t>&) = {
        Convert<uint8_t>,  Convert<int8_t>,  Convert<int16_t>,
        Convert<uint16_t>, Convert<int32_t>, Convert<int64_t>};
    std::vector<int64_t> wide(count);
    kConvert[static_cast<int>(layout_.type)](bytes, wide);
    for (const int64_t id : wide) {
      HL_CHECK_AS(ExitCode::kData, id >= 0 && id < vocab_size_, file_.path().string(), " (",
                  layout_.format, "): the id ", id, " is not below ", vocab_size_,
                  ", the vocabulary of the tokenizer. Use --tokenizer with the tokenizer that made "
                  "the file.");
      ids.push_back(static_cast<int32_t>(id));
    }
  }

  BinaryFile file_;
  const int vocab_size_;
  const TokenFileLayout layout_;
  size_t at_ = 0;      // The piece that is read next.
  uint64_t done_ = 0;  // Its ids that were read.
  uint64_t num_bytes_read_ = 0;
};

// Returns the files with these names or patterns. A file that is found twice is used once.
InputFiles FindTokenFiles(const std::vector<std::string>& names, const char* flag) {
  InputFiles found;
  std::set<fs::path> seen;
  for (const std::string& name : names) {
    const std::vector<fs::path> paths = MatchingPaths(name);
    HL_CHECK_AS(ExitCode::kData, !paths.empty(), "no file matches ", flag, " ", name,
                ". Give a token file (.bin) or a pattern of such files.");
    for (const fs::path& path : paths)
      if (seen.insert(fs::canonical(path)).second)
        found.files.push_back({.path = path, .name = path.filename().string()});
  }
  return found;
}

// One run of `prepare` on token files.
class TokenFilesRun {
 public:
  explicit TokenFilesRun(const PrepareConfig& config)
      : config_(config),
        training_(FindTokenFiles(config.input.paths, "--input")),
        validation_(FindTokenFiles(config.input.validation_paths, "--validation-input")),
        tokenizer_(OpenTokenizer(config.input.tokenizer)) {
    for (int32_t id = 0; id < tokenizer_->vocab_size(); ++id) {
      std::string bytes;
      tokenizer_->AppendBytes(id, /*at_start=*/false, bytes);
      bytes_of_.push_back(std::ssize(bytes));
    }
    for (const InputFiles* inputs : {&training_, &validation_})
      for (const InputFile& file : inputs->files)
        progress_.total_disk_bytes += TokenFile(file.path, tokenizer_->vocab_size()).num_bytes();
    RequireApart(training_, validation_, "--validation-input");
  }

  Manifest WriteFiles(const fs::path& folder) {
    return config_.in_place ? LinkFiles(folder) : CopyFiles(folder);
  }

  PrepareSummary Summarise(const Manifest& manifest) const {
    return {.train = manifest.train.info,
            .validation = manifest.validation.info,
            .vocab_size = manifest.vocab_size,
            .tokenizer_kind = manifest.tokenizer_kind,
            .documents = DocumentMode::kRecord,
            .first_file = training_.files.front().name,
            .num_files = std::ssize(training_.files) + std::ssize(validation_.files),
            .special_names = {},
            .num_validation_in_train = held_out_.num_in_train(),
            .seconds = 0,
            .hash = manifest.hash};
  }

 private:
  // The beginning of a document decides its split, like ContentHash of text.
  static constexpr size_t kHashedIds = (64 << 10) / sizeof(int32_t);
  static constexpr size_t kIdsPerRead = 1 << 20;

  bool has_validation_files() const { return !validation_.files.empty(); }

  Manifest CopyFiles(const fs::path& folder) {
    progress_.phase = "copying tokens";
    const int token_bytes = TokenBytes(tokenizer_->vocab_size());
    ShardWriter train({folder, Split::kTrain, token_bytes, config_.output.shard_tokens});
    ShardWriter validation({folder, Split::kValidation, token_bytes, config_.output.shard_tokens});
    DocumentRules rules = {.validation_fraction = config_.input.FractionOrUsual(),
                           .split_seed = config_.input.split_seed};
    const bool held_out = has_validation_files();
    if (held_out) {
      // First, so that all of it is known when the training documents are compared with it.
      rules.split = Split::kValidation;
      for (const InputFile& file : validation_.files) Copy(file, rules, train, validation);
      rules.split = Split::kTrain;
    }
    for (const InputFile& file : training_.files) Copy(file, rules, train, validation);
    Manifest manifest;
    manifest.train = train.Finish();
    manifest.validation = validation.Finish();
    Check(manifest);
    SaveOwnTokenizer(folder, manifest);
    manifest.documents = Name(DocumentMode::kRecord);
    manifest.validation_input = held_out;
    manifest.validation_fraction = held_out ? 0 : config_.input.FractionOrUsual();
    manifest.split_seed = config_.input.split_seed;
    return manifest;
  }

  Manifest LinkFiles(const fs::path& folder) {
    progress_.phase = "reading tokens";
    Manifest manifest;
    manifest.in_place = true;
    manifest.train = LinkSplit(folder, Split::kTrain, training_);
    manifest.validation = LinkSplit(folder, Split::kValidation, validation_);
    Check(manifest);
    SaveOwnTokenizer(folder, manifest);
    manifest.documents = Name(DocumentMode::kRecord);
    manifest.validation_input = has_validation_files();
    return manifest;
  }

  // Texts of the dataset begin with bos only if all documents of the files do.
  void SaveOwnTokenizer(const fs::path& folder, Manifest& manifest) const {
    const int64_t documents =
        manifest.train.info.num_documents + manifest.validation.info.num_documents;
    if (tokenizer_->begins_with_bos() && num_with_bos_ < documents) {
      if (num_with_bos_ > 0)
        HL_WARN("prepare", num_with_bos_, " of ", documents,
                " documents begin with bos, so prompts for models that train on them will not. Use "
                "files in which all documents do, or none.");
      tokenizer_->set_begins_with_bos(false);
    }
    SaveTokenizer(*tokenizer_, folder, manifest);
  }
  void CountBos(int32_t first_id) { num_with_bos_ += first_id == tokenizer_->special_ids().bos; }

  SplitRecord LinkSplit(const fs::path& folder, Split split, const InputFiles& inputs) {
    SplitRecord record;
    SourceList sources;
    for (const InputFile& file : inputs.files) {
      sources.Begin(file.name);
      const SplitInfo before = record.info;
      LinkFile(file.path, folder, split, record);
      sources.Count(record.info.num_tokens - before.num_tokens,
                    record.info.num_documents - before.num_documents);
    }
    record.info.num_shards = static_cast<int>(record.shards.size());
    record.info.sources = sources.Take();
    return record;
  }

  // Reads a token file, links it as one shard for each max_linked_tokens of its ids, and writes
  // their indexes. Adds what the file contains to `record`.
  void LinkFile(const fs::path& path, const fs::path& folder, Split split, SplitRecord& record) {
    TokenFile file(path, tokenizer_->vocab_size());
    const int token_bytes = TokenBytes(tokenizer_->vocab_size());
    const std::optional<uint64_t> begin = file.only_piece();
    HL_CHECK_AS(
        ExitCode::kUsage,
        begin.has_value() && file.id_bytes() == static_cast<uint64_t>(token_bytes), path.string(),
        " (", file.format(), ", ids of ", file.id_bytes(),
        " bytes) cannot be read in place: only files of nanoGPT and llm.c can, with ids of ",
        token_bytes, " bytes for this vocabulary. Leave out --in-place to copy the ids.");
    HL_CHECK_AS(ExitCode::kData, file.num_bytes() >= *begin + file.id_bytes(), path.string(),
                " has no ids. Name a file with ids.");
    const fs::path target = fs::canonical(path);
    const Fd fd = OpenFile(target, O_RDONLY, ExitCode::kData);
    const ShardIndex header = {.header_bytes = *begin,
                               .header_hash = HashFilePrefix(fd.get(), target, *begin)};
    const ShardRecord whole = {.file = {.name = "",
                                        .bytes = file.num_bytes(),
                                        .hash = HashFile(fd.get(), target, 0).whole}};
    ShardIndex index = header;
    ShardRecord shard = whole;
    uint64_t offset = *begin;
    const auto end_shard = [&] {
      shard.file.name = ShardFileName(split, record.shards.size());
      const std::string bytes = EncodeIndex(std::exchange(index, header));
      shard.index_hash = HashBytes(bytes);
      AtomicWriteFile(folder / IndexName(shard.file.name), bytes, ExitCode::kData);
      fs::create_symlink(target, folder / shard.file.name);
      record.info.num_tokens += shard.num_tokens;
      record.shards.push_back(std::exchange(shard, whole));
    };
    const uint64_t before = progress_.disk_bytes;
    const int32_t eos = tokenizer_->eos_id();
    int64_t num_eos = 0;
    int32_t last = eos;
    for (std::vector<int32_t> ids; !file.at_end();) {
      config_.output.RequireGoingOn();
      file.Next(kBlockTokens, ids);
      if (ids.empty()) continue;
      if (shard.num_tokens == config_.max_linked_tokens) end_shard();
      index.tokens.push_back({.offset = offset, .hash = HashOfIds(ids, token_bytes)});
      offset += ids.size() * static_cast<uint64_t>(token_bytes);
      shard.num_tokens += std::ssize(ids);
      num_eos += std::ranges::count(ids, eos);
      for (const int32_t id : ids) {
        record.info.num_bytes += bytes_of_[static_cast<size_t>(id)];
        if (last == eos) CountBos(id);
        last = id;
      }
      progress_.disk_bytes = before + file.num_bytes_read();
      config_.output.Report(progress_);
    }
    record.info.num_documents += num_eos + (last != eos ? 1 : 0);
    if (num_eos == 0 && !file.has_index()) without_eos_.push_back(path);
    end_shard();
  }

  // Returns the hash of ids as they are stored.
  static Hash128 HashOfIds(const std::vector<int32_t>& ids, int token_bytes) {
    if (token_bytes == 4) return HashBytes(ids.data(), ids.size() * sizeof(int32_t));
    const std::vector<uint16_t> narrow(ids.begin(), ids.end());
    return HashBytes(narrow.data(), narrow.size() * sizeof(uint16_t));
  }

  // Where the ids of a file without an index are cut into documents.
  enum class Cut : uint8_t { kAfterEos, kBeforeBos, kNowhere };

  // Files that begin with bos and have no eos are of trainers that only write bos between
  // documents, such as llm.c for Llama 3. The search ends at the first eos.
  Cut FindCut(const fs::path& path) const {
    const SpecialIds special = tokenizer_->special_ids();
    TokenFile file(path, tokenizer_->vocab_size());
    if (file.has_index()) return Cut::kAfterEos;
    std::optional<int32_t> first;
    for (std::vector<int32_t> ids; !file.at_end();) {
      config_.output.RequireGoingOn();
      file.Next(kIdsPerRead, ids);
      if (std::ranges::find(ids, special.eos) != ids.end()) return Cut::kAfterEos;
      if (!first && !ids.empty()) first = ids.front();
    }
    if (!first) return Cut::kAfterEos;
    return *first == special.bos ? Cut::kBeforeBos : Cut::kNowhere;
  }

  void Copy(const InputFile& input, const DocumentRules& rules, ShardWriter& train,
            ShardWriter& validation) {
    train.BeginSource(input.name);
    validation.BeginSource(input.name);
    const Cut cut = FindCut(input.path);
    if (cut == Cut::kNowhere) without_eos_.push_back(input.path);
    const int32_t bos = tokenizer_->special_ids().bos;
    TokenFile file(input.path, tokenizer_->vocab_size());
    const uint64_t before = progress_.disk_bytes;
    std::vector<int32_t> ids;
    while (!file.at_end()) {
      config_.output.RequireGoingOn();
      const bool ends = file.Next(kIdsPerRead, ids);
      for (const int32_t id : ids) {
        if (cut == Cut::kBeforeBos && id == bos) EndDocument(rules, train, validation);
        if (id == tokenizer_->eos_id()) {
          EndDocument(rules, train, validation);
        } else {
          pending_.push_back(id);
        }
        if (pending_.size() >= kHashedIds) Flush(rules, train, validation);
      }
      if (ends) EndDocument(rules, train, validation);
      progress_.disk_bytes = before + file.num_bytes_read();
      config_.output.Report(progress_);
    }
    EndDocument(rules, train, validation);
  }

  // Writes the pending ids. The first of a document choose its split.
  void Flush(const DocumentRules& rules, ShardWriter& train, ShardWriter& validation) {
    if (writer_ == nullptr) {
      const Hash128 content = HashBytes(pending_.data(), pending_.size() * sizeof(int32_t));
      const Split split = ChooseSplit(content, rules);
      writer_ = split == Split::kTrain ? &train : &validation;
      if (has_validation_files()) held_out_.Add(split, content);
      writer_->BeginDocument();
      ++progress_.num_documents;
      CountBos(pending_.front());
    }
    int64_t bytes = 0;
    for (const int32_t id : pending_) bytes += bytes_of_[static_cast<size_t>(id)];
    writer_->Append(pending_);
    writer_->CountBytes(bytes);
    progress_.text_bytes += bytes;
    pending_.clear();
  }

  // Does nothing between documents.
  void EndDocument(const DocumentRules& rules, ShardWriter& train, ShardWriter& validation) {
    if (writer_ == nullptr && pending_.empty()) return;
    Flush(rules, train, validation);
    const int32_t eos = tokenizer_->eos_id();
    writer_->Append({&eos, 1});
    writer_ = nullptr;
  }

  void WarnOfFilesWithoutEos() const {
    if (without_eos_.empty()) return;
    HL_WARN(
        "prepare", without_eos_.size(), " of ", training_.files.size() + validation_.files.size(),
        " token files have no eos (id ", tokenizer_->eos_id(), "), starting with ",
        without_eos_.front().string(),
        ". Each is one document, so a model's state never restarts in it. Name the tokenizer that "
        "made the ids, or use files with eos between documents",
        config_.in_place
            ? ". Without --in-place, bos separates the documents of files that begin with it."
            : ".");
  }

  void Check(const Manifest& manifest) const {
    WarnOfFilesWithoutEos();
    const int64_t train = manifest.train.info.num_documents;
    const int64_t validation = manifest.validation.info.num_documents;
    HL_CHECK_AS(ExitCode::kData, train + validation > 0, training_.files.front().path.string(),
                " contains no ids. Name a file with ids.");
    const bool wanted =
        has_validation_files() || (!config_.in_place && config_.input.FractionOrUsual() > 0);
    HL_CHECK_AS(ExitCode::kData, train > 0 && (validation > 0 || !wanted), "of ",
                train + validation, " documents, ", train, " are for training and ", validation,
                " for validation. Use --validation-input for a token file of validation ids, "
                "another --validation-fraction, or 0 for none.");
  }

  const PrepareConfig& config_;
  const InputFiles training_, validation_;
  const std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<fs::path> without_eos_;  // Files that are one document for want of an eos.
  std::vector<int64_t> bytes_of_;      // The bytes of text that each id represents.
  PrepareProgress progress_;
  int64_t num_with_bos_ = 0;       // Documents.
  HeldOutContents held_out_;       // Only with validation files that are copied.
  std::vector<int32_t> pending_;   // Ids of the current document that were not written.
  ShardWriter* writer_ = nullptr;  // Null until the split of the current document is chosen.
};

}  // namespace

bool AreTokenFiles(const std::vector<std::string>& names) {
  return !names.empty() &&
         std::ranges::all_of(names, [](const std::string& name) { return name.ends_with(".bin"); });
}

PrepareSummary PrepareTokenFiles(const PrepareConfig& config) {
  const PrepareInput& input = config.input;
  HL_CHECK_AS(ExitCode::kUsage, !input.tokenizer.empty() && !config.train_tokenizer,
              "token files (.bin) have no text: name the tokenizer that made their ids with "
              "--tokenizer FILE|FOLDER.");
  HL_CHECK_AS(ExitCode::kUsage, !config.resumable,
              "--resumable is for text, which takes long to tokenize. Leave the option out for "
              "token files (.bin).");
  HL_CHECK_AS(ExitCode::kUsage, !config.dedup,
              "--dedup is for text. Token files (.bin) have none: leave the option out.");
  const PrepareInput usual;
  HL_CHECK_AS(ExitCode::kUsage,
              input.field == usual.field && !input.replace_invalid_utf8 &&
                  input.max_document_bytes == usual.max_document_bytes,
              "--field, --invalid-utf8 and --max-document-bytes are for text. Token files (.bin) "
              "have none: leave the options out.");
  HL_CHECK_AS(ExitCode::kUsage,
              !config.in_place || config.output.shard_tokens == PrepareOutput().shard_tokens,
              "--in-place links whole files and writes no shards: leave --shard-tokens out.");
  HL_CHECK_AS(ExitCode::kUsage, !config.documents && !input.validation_tail,
              "--documents and --validation-tail are for text. Token files (.bin) have documents "
              "of their own. Use --validation-input or --validation-fraction.");
  HL_CHECK_AS(ExitCode::kUsage,
              input.validation_paths.empty() || AreTokenFiles(input.validation_paths),
              "--input names token files (.bin), and --validation-input others. Use token files "
              "for both.");
  HL_CHECK_AS(ExitCode::kUsage,
              !config.in_place || !input.validation_paths.empty() || input.validation_fraction == 0,
              "--in-place cannot cut a file in two splits. Name validation files with "
              "--validation-input, or use --validation-fraction 0 for none.");
  input.Check();
  config.output.Check();
  return PublishDataset<TokenFilesRun>(config);
}

}  // namespace halflife::data
