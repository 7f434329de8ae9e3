#include "serve/api_request.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "core/concat.h"
#include "core/error.h"
#include "data/chat/chat_tokens.h"
#include "serve/fields.h"

namespace halflife::serve {
namespace {

constexpr int64_t kMaxAlternatives = 20;  // logprobs and top_logprobs
constexpr size_t kMaxStops = 16;
constexpr size_t kMaxMessages = 4096;

void ReadModel(Fields& fields, const ApiLimits& limits) {
  const auto model = fields.String("model");
  if (model && *model != limits.model)
    throw ApiError(
        404, Concat("There is no model '", model->substr(0, 100), "'. Use '", limits.model, "'."),
        "model", "model_not_found");
}

uint64_t RandomSeed() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

// Reads the fields that completions and chats share.
void ReadCommon(Fields& fields, const ApiLimits& limits, ApiCall& call) {
  ReadModel(fields, limits);
  call.sampler.temperature = fields.Number("temperature", 0, 100).value_or(1);
  call.sampler.top_p = fields.Number("top_p", 0, 1).value_or(1);
  if (call.sampler.top_p == 0) fields.Refuse("top_p", "0 keeps no token. Use a number above 0.");
  call.sampler.top_k =
      static_cast<int>(fields.Integer("top_k", -1, std::numeric_limits<int>::max()).value_or(0));
  call.sampler.top_k = std::max(call.sampler.top_k, 0);  // vLLM's clients send -1 for all tokens.
  call.sampler.repetition_penalty = fields.Number("repetition_penalty", 0.01, 100).value_or(1);
  call.sampler.frequency_penalty = fields.Number("frequency_penalty", -2, 2).value_or(0);
  call.sampler.presence_penalty = fields.Number("presence_penalty", -2, 2).value_or(0);
  const auto seed = fields.Integer("seed", std::numeric_limits<int64_t>::min(),
                                   std::numeric_limits<int64_t>::max());
  call.sampler.seed = seed ? static_cast<uint64_t>(*seed) : RandomSeed();
  call.num_choices = fields.Integer("n", 1, limits.max_texts).value_or(1);
  call.stops = fields.Strings("stop", kMaxStops);
  call.ignore_eos = fields.Boolean("ignore_eos").value_or(false);
  call.stream = fields.Boolean("stream").value_or(false);
  if (const nlohmann::json* given = fields.Find("stream_options")) {
    if (!call.stream) fields.Refuse("stream_options", "needs stream: true.");
    Fields options(*given, "stream_options");
    call.include_usage = options.Boolean("include_usage").value_or(false);
    options.Ignore({"include_obfuscation"});
    options.RejectOthers();
  }
  fields.Only("logit_bias", nlohmann::json::object());
  fields.Ignore({"user", "metadata", "store", "service_tier", "prompt_cache_key",
                 "prompt_cache_retention", "safety_identifier"});
}

// Reads the ids of a prompt, [1, 2, 3].
std::vector<int32_t> ReadIds(const Fields& fields, const nlohmann::json& list, int64_t vocab) {
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  for (const nlohmann::json& id : list) {
    const bool fits = id.is_number_unsigned() && id.get<uint64_t>() < static_cast<uint64_t>(vocab);
    if (!fits)
      fields.Refuse("prompt", Concat(Shown(id), " is not a token id. Use ids of 0 to ", vocab - 1,
                                     ", or a string."));
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

void CheckPrompt(const Fields& fields, const char* field, const ApiPrompt& prompt,
                 const ApiLimits& limits) {
  if (prompt.ids.empty())
    fields.Refuse(field, "a prompt is empty. Send at least one character or token.");
  if (std::ssize(prompt.ids) > limits.max_prompt_tokens)
    throw ApiError(400,
                   Concat("A prompt has ", prompt.ids.size(), " tokens. Use at most ",
                          limits.max_prompt_tokens, "."),
                   field, "context_length_exceeded");
}

ApiPrompt TextPrompt(const std::string& text, const data::Tokenizer& tokenizer) {
  return {.ids = tokenizer.EncodeText(text, data::SpecialTokens::kParse), .text = text};
}

void ReadPrompts(Fields& fields, const ApiLimits& limits, const data::Tokenizer& tokenizer,
                 ApiCall& call) {
  const nlohmann::json& given =
      fields.Require("prompt", "a string, a list of token ids, or a list of either");
  const auto add = [&](const nlohmann::json& prompt) {
    if (prompt.is_string()) {
      call.prompts.push_back(TextPrompt(prompt.get<std::string>(), tokenizer));
    } else if (prompt.is_array()) {
      ApiPrompt ids = {.ids = ReadIds(fields, prompt, limits.vocab_size), .text = {}};
      ids.text = tokenizer.Decode(ids.ids);
      call.prompts.push_back(std::move(ids));
    } else {
      fields.Refuse("prompt", Concat(Shown(prompt),
                                     " is not a prompt. Use a string, a list of "
                                     "token ids, or a list of either."));
    }
    CheckPrompt(fields, "prompt", call.prompts.back(), limits);
  };
  const bool several =
      given.is_array() && !given.empty() && (given[0].is_string() || given[0].is_array());
  if (!several) return add(given);
  if (std::ssize(given) * call.num_choices > limits.max_texts)
    fields.Refuse("prompt", Concat(given.size(), " prompts with n ", call.num_choices,
                                   " are too many texts. Use at most ", limits.max_texts, "."));
  for (const nlohmann::json& prompt : given) add(prompt);
}

// Reads the text of a message: a string, or a list of parts {"type": "text", "text": ...}.
std::string ReadContent(Fields& message) {
  const nlohmann::json& content = message.Require("content", "a string");
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array())
    message.Refuse("content", Concat(Shown(content), " is not a string or a list of parts."));
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    Fields part(content[i], Concat(message.PathOf("content"), "[", i, "]"));
    const auto type = part.String("type");
    if (type != "text")
      part.Refuse("type", Concat("'", type.value_or("").substr(0, 40),
                                 "' is not supported. Use \"text\"."));
    part.Require("text", "a string");
    text += *part.String("text");
    part.RejectOthers();
  }
  return text;
}

std::vector<data::ChatMessage> ReadMessages(Fields& fields) {
  const nlohmann::json& given = fields.Require("messages", "a list of messages");
  if (!given.is_array() || given.empty() || given.size() > kMaxMessages)
    fields.Refuse("messages",
                  Concat(Shown(given), " is not a list of 1 to ", kMaxMessages, " messages."));
  std::vector<data::ChatMessage> messages;
  for (size_t i = 0; i < given.size(); ++i) {
    Fields message(given[i], Concat("messages[", i, "]"));
    message.Require("role", "system, user or assistant");
    const std::string role = *message.String("role");
    if (role != "system" && role != "developer" && role != "user" && role != "assistant")
      message.Refuse("role", Concat("'", role.substr(0, 40),
                                    "' is not supported. Use system, user or assistant."));
    messages.push_back(
        {.role = role == "developer" ? "system" : role, .content = ReadContent(message)});
    message.Only("type", "text");  // Older versions of lm-evaluation-harness send it.
    message.Only("tool_calls", nlohmann::json::array());
    message.Ignore({"name", "refusal", "annotations"});
    message.RejectOthers();
  }
  return messages;
}

ApiPrompt ChatPrompt(const std::vector<data::ChatMessage>& messages,
                     const data::Tokenizer& tokenizer, const data::ChatTemplate& chat) {
  try {
    const auto pieces = chat.Render(messages, data::GenerationPrompt::kAdd);
    return {.ids = data::EncodeChat(tokenizer, pieces).ids, .text = {}};
  } catch (const Error& error) {
    throw ApiError(400, Concat("messages: ", error.message()), "messages");
  }
}

void AddEndOfTurn(const data::EndOfTurn& end, ApiCall& call) {
  if (end.id) call.stop_ids.push_back(*end.id);
  if (!end.text.empty()) call.stops.push_back(end.text);
}

}  // namespace

ApiCall ReadCompletion(const std::string& body, const ApiLimits& limits,
                       const data::Tokenizer& tokenizer) {
  Fields fields(body);
  ApiCall call;
  ReadCommon(fields, limits, call);
  call.max_tokens = fields.Integer("max_tokens", 0, limits.max_new_tokens)
                        .value_or(std::min<int64_t>(16, limits.max_new_tokens));
  call.top_logprobs =
      static_cast<int>(fields.Integer("logprobs", 0, kMaxAlternatives).value_or(-1));
  call.echo = fields.Boolean("echo").value_or(false);
  const auto best_of = fields.Integer("best_of", 1, limits.max_texts);
  if (best_of && *best_of != call.num_choices)
    fields.Refuse("best_of", Concat(*best_of, " is not n (", call.num_choices,
                                    "). Leave it out: all texts are returned."));
  fields.Only("suffix", "");
  ReadPrompts(fields, limits, tokenizer, call);
  fields.RejectOthers();
  return call;
}

ApiCall ReadChatCompletion(const std::string& body, const ApiLimits& limits,
                           const data::Tokenizer& tokenizer, const data::ChatTemplate& chat) {
  Fields fields(body);
  ApiCall call = {.is_chat = true};
  ReadCommon(fields, limits, call);
  const auto old_name = fields.Integer("max_tokens", 1, limits.max_new_tokens);
  call.max_tokens = fields.Integer("max_completion_tokens", 1, limits.max_new_tokens)
                        .value_or(old_name.value_or(limits.max_new_tokens));
  const auto alternatives = fields.Integer("top_logprobs", 0, kMaxAlternatives);
  const bool logprobs = fields.Boolean("logprobs").value_or(false);
  if (alternatives.value_or(0) > 0 && !logprobs)
    fields.Refuse("top_logprobs", "needs logprobs: true.");
  if (logprobs) call.top_logprobs = static_cast<int>(alternatives.value_or(0));
  if (const nlohmann::json* format = fields.Find("response_format")) {
    Fields options(*format, "response_format");
    options.Only("type", "text");
    options.RejectOthers();
  }
  fields.Only("tools", nlohmann::json::array());
  fields.Only("functions", nlohmann::json::array());
  // Without tools, "auto" is "none".
  if (fields.Find("tool_choice") == nullptr || *fields.Find("tool_choice") != "auto")
    fields.Only("tool_choice", "none");
  fields.Only("function_call", "none");
  fields.Only("modalities", nlohmann::json::array({"text"}));
  fields.Ignore({"parallel_tool_calls"});
  call.prompts.push_back(ChatPrompt(ReadMessages(fields), tokenizer, chat));
  CheckPrompt(fields, "messages", call.prompts.front(), limits);
  AddEndOfTurn(data::EndOfTurnOf(tokenizer, chat), call);
  fields.RejectOthers();
  return call;
}

}  // namespace halflife::serve
