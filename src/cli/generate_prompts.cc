// halflife generate --prompts: continues the prompts of a file in batches.
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "cli/generate_modes.h"
#include "cli/readable_text.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/files.h"
#include "core/human.h"
#include "core/json_text.h"
#include "core/log.h"
#include "infer/batch_decoder.h"
#include "infer/generator.h"
#include "infer/text_stream.h"

namespace halflife::cli {
namespace {

constexpr uint64_t kMaxPromptsBytes = 1ull << 30;

struct Prompt {
  std::string text;                         // Without --chat.
  std::vector<data::ChatMessage> messages;  // With --chat.
  std::string place;                        // For messages about it.
};

// Reads prompts. Each line is a string, or an object with a string "prompt". With --chat, it is a
// list of messages, or an object with the list "messages". Other fields are ignored.
std::vector<Prompt> ReadPrompts(const std::string& file, bool chat) {
  std::istringstream lines(ReadStream(file, ExitCode::kData, kMaxPromptsBytes));
  const char* const field = chat ? "messages" : "prompt";
  std::vector<Prompt> prompts;
  std::string line;
  for (int64_t number = 1; std::getline(lines, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    nlohmann::json json;
    if (JsonNesting(line) <= kMaxJsonNesting)
      json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (json.is_object() && json.contains(field)) json = nlohmann::json(json[field]);
    Prompt prompt = {.place = Concat(file, ", line ", number, ": ")};
    if (chat) {
      prompt.messages =
          data::ReadChatMessages(json.is_discarded() ? line : json.dump(), prompt.place);
    } else {
      HL_CHECK_AS(
          ExitCode::kData, json.is_string(), prompt.place,
          "not a prompt. Write a JSON string, or an object such as {\"prompt\": \"Once\"}.");
      prompt.text = json.get<std::string>();
    }
    prompts.push_back(std::move(prompt));
  }
  HL_CHECK_AS(ExitCode::kData, !prompts.empty(), file, " has no prompt. Write one ",
              chat ? "list of messages" : "JSON string", " per line.");
  return prompts;
}

// Returns {"prompt": ...}, or {"messages": [...]} with --chat.
nlohmann::ordered_json PromptJson(const FinishedText& text) {
  if (text.messages.empty()) return {{"prompt", text.prompt}};
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  for (const data::ChatMessage& message : text.messages)
    messages.push_back({{"role", message.role}, {"content", message.content}});
  return {{"messages", messages}};
}

// A prompt whose text is being generated or waits to be printed.
struct Pending {
  explicit Pending(infer::TextStream stream_in) : stream(std::move(stream_in)) {}
  infer::TextStream stream;
  FinishedText text;
  std::string error;
  bool no_memory = false;
  bool done = false, at_limit = false;  // at_limit: the model supports no further position
};

class PromptQueue {
 public:
  PromptQueue(const GenerateOptions& options, const infer::LoadedModel& loaded,
              const data::Tokenizer& tokenizer)
      : options_(options),
        model_(*loaded.model),
        tokenizer_(tokenizer),
        chat_(options.chat ? std::make_optional<ChatPrompts>(options, tokenizer) : std::nullopt),
        stops_(StopStrings(options, chat())),
        prompts_(ReadPrompts(options.prompts, options.chat)),
        num_texts_(prompts_.size() * static_cast<size_t>(options.samples)) {
    for (size_t i = 0; i < prompts_.size(); ++i) {
      const std::string name = Concat(options.prompts, ", prompt ", i + 1);
      if (!chat_)
        CheckReadable(name, prompts_[i].text, tokenizer, options.special_tokens, ExitCode::kData);
      try {
        infer::RequirePrompt(model_, Encoded(i));
      } catch (const Error& error) {
        HL_FAIL(ExitCode::kData, name, ": ", error.message());
      }
    }
  }

  ExitCode Run() {
    infer::BatchDecoder decoder(
        model_, {.max_texts = std::min(options_.batch, static_cast<int64_t>(num_texts_))});
    Stopwatch watch;
    bool more = true;
    while ((more || next_ < num_texts_) && std::cout) {
      while (next_ < num_texts_ && decoder.has_room()) Add(decoder, next_++);
      more = decoder.Advance();
      PrintFinished();
    }
    if (options_.stats)
      PrintBatchStats(static_cast<int64_t>(num_texts_), decoder.stats(), watch.Seconds());
    return code_;
  }

 private:
  const ChatPrompts* chat() const { return chat_ ? &*chat_ : nullptr; }
  std::vector<int32_t> Encoded(size_t i) const {
    const Prompt& prompt = prompts_[i];
    return chat_ ? chat_->Encode(prompt.messages, prompt.place)
                 : tokenizer_.EncodeText(prompt.text, options_.special_tokens);
  }

  void Add(infer::BatchDecoder& decoder, size_t text) {
    const size_t samples = static_cast<size_t>(options_.samples), i = text / samples;
    Pending& pending =
        pending_.emplace(text, Pending(infer::TextStream(tokenizer_, stops_))).first->second;
    pending.text.prompt = prompts_[i].text;
    pending.text.messages = prompts_[i].messages;
    if (options_.generate.max_tokens == 0) {
      pending.text.finish_reason = "length";
      pending.text.prompt_tokens = std::ssize(Encoded(i));
      pending.done = true;
      return;
    }
    infer::TextRequest request = RequestOf(options_, tokenizer_, chat(), Encoded(i));
    request.sampler.seed += text % samples;
    request.on_token = [&pending](const infer::ScoredToken& token) {
      if (token.is_end) return false;
      ++pending.text.new_tokens;
      pending.text.text += pending.stream.Push(token.id);
      return !pending.stream.stopped();
    };
    request.on_end = [&pending](const infer::TextResult& result) {
      pending.text.text += pending.stream.Finish();
      pending.text.prompt_tokens = result.prompt_tokens;
      const bool stops = result.end == infer::TextEnd::kStop || pending.stream.stopped();
      pending.text.finish_reason = stops ? "stop" : "length";
      pending.no_memory = result.end == infer::TextEnd::kNoMemory;
      pending.error =
          pending.no_memory ? "there was no memory for it. Use a smaller --batch." : result.error;
      pending.at_limit = result.end == infer::TextEnd::kPositions;
      pending.done = true;
    };
    decoder.Add(std::move(request));
  }

  void PrintFinished() {
    while (!pending_.empty() && pending_.begin()->second.done) {
      const Pending& first = pending_.begin()->second;
      if (first.error.empty()) {
        std::cout << JsonLine(first.text) << std::flush;
      } else {
        const ExitCode code = first.no_memory ? ExitCode::kEnvironment : ExitCode::kNonFinite;
        if (code_ == ExitCode::kFinished) code_ = code;
        nlohmann::ordered_json line = PromptJson(first.text);
        line["error"] = first.error;
        std::cout << JsonText(line) << "\n";
      }
      if (first.at_limit)
        HL_WARN("generate", "the text of prompt ",
                pending_.begin()->first / static_cast<size_t>(options_.samples) + 1, " ends after ",
                first.text.new_tokens, " of ", options_.generate.max_tokens, " new tokens, at ",
                model_.LimitOfPositions());
      pending_.erase(pending_.begin());
    }
  }

  const GenerateOptions& options_;
  const model::LanguageModel& model_;
  const data::Tokenizer& tokenizer_;
  const std::optional<ChatPrompts> chat_;
  const std::vector<std::string> stops_;
  const std::vector<Prompt> prompts_;
  const size_t num_texts_;  // Several per prompt, next to each other, with --samples.
  size_t next_ = 0;
  std::map<size_t, Pending> pending_;    // By the number of the text.
  ExitCode code_ = ExitCode::kFinished;  // Of the first text that failed.
};

}  // namespace

ExitCode GenerateFromFile(const GenerateOptions& options, const infer::LoadedModel& loaded,
                          const data::Tokenizer& tokenizer) {
  return PromptQueue(options, loaded, tokenizer).Run();
}

std::string JsonLine(const FinishedText& text) {
  nlohmann::ordered_json line = PromptJson(text);
  line["text"] = text.text;
  line["finish_reason"] = text.finish_reason;
  line["prompt_tokens"] = text.prompt_tokens;
  line["new_tokens"] = text.new_tokens;
  return JsonText(line) + "\n";
}

void PrintBatchStats(int64_t num_texts, const infer::BatchStats& stats, double seconds) {
  std::cerr << "texts   " << num_texts << ", with prompts of " << stats.prompt_tokens
            << " tokens in all\n"
            << "new     " << stats.new_tokens << " tokens, "
            << HumanCount(static_cast<double>(stats.new_tokens) / seconds)
            << " tokens/s with the time of the prompts\n";
}

infer::TextRequest RequestOf(const GenerateOptions& options, const data::Tokenizer& tokenizer,
                             const ChatPrompts* chat, std::vector<int32_t> ids) {
  infer::TextRequest request = {.prompt = std::move(ids),
                                .max_tokens = options.generate.max_tokens,
                                .vocab_size = tokenizer.vocab_size(),
                                .sampler = options.generate.sampler};
  if (!options.ignore_eos) request.end_ids = {tokenizer.eos_id()};
  if (chat != nullptr && chat->end().id) request.end_ids.push_back(*chat->end().id);
  return request;
}

std::vector<std::string> StopStrings(const GenerateOptions& options, const ChatPrompts* chat) {
  std::vector<std::string> stops;
  if (chat != nullptr && !chat->end().text.empty()) stops.push_back(chat->end().text);
  for (const std::string& given : options.stops) {
    HL_CHECK_AS(ExitCode::kUsage, !given.empty(), "--stop is empty. Use a text.");
    std::string stop;
    for (size_t i = 0; i < given.size(); ++i) {
      const char next = given[i] == '\\' && i + 1 < given.size() ? given[i + 1] : '\0';
      const char escaped = next == 'n' ? '\n' : next == 't' ? '\t' : next == '\\' ? '\\' : '\0';
      stop += escaped == '\0' ? given[i] : escaped;
      i += escaped == '\0' ? 0 : 1;
    }
    stops.push_back(stop);
  }
  return stops;
}

}  // namespace halflife::cli
