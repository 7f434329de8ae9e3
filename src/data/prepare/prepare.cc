#include "data/prepare/prepare.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "core/error.h"
#include "data/manifest.h"
#include "data/prepare/document_encoder.h"
#include "data/prepare/ordered_pipeline.h"
#include "data/prepare/prepare_journal.h"
#include "data/prepare/publish_dataset.h"
#include "data/prepare/shard_writer.h"
#include "data/sentencepiece_tokenizer.h"
#include "data/tokenizer_folder.h"

namespace halflife::data {
namespace {

namespace fs = std::filesystem;

void CheckConfig(const PrepareConfig& config) {
  HL_CHECK_AS(ExitCode::kUsage, !config.input.paths.empty(),
              "--input names no file. Name files, or use --synthetic mqar for rows without text.");
  HL_CHECK_AS(ExitCode::kUsage, config.train_tokenizer == config.input.tokenizer.empty(),
              "use either --tokenizer bytes|FILE|FOLDER, or --train-tokenizer --vocab N");
  HL_CHECK_AS(ExitCode::kUsage, !config.in_place,
              "--in-place is for token files (.bin). Leave the option out for text.");
  constexpr int kMaxPieces = 1 << 24;
  HL_CHECK_AS(
      ExitCode::kUsage,
      !config.train_tokenizer || (config.vocab_size > 0 && config.vocab_size <= kMaxPieces),
      "--train-tokenizer needs --vocab N, the number of pieces. Use for example 8192, and at most ",
      kMaxPieces);
  HL_CHECK_AS(ExitCode::kUsage, config.chunk_bytes > 0, "chunks of ", config.chunk_bytes,
              " bytes. Use 1 or more.");
  config.input.Check();
  config.output.Check();
}

bool IsText(const InputFile& file) { return file.format == TextFormat::kText; }

// One run of `prepare`, with the settings and counts that its phases share.
class Run {
 public:
  explicit Run(const PrepareConfig& config)
      : config_(config),
        inputs_(FindInputFiles(config.input.paths)),
        validation_inputs_(
            config.input.validation_paths.empty()
                ? InputFiles{}
                : FindInputFiles(config.input.validation_paths, "--validation-input")),
        tokenizer_(config.train_tokenizer ? nullptr : OpenTokenizer(config.input.tokenizer)),
        threads_(config.output.NumThreads()),
        documents_(ChooseDocuments()),
        validation_tail_(ChooseTail()) {
    RequireApart(inputs_, validation_inputs_, "--validation-input");
    rules_ = {
        .field = config.input.field,
        .replace_invalid_utf8 = config.input.replace_invalid_utf8,
        .max_document_bytes = config.input.max_document_bytes,
        .allow_pieces = tokenizer_ != nullptr && tokenizer_->kind() == kBytesKind && !config.dedup,
        .validation_fraction = config.input.FractionOrUsual(),
        .split_seed = config.input.split_seed,
        .hash_whole = config.dedup};
    if (has_validation_inputs()) rules_.split = Split::kTrain;
  }

  // Call only once.
  Manifest WriteFiles(const fs::path& folder);
  PrepareSummary Summarise(const Manifest& manifest) const;

 private:
  // The writers of the shards.
  struct Writers {
    ShardWriter train, validation;
    ShardWriter& of(Split split) { return split == Split::kTrain ? train : validation; }
    void BeginSource(const InputFile& file) {
      train.BeginSource(file.name);
      validation.BeginSource(file.name);
    }
  };

  bool has_validation_inputs() const { return !validation_inputs_.files.empty(); }
  DocumentMode ChooseDocuments() const;
  double ChooseTail() const;
  std::unique_ptr<Tokenizer> TrainTokenizer();
  // Writes the shards of both splits and returns their part of the manifest.
  Manifest WriteShards(const fs::path& folder, const Tokenizer& tokenizer);
  // Returns a text with everything that the encoded chunks depend on.
  std::string Identity(const Tokenizer& tokenizer) const;
  void CheckInputs(const Manifest& manifest) const;
  void CheckSplits(const Manifest& manifest) const;
  void Describe(Manifest& manifest) const;
  // Tokenises all documents of `inputs` and writes each to the split that `rules` choose.
  void WriteDocuments(const InputFiles& inputs, const DocumentRules& rules,
                      const Tokenizer& tokenizer, Writers& writers);
  TextChunker MakeChunker(const InputFiles& inputs) const {
    return TextChunker(inputs.files, {.documents = documents_,
                                      .allow_pieces = rules_.allow_pieces,
                                      .chunk_bytes = config_.chunk_bytes,
                                      .max_document_bytes = config_.input.max_document_bytes,
                                      .validation_tail = validation_tail_});
  }

  std::optional<TextChunk> NextChunk(TextChunker& chunker) const {
    config_.output.RequireGoingOn();
    return chunker.Next();
  }

  const PrepareConfig& config_;
  const InputFiles inputs_;
  const InputFiles validation_inputs_;    // empty: the validation split is a share of inputs_
  std::unique_ptr<Tokenizer> tokenizer_;  // null until it is trained
  const int threads_;
  const DocumentMode documents_;
  const double validation_tail_;  // 0: the split is chosen in another way
  DocumentRules rules_;
  PrepareProgress progress_;
  int64_t num_empty_ = 0;
  struct LowHalf {
    // noexcept, so that the set does not also keep this value for each hash
    size_t operator()(const Hash128& hash) const noexcept { return hash.lo; }
  };
  std::unordered_set<Hash128, LowHalf> seen_;  // only with dedup
  int64_t num_duplicates_ = 0;
  int64_t num_validation_duplicates_ = 0;  // those of them in validation_inputs_
  NameCounts special_names_;
  HeldOutContents held_out_;               // only with validation_inputs_
  std::optional<PrepareJournal> journal_;  // only with config_.resumable
};

DocumentMode Run::ChooseDocuments() const {
  const bool any_text = std::ranges::any_of(inputs_.files, &IsText) ||
                        std::ranges::any_of(validation_inputs_.files, &IsText);
  HL_CHECK_AS(ExitCode::kUsage, any_text || !config_.documents, "--documents ",
              Name(*config_.documents),
              " is for .txt files, and the input has only records, which are documents of their "
              "own. Remove --documents.");
  return any_text ? config_.documents.value_or(DocumentMode::kFile) : DocumentMode::kRecord;
}

// Choosing documents at random needs many documents. If there are few and all are whole text files,
// the default is to validate on the end of each file.
double Run::ChooseTail() const {
  constexpr size_t kManyDocuments = 100;
  const PrepareInput& input = config_.input;
  if (input.validation_tail || has_validation_inputs()) return input.validation_tail.value_or(0);
  const bool whole_files =
      documents_ == DocumentMode::kFile && std::ranges::all_of(inputs_.files, &IsText);
  const bool chosen = input.validation_fraction || input.split_seed != 0;
  if (whole_files && !chosen && inputs_.files.size() < kManyDocuments) return kUsualValidationShare;
  const double fraction = input.FractionOrUsual();
  HL_CHECK_AS(ExitCode::kUsage, !whole_files || inputs_.files.size() > 1 || fraction == 0,
              "--validation-fraction and --split-seed choose whole documents, and ",
              inputs_.files.front().path.string(), " is one document. Use --validation-tail ",
              fraction,
              " to validate on its end, or cut it into more documents with --documents blank_lines "
              "or --documents line.");
  return 0;
}

std::unique_ptr<Tokenizer> Run::TrainTokenizer() {
  struct ChunkLines {
    std::vector<HashedLine> lines;
    uint64_t disk_bytes = 0;
  };
  progress_.phase = "training the tokenizer";
  progress_.total_disk_bytes = DiskBytes(inputs_);
  TextChunker chunker = MakeChunker(inputs_);
  LineSample sample(kTrainerSampleBytes);
  RunOrdered<TextChunk, ChunkLines>(
      threads_, [&] { return NextChunk(chunker); },
      [&](TextChunk chunk) {
        ChunkLines result{.lines = {}, .disk_bytes = chunk.disk_bytes};
        const DocumentRules rules = rules_.Of(chunk);
        ForEachDocument(std::move(chunk), rules, [&](const Document& document) {
          // The tokenizer is not trained on validation text.
          if (ChooseSplit(ContentHash(document.text), rules) == Split::kTrain) {
            AppendHashedLines(document.text, result.lines);
          }
        });
        return result;
      },
      [&](ChunkLines chunk) {
        sample.Add(std::move(chunk.lines));
        progress_.disk_bytes = chunk.disk_bytes;
        config_.output.Report(progress_);
      });
  const std::vector<std::string> lines = std::move(sample).Sorted();
  HL_CHECK_AS(ExitCode::kData, !lines.empty(),
              "the input contains no text to train a tokenizer on");
  return MakeSentencePieceTokenizer(TrainSentencePiece(lines, config_.vocab_size));
}

void Run::WriteDocuments(const InputFiles& inputs, const DocumentRules& rules,
                         const Tokenizer& tokenizer, Writers& writers) {
  ShardWriter* writer = &writers.train;  // the writer of the current document
  const InputFile* file = nullptr;
  TextChunker chunker = MakeChunker(inputs);
  const DocumentEncoder encoder(tokenizer, rules);
  const uint64_t disk_bytes_before = progress_.disk_bytes;
  const auto write = [&](const EncodedChunk& chunk) {
    if (chunk.file != file) writers.BeginSource(*(file = chunk.file));
    std::span<const int32_t> ids = chunk.ids;
    for (const EncodedDocument& document : chunk.documents) {
      if (config_.dedup && !seen_.insert(document.whole).second) {
        ++num_duplicates_;
        ids = ids.subspan(static_cast<size_t>(document.num_ids));
        continue;
      }
      if (document.begins) {
        writer = &writers.of(document.split);
        writer->BeginDocument();
        if (has_validation_inputs()) held_out_.Add(document.split, document.content);
        ++progress_.num_documents;
      }
      writer->Append(ids.first(static_cast<size_t>(document.num_ids)));
      writer->CountBytes(document.num_bytes);
      ids = ids.subspan(static_cast<size_t>(document.num_ids));
      progress_.text_bytes += document.num_bytes;
    }
    num_empty_ += chunk.num_empty;
    for (const auto& [name, count] : chunk.special_names) special_names_[name] += count;
    progress_.disk_bytes = disk_bytes_before + chunk.disk_bytes;
    config_.output.Report(progress_);
  };
  // The text of chunks of the journal is read, which gives their places, but not tokenized.
  while (journal_ && journal_->has_next()) {
    const std::optional<TextChunk> text = NextChunk(chunker);
    if (!text) return;
    EncodedChunk chunk = journal_->Next();
    chunk.file = text->file;
    chunk.disk_bytes = text->disk_bytes;
    write(chunk);
  }
  RunOrdered<TextChunk, EncodedChunk>(
      threads_, [&] { return NextChunk(chunker); },
      [&](TextChunk chunk) { return encoder.Encode(std::move(chunk)); },
      [&](const EncodedChunk& chunk) {
        if (journal_) journal_->Append(chunk);
        write(chunk);
      });
}

std::string Run::Identity(const Tokenizer& tokenizer) const {
  std::string text = Concat("halflife prepare journal 1: ", tokenizer.kind());
  for (const auto& [name, bytes] : tokenizer.Files())
    text += Concat(" ", name, " ", ToHex(HashBytes(bytes)));
  text += Concat("; ", Name(documents_), " ", validation_tail_, " ", rules_.field, " ",
                 rules_.replace_invalid_utf8, " ", rules_.max_document_bytes, " ",
                 rules_.allow_pieces, " ", rules_.validation_fraction, " ", rules_.split_seed, " ",
                 rules_.hash_whole, " ", config_.chunk_bytes);
  for (const InputFiles* inputs : {&validation_inputs_, &inputs_}) {
    text += ";";
    for (const InputFile& file : inputs->files)
      text += Concat(" ", fs::absolute(file.path).string(), " ", file.bytes, " ",
                     fs::last_write_time(file.path).time_since_epoch().count());
  }
  return text;
}

Manifest Run::WriteShards(const fs::path& folder, const Tokenizer& tokenizer) {
  progress_.phase = "tokenising";
  progress_.disk_bytes = 0;
  progress_.total_disk_bytes = DiskBytes(inputs_) + DiskBytes(validation_inputs_);
  const int token_bytes = TokenBytes(tokenizer.vocab_size());
  const auto writer_config = [&](Split split) {
    return ShardWriterConfig{folder, split, token_bytes, config_.output.shard_tokens};
  };
  Writers writers{ShardWriter(writer_config(Split::kTrain)),
                  ShardWriter(writer_config(Split::kValidation))};
  if (config_.resumable) journal_.emplace(config_.output.out, Identity(tokenizer));
  // First, so that all of it is known when the training text is compared with it.
  if (has_validation_inputs()) {
    DocumentRules rules = rules_;
    rules.split = Split::kValidation;
    WriteDocuments(validation_inputs_, rules, tokenizer, writers);
    num_validation_duplicates_ = num_duplicates_;
  }
  WriteDocuments(inputs_, rules_, tokenizer, writers);
  Manifest manifest;
  manifest.train = writers.train.Finish();
  manifest.validation = writers.validation.Finish();
  return manifest;
}

void Run::CheckInputs(const Manifest& manifest) const {
  const int64_t duplicates = num_duplicates_ - num_validation_duplicates_;
  HL_CHECK_AS(ExitCode::kData, manifest.train.info.num_documents > 0 || duplicates == 0,
              "--dedup leaves no text to train on: all ", duplicates,
              " documents of --input, starting with ", inputs_.files.front().path.string(),
              ", are also in --validation-input. Use other files for one of them, or leave out "
              "--dedup.");
  const auto require = [](const SplitRecord& split, const char* flag, const InputFiles& inputs) {
    HL_CHECK_AS(ExitCode::kData, split.info.num_documents > 0, flag,
                " contains no text: ", inputs.files.size(), " files with only empty documents, ",
                "starting with ", inputs.files.front().path.string());
  };
  require(manifest.train, "--input", inputs_);
  require(manifest.validation, "--validation-input", validation_inputs_);
}

void Run::CheckSplits(const Manifest& manifest) const {
  if (has_validation_inputs()) return CheckInputs(manifest);
  const int64_t train = manifest.train.info.num_documents;
  const int64_t validation = manifest.validation.info.num_documents;
  HL_CHECK_AS(ExitCode::kData, train + validation > 0,
              "the input contains no text: ", inputs_.files.size(), " files with ", num_empty_,
              " empty documents, starting with ", inputs_.files.front().path.string());
  if (validation_tail_ > 0) {
    HL_CHECK_AS(ExitCode::kData, train > 0 && validation > 0, "with --validation-tail ",
                validation_tail_, " the ", train > 0 ? "validation" : "training",
                " split gets no text of ", train + validation, " documents. Use a ",
                train > 0 ? "larger" : "smaller",
                " --validation-tail, or --documents file, which cuts a document in two.");
    return;
  }
  const double fraction = config_.input.FractionOrUsual();
  constexpr char kFixes[] =
      ", change --split-seed, cut the text into more documents with --documents blank_lines or "
      "--documents line, or use --validation-tail, which takes the end of each .txt file.";
  HL_CHECK_AS(ExitCode::kData, train > 0, "all ", validation,
              " documents fell into the validation split. Lower --validation-fraction ", fraction,
              kFixes);
  HL_CHECK_AS(ExitCode::kData, validation > 0 || fraction == 0, "none of the ", train,
              " documents fell into the validation split. Raise --validation-fraction ", fraction,
              " (0 leaves it empty)", kFixes);
}

void Run::Describe(Manifest& manifest) const {
  const PrepareInput& input = config_.input;
  manifest.documents = Name(documents_);
  manifest.field = input.field;
  manifest.validation_input = has_validation_inputs();
  manifest.validation_tail = validation_tail_;
  const bool by_content = !manifest.validation_input && validation_tail_ == 0;
  manifest.validation_fraction = by_content ? input.FractionOrUsual() : 0;
  manifest.split_seed = input.split_seed;
  manifest.replace_invalid_utf8 = input.replace_invalid_utf8;
}

Manifest Run::WriteFiles(const fs::path& folder) {
  if (config_.train_tokenizer) tokenizer_ = TrainTokenizer();
  Manifest manifest = WriteShards(folder, *tokenizer_);
  CheckSplits(manifest);
  SaveTokenizer(*tokenizer_, folder, manifest);
  Describe(manifest);
  return manifest;
}

PrepareSummary Run::Summarise(const Manifest& manifest) const {
  return {.train = manifest.train.info,
          .validation = manifest.validation.info,
          .vocab_size = manifest.vocab_size,
          .tokenizer_kind = manifest.tokenizer_kind,
          .documents = documents_,
          .validation_tail = validation_tail_,
          .first_file = inputs_.files.front().path.filename().string(),
          .num_files = static_cast<int64_t>(inputs_.files.size() + validation_inputs_.files.size()),
          .num_skipped_files = inputs_.num_skipped + validation_inputs_.num_skipped,
          .num_empty = num_empty_,
          .num_duplicates = num_duplicates_,
          .special_names = special_names_,
          .num_validation_in_train = held_out_.num_in_train(),
          .seconds = 0,
          .hash = manifest.hash};
}

}  // namespace

PrepareSummary Prepare(const PrepareConfig& config) {
  CheckConfig(config);
  PrepareSummary summary = PublishDataset<Run>(config);
  if (config.resumable) PrepareJournal::Remove(config.output.out);
  return summary;
}

}  // namespace halflife::data
