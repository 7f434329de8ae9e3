#include "data/examples/prepare_examples.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <memory>
#include <optional>
#include <ranges>
#include <set>
#include <utility>

#include "core/error.h"
#include "core/human.h"
#include "core/log.h"
#include "data/chat/chat_tokens.h"
#include "data/examples/example.h"
#include "data/manifest.h"
#include "data/prepare/document_encoder.h"
#include "data/prepare/ordered_pipeline.h"
#include "data/prepare/publish_dataset.h"
#include "data/prepare/shard_writer.h"
#include "data/records.h"
#include "data/tokenizer_folder.h"

namespace halflife::data {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kExamplesGenerator = 2;  // increased when the same files give different rows

const char* LabelsFlag(const PrepareExamplesConfig& config) {
  return config.conversations ? "messages" : Name(config.labels);
}

void CheckConfig(const PrepareExamplesConfig& config) {
  const auto require = [](bool holds, const auto&... words) {
    HL_CHECK_AS(ExitCode::kUsage, holds, words...);
  };
  HL_CHECK(config.labels == RowLabels::kClasses || config.labels == RowLabels::kAnswers ||
           config.labels == RowLabels::kPreferences);
  HL_CHECK(config.labels == RowLabels::kAnswers || !config.conversations);
  require(!config.input.paths.empty(), "--input names no file. Use a .tsv or .jsonl file.");
  require(!config.input.tokenizer.empty(), "--labels ", LabelsFlag(config),
          " needs --tokenizer bytes|FILE|FOLDER. Use the tokenizer of the model that you want to "
          "tune.");
  constexpr int64_t kMaxTokens = int64_t{1} << 24;
  require(config.rules.row_len >= 2 && config.rules.row_len <= kMaxTokens, "--row-len ",
          config.rules.row_len, " is out of range. Use 2 to ", kMaxTokens, " tokens.");
  require(config.labels != RowLabels::kPreferences || config.rules.too_long != TooLong::kCut,
          "--too-long cut would change the answers that are compared. Use --too-long drop.");
  require(config.labels == RowLabels::kClasses || config.classes.empty(),
          "--classes requires --labels classes");
  require(config.classes.empty() || config.classes.size() >= 2,
          "--classes names one class. Name two or more.");
  const std::set<std::string> names(config.classes.begin(), config.classes.end());
  require(names.size() == config.classes.size(),
          "--classes names a class twice: ", Join(config.classes, ", "));
  config.input.Check();
  config.output.Check();
}

std::vector<RecordField> FieldsOf(const PrepareExamplesConfig& config) {
  if (config.labels == RowLabels::kClasses)
    return {{config.input.field, "--field"},
            {config.label_field, "--label-field", FieldForm::kScalar}};
  if (config.conversations) return {{config.messages_field, "--messages-field", FieldForm::kJson}};
  if (config.labels == RowLabels::kPreferences)
    return {{config.prompt_field, "--prompt-field", FieldForm::kJson, /*optional=*/true},
            {config.chosen_field, "--chosen-field", FieldForm::kJson},
            {config.rejected_field, "--rejected-field", FieldForm::kJson}};
  return {{config.prompt_field, "--prompt-field"}, {config.answer_field, "--answer-field"}};
}

std::optional<int64_t> WholeNumber(const std::string& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Sorts names numerically if all are whole numbers (2 before 10), otherwise by bytes.
std::vector<std::string> InOrder(const std::set<std::string>& names) {
  std::vector<std::string> sorted(names.begin(), names.end());
  if (std::ranges::all_of(sorted, [](const auto& name) { return WholeNumber(name).has_value(); }))
    std::ranges::stable_sort(sorted, {}, [](const auto& name) { return *WholeNumber(name); });
  return sorted;
}

void RequireTemplate(const std::optional<ChatTemplate>& chat, const PrepareExamplesConfig& config,
                     const Tokenizer& tokenizer) {
  HL_CHECK_AS(
      ExitCode::kUsage, chat.has_value(), "the tokenizer ", config.input.tokenizer,
      tokenizer.chat_templates().empty() ? " has no chat template"
                                         : " has a chat template that this program did not write",
      ". Name the template of the model with --template: ", Join(ChatTemplateNames(), ", "), ".");
}

// Returns the chat template. Preferences need one only if a record is a conversation.
std::optional<ChatTemplate> ChooseTemplate(const PrepareExamplesConfig& config,
                                           const Tokenizer& tokenizer) {
  if (!config.conversations && config.labels != RowLabels::kPreferences) return std::nullopt;
  if (!config.chat_template.empty()) return RequireChatTemplate(config.chat_template);
  std::optional<ChatTemplate> chat = DetectChatTemplate(tokenizer.chat_templates());
  if (config.conversations) RequireTemplate(chat, config, tokenizer);
  return chat;
}

// Returns the contents before the first answer of an assistant.
std::string PromptOf(const std::vector<ChatMessage>& messages) {
  std::string prompt;
  for (const ChatMessage& message : messages) {
    if (message.role == "assistant") break;
    prompt += message.content + "\n";
  }
  return prompt;
}

// Returns the text whose hash decides the split of a conversation. It is the prompt, or the first
// answer of the assistant if there is no prompt.
std::string TextOfSplit(std::string prompt, const std::vector<ChatMessage>& messages) {
  if (!prompt.empty()) return prompt;
  const auto answer = std::ranges::find(messages, "assistant", &ChatMessage::role);
  return answer == messages.end() ? "" : answer->content;
}

// The files of one option and the reader of their records.
struct RecordSource {
  InputFiles files;
  RecordReader reader;
  std::optional<Split> split;  // the split of all records; empty: each record's content decides
};

// The result for one chunk of records.
struct EncodedExamples {
  struct One {
    Split split;
    Hash128 content;  // hash of the text that decides the split
    Example example;
  };
  std::vector<One> examples;
  NameCounts special_names;  // that were encoded as characters
  int64_t num_empty = 0;
  uint64_t disk_bytes = 0;
};

class ExampleSet {
 public:
  explicit ExampleSet(const PrepareExamplesConfig& config)
      : config_(config),
        tokenizer_(OpenTokenizer(config.input.tokenizer)),
        chat_(ChooseTemplate(config, *tokenizer_)),
        encoder_(*tokenizer_, config.rules),
        any_length_(*tokenizer_,
                    {.row_len = INT64_MAX, .special_tokens = config.rules.special_tokens}),
        threads_(config.output.NumThreads()) {
    const bool splits = config.input.validation_paths.empty();
    AddSource(config.input.paths, "--input", splits ? std::nullopt : std::optional(Split::kTrain));
    AddSource(config.input.validation_paths, "--validation-input", Split::kValidation);
    AddSource(config.test_inputs, "--test-input", Split::kTest);
    for (const auto& source : sources_) progress_.total_disk_bytes += DiskBytes(source->files);
    if (config.labels == RowLabels::kClasses) NumberClasses();
    if (chat_) UseTemplate();
  }

  Manifest WriteFiles(const fs::path& folder);
  ExamplesSummary Summarise(const Manifest& manifest) const;

 private:
  struct Writer {
    Writer(const ShardWriterConfig& shards, const RowPackerConfig& rows)
        : writer(shards), packer(writer, rows) {}
    ShardWriter writer;
    RowPacker packer;
  };

  void AddSource(const std::vector<std::string>& names, const char* flag,
                 std::optional<Split> split);
  void NumberClasses();
  void UseTemplate();
  // Calls write(map(chunk)) for the chunks of a source, in order.
  template <typename Out, typename Map, typename Write>
  void ForEachChunk(const RecordSource& source, const Map& map, const Write& write);
  EncodedExamples Encode(const RecordSource& source, TextChunk chunk) const;
  Example EncodeOne(const Record& record, const std::string& place) const;
  std::optional<EncodedExamples::One> EncodeConversation(const std::string& messages,
                                                         const DocumentRules& split,
                                                         const std::string& place) const;
  std::optional<EncodedExamples::One> EncodePair(const Record& record, const DocumentRules& split,
                                                 const std::string& place,
                                                 NameCounts& special_names) const;
  Example EncodeChosenOrRejected(const PreferenceRecord& record,
                                 const PreferenceRecord::Answer& answer,
                                 const std::string& place) const;
  int32_t ClassOf(const std::string& name, const std::string& place) const;
  Writer MakeWriter(const fs::path& folder, Split split) const;
  SplitRecord Finish(Writer& writer, Split split) const;
  // Throws Error kData with the reason why a split has no rows.
  void FailEmpty(Split split) const;
  std::vector<std::pair<std::string, std::string>> Parameters() const;

  const PrepareExamplesConfig& config_;
  const std::unique_ptr<Tokenizer> tokenizer_;
  const std::optional<ChatTemplate> chat_;  // of conversations
  const ExampleEncoder encoder_;
  const ExampleEncoder any_length_;  // for the sequences of pairs
  const int threads_;
  std::vector<std::unique_ptr<RecordSource>> sources_;  // the first one is --input
  std::vector<std::string> classes_;
  std::map<std::string, int32_t> number_of_class_;
  std::map<Split, ExampleCounts> counts_;
  int64_t num_empty_ = 0, num_cut_ = 0, num_dropped_ = 0;
  NameCounts special_names_;
  HeldOutContents held_out_;
  PrepareProgress progress_;
};

void ExampleSet::AddSource(const std::vector<std::string>& names, const char* flag,
                           std::optional<Split> split) {
  if (names.empty()) return;
  const std::span<const TextFormat> all = kRecordFormats;  // .jsonl is the last
  const auto formats = config_.labels == RowLabels::kPreferences ? all.last(1) : all;
  InputFiles files = FindInputFiles(names, flag, formats);
  if (!sources_.empty()) RequireApart(sources_.front()->files, files, flag);
  RecordReader reader(files.files, FieldsOf(config_));
  sources_.push_back(std::make_unique<RecordSource>(std::move(files), std::move(reader), split));
}

template <typename Out, typename Map, typename Write>
void ExampleSet::ForEachChunk(const RecordSource& source, const Map& map, const Write& write) {
  TextChunker chunker(source.files.files, {.max_document_bytes = config_.input.max_document_bytes});
  RunOrdered<TextChunk, Out>(
      threads_,
      [&] {
        config_.output.RequireGoingOn();
        return chunker.Next();
      },
      [&](TextChunk chunk) {
        RequireUtf8(chunk, config_.input.replace_invalid_utf8);
        return map(std::move(chunk));
      },
      write);
}

void ExampleSet::NumberClasses() {
  classes_ = config_.classes;
  if (classes_.empty()) {
    std::set<std::string> names;
    ForEachChunk<std::set<std::string>>(
        *sources_.front(),
        [&](const TextChunk& chunk) {
          std::set<std::string> found;
          sources_.front()->reader.ForEach(
              chunk, [&](const Record& record) { found.insert(record.values[1]); });
          found.erase("");  // records without a label are reported later, at their line
          return found;
        },
        [&](std::set<std::string> found) { names.merge(found); });
    classes_ = InOrder(names);
    HL_CHECK_AS(ExitCode::kData, classes_.size() >= 2, "the examples of --input have ",
                classes_.size(), classes_.size() == 1 ? " label: '" + classes_[0] + "'" : " labels",
                ". Provide examples of two or more classes.");
  }
  for (size_t i = 0; i < classes_.size(); ++i)
    number_of_class_[classes_[i]] = static_cast<int32_t>(i);
}

// Stores the template with the tokenizer, so that the trained model has it.
void ExampleSet::UseTemplate() {
  ChatTemplates templates = tokenizer_->chat_templates();
  if (config_.chat_template.empty())
    templates.emplace("default", chat_->Jinja());
  else
    templates["default"] = chat_->Jinja();  // the one that was named, as rows are made with it
  tokenizer_->set_chat_templates(std::move(templates));
  const std::vector<std::string> names = NamesWithoutToken(*tokenizer_, *chat_);
  if (!names.empty())
    HL_WARN("prepare", "the tokenizer encodes ", Join(names, ", "), " of the chat template ",
            chat_->name,
            " as several tokens each. Training works, but rows hold less text. Templates that end "
            "turns with eos (zephyr, mistral) need no such tokens.");
}

int32_t ExampleSet::ClassOf(const std::string& name, const std::string& place) const {
  HL_CHECK_AS(ExitCode::kData, !name.empty(), place, "a text without a label. Use one of ",
              Join(classes_, ", "), ".");
  const auto found = number_of_class_.find(name);
  HL_CHECK_AS(ExitCode::kData, found != number_of_class_.end(), place, "the label '", name,
              "' is not one of the classes ", Join(classes_, ", "), "; ",
              config_.classes.empty()
                  ? "they are the labels of --input. Use --classes to choose them."
                  : "they are set by --classes");
  return found->second;
}

Example ExampleSet::EncodeOne(const Record& record, const std::string& place) const {
  if (config_.labels == RowLabels::kAnswers)
    return encoder_.OfAnswer(record.values[0], record.values[1], place);
  return encoder_.OfClass(record.values[0], ClassOf(record.values[1], place), place);
}

// Returns nothing for a conversation without an answer.
std::optional<EncodedExamples::One> ExampleSet::EncodeConversation(const std::string& json,
                                                                   const DocumentRules& split,
                                                                   const std::string& place) const {
  const std::vector<ChatMessage> messages = ReadChatMessages(json, place);
  const auto pieces = chat_->Render(messages, GenerationPrompt::kOmit, place);
  if (std::ranges::find(messages, "assistant", &ChatMessage::role) == messages.end())
    return std::nullopt;
  const Hash128 content = ContentHash(TextOfSplit(PromptOf(messages), messages));
  EncodedExamples::One one = {.split = ChooseSplit(content, split),
                              .content = content,
                              .example = encoder_.OfChat(EncodeChat(*tokenizer_, pieces), place)};
  for (const ChatMessage& message : messages)
    one.example.num_bytes += static_cast<int64_t>(message.content.size());
  return one;
}

Example ExampleSet::EncodeChosenOrRejected(const PreferenceRecord& record,
                                           const PreferenceRecord::Answer& answer,
                                           const std::string& place) const {
  if (!record.is_conversation()) return any_length_.OfAnswer(record.prompt, answer.text, place);
  RequireTemplate(chat_, config_, *tokenizer_);
  Example example = any_length_.OfChat(
      EncodeChat(*tokenizer_, chat_->Render(answer.messages, GenerationPrompt::kOmit, place)),
      place);
  for (const ChatMessage& message : answer.messages)
    example.num_bytes += static_cast<int64_t>(message.content.size());
  return example;
}

// Returns nothing for a pair without two answers.
std::optional<EncodedExamples::One> ExampleSet::EncodePair(const Record& record,
                                                           const DocumentRules& split,
                                                           const std::string& place,
                                                           NameCounts& special_names) const {
  const PreferenceRecord pair =
      ReadPreference(record.values[0], record.values[1], record.values[2], place);
  if (!pair.has_answers()) return std::nullopt;
  if (!pair.is_conversation() && config_.rules.special_tokens == SpecialTokens::kPlain)
    for (const std::string* const text : {&pair.prompt, &pair.chosen.text, &pair.rejected.text})
      tokenizer_->CountSpecialNames(*text, special_names);
  const Hash128 content =
      ContentHash(pair.is_conversation() ? TextOfSplit(pair.prompt, pair.chosen.messages)
                  : pair.prompt.empty()  ? pair.chosen.text
                                         : pair.prompt);
  return EncodedExamples::One{
      .split = ChooseSplit(content, split),
      .content = content,
      .example = encoder_.OfPair(EncodeChosenOrRejected(pair, pair.chosen, place),
                                 EncodeChosenOrRejected(pair, pair.rejected, place), place)};
}

EncodedExamples ExampleSet::Encode(const RecordSource& source, TextChunk chunk) const {
  const DocumentRules split = {.validation_fraction = config_.input.FractionOrUsual(),
                               .split_seed = config_.input.split_seed,
                               .split = source.split};
  EncodedExamples encoded = {.examples = {}, .disk_bytes = chunk.disk_bytes};
  source.reader.ForEach(chunk, [&](const Record& record) {
    const std::string place = Concat(chunk.file->path.string(), ":", record.line, ": ");
    const bool pairs = config_.labels == RowLabels::kPreferences;
    if (config_.conversations || pairs) {
      auto one = pairs ? EncodePair(record, split, place, encoded.special_names)
                       : EncodeConversation(record.values[0], split, place);
      one ? encoded.examples.push_back(*std::move(one)) : void(++encoded.num_empty);
      return;
    }
    const bool answers = config_.labels == RowLabels::kAnswers;
    if (record.values[answers ? 1 : 0].empty()) {
      ++encoded.num_empty;
      return;
    }
    if (!answers || config_.rules.special_tokens == SpecialTokens::kPlain) {
      tokenizer_->CountSpecialNames(record.values[0], encoded.special_names);
      if (answers) tokenizer_->CountSpecialNames(record.values[1], encoded.special_names);
    }
    const Hash128 content =
        ContentHash(record.values[0].empty() ? record.values[1] : record.values[0]);
    encoded.examples.push_back({ChooseSplit(content, split), content, EncodeOne(record, place)});
  });
  return encoded;
}

ExampleSet::Writer ExampleSet::MakeWriter(const fs::path& folder, Split split) const {
  const SpecialIds special = tokenizer_->special_ids();
  return {{.folder = folder,
           .split = split,
           .token_bytes = TokenBytes(tokenizer_->vocab_size()),
           .shard_tokens = config_.output.shard_tokens,
           .labels = true},
          {.row_len = config_.rules.row_len,
           .pad_id = special.pad >= 0 ? special.pad : special.eos,
           .one_per_row = config_.labels == RowLabels::kClasses}};
}

SplitRecord ExampleSet::Finish(Writer& writer, Split split) const {
  writer.packer.Finish();
  SplitRecord record = writer.writer.Finish();
  if (writer.packer.num_rows() > 0)
    record.info.segments.push_back({"rows", writer.packer.num_rows(), 0});
  const bool none_asked_for = split == Split::kTest ? config_.test_inputs.empty()
                                                    : split == Split::kValidation &&
                                                          config_.input.validation_paths.empty() &&
                                                          config_.input.FractionOrUsual() == 0;
  if (!none_asked_for && writer.packer.num_rows() == 0) FailEmpty(split);
  return record;
}

void ExampleSet::FailEmpty(Split split) const {
  const auto require = [&](bool holds, const auto&... words) {
    HL_CHECK_AS(ExitCode::kData, holds, "no example is in the ", Name(split), " split", words...);
  };
  const int64_t dropped = counts_.at(split).num_dropped;
  require(dropped == 0, ": --too-long ", Name(config_.rules.too_long), " left out all ", dropped,
          " of its examples, because --row-len ", config_.rules.row_len,
          " is too short for them. Raise --row-len.");
  const bool any_example =
      std::ranges::any_of(counts_, [](const auto& entry) { return entry.second.num_examples > 0; });
  require(any_example || num_empty_ == 0, ": all ", num_empty_,
          " records are empty. Use records with ",
          config_.labels == RowLabels::kClasses ? "texts." : "answers.");
  require(split == Split::kTest || !config_.input.validation_paths.empty(),
          ". Use another --validation-fraction or --split-seed, or files with more examples.");
  require(false, ". Use files with examples.");
}

std::vector<std::pair<std::string, std::string>> ExampleSet::Parameters() const {
  std::vector<std::pair<std::string, std::string>> parameters;
  for (const RecordField& field : FieldsOf(config_))
    parameters.emplace_back(field.flag.substr(2), field.name);
  parameters.emplace_back("too-long", Name(config_.rules.too_long));
  if (chat_) parameters.emplace_back("template", chat_->name);
  if (!config_.conversations && config_.labels != RowLabels::kClasses)
    parameters.emplace_back("special-tokens", Name(config_.rules.special_tokens));
  parameters.emplace_back("invalid-utf8", config_.input.replace_invalid_utf8 ? "replace" : "error");
  if (config_.input.validation_paths.empty()) {
    parameters.emplace_back("validation-fraction", ShortestText(config_.input.FractionOrUsual()));
    parameters.emplace_back("split-seed", Concat(config_.input.split_seed));
  }
  for (const auto& [split, counts] : counts_)
    parameters.emplace_back(Concat(Name(split), "-examples"), Concat(counts.num_examples));
  return parameters;
}

Manifest ExampleSet::WriteFiles(const fs::path& folder) {
  progress_.phase = "tokenising";
  Writer train = MakeWriter(folder, Split::kTrain);
  Writer validation = MakeWriter(folder, Split::kValidation);
  Writer test = MakeWriter(folder, Split::kTest);
  const std::map<Split, Writer*> of = {
      {Split::kTrain, &train}, {Split::kValidation, &validation}, {Split::kTest, &test}};
  // Held-out examples come first, so that every training example is compared with all of them.
  for (const auto& source : sources_ | std::views::reverse) {
    const uint64_t before = progress_.disk_bytes;
    ForEachChunk<EncodedExamples>(
        *source, [&](TextChunk chunk) { return Encode(*source, std::move(chunk)); },
        [&](EncodedExamples chunk) {
          for (const auto& [split, content, example] : chunk.examples) {
            num_cut_ += example.cut ? 1 : 0;
            if (example.dropped) {
              ++num_dropped_;
              ++counts_[split].num_dropped;
              continue;
            }
            of.at(split)->packer.Add(example);
            held_out_.Add(split, content);
            ++counts_[split].num_examples;
            ++progress_.num_documents;
            progress_.text_bytes += example.num_bytes;
          }
          num_empty_ += chunk.num_empty;
          for (const auto& [name, count] : chunk.special_names) special_names_[name] += count;
          progress_.disk_bytes = before + chunk.disk_bytes;
          config_.output.Report(progress_);
        });
  }
  for (const auto& [split, writer] : of) counts_[split].num_rows = writer->packer.num_rows();
  Manifest manifest = {.train = Finish(train, Split::kTrain),
                       .validation = Finish(validation, Split::kValidation),
                       .test = Finish(test, Split::kTest),
                       .row_len = config_.rules.row_len,
                       .generator = Concat("examples with ", LabelsFlag(config_)),
                       .generator_version = kExamplesGenerator,
                       .parameters = Parameters(),
                       .labels = config_.labels,
                       .classes = classes_};
  SaveTokenizer(*tokenizer_, folder, manifest);
  return manifest;
}

ExamplesSummary ExampleSet::Summarise(const Manifest& manifest) const {
  return {.train = counts_.at(Split::kTrain),
          .validation = counts_.at(Split::kValidation),
          .test = counts_.at(Split::kTest),
          .classes = classes_,
          .tokenizer_kind = manifest.tokenizer_kind,
          .chat_template = chat_ ? chat_->name : "",
          .num_empty = num_empty_,
          .num_cut = num_cut_,
          .num_dropped = num_dropped_,
          .special_names = special_names_,
          .num_held_out_in_train = held_out_.num_in_train(),
          .seconds = 0,
          .hash = manifest.hash};
}

}  // namespace

ExamplesSummary PrepareExamples(const PrepareExamplesConfig& config) {
  CheckConfig(config);
  return PublishDataset<ExampleSet>(config);
}

}  // namespace halflife::data
