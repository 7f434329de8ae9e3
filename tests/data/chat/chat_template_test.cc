// Chat templates: pieces, detection, messages in JSON, and errors. tests/interop/chat_compare.py
// compares texts, ids and masks with transformers.
#include "data/chat/chat_template.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "data/chat/chat_tokens.h"
#include "data/sentencepiece_tokenizer.h"
#include "data/small_bpe.h"
#include "interop/small_sentencepiece.h"
#include "support/expect_error.h"

namespace halflife::data {
namespace {

// Returns the rendered text, with bos as <s>, eos as </s>, and what an assistant writes in
// brackets.
std::string Marked(const std::string& name, const std::vector<ChatMessage>& messages,
                   GenerationPrompt prompt = GenerationPrompt::kOmit) {
  std::string text;
  bool open = false;
  const auto mark = [&](bool assistant) {
    if (assistant != open) text += assistant ? "{" : "}";
    open = assistant;
  };
  for (const ChatPiece& piece : RequireChatTemplate(name).Render(messages, prompt)) {
    mark(piece.assistant);
    text += piece.kind == ChatPiece::Kind::kBos   ? "<s>"
            : piece.kind == ChatPiece::Kind::kEos ? "</s>"
                                                  : piece.text;
  }
  mark(false);
  return text;
}

TEST(ChatTemplate, MarksTheTextOfAssistants) {
  const std::vector<ChatMessage> chat = {{"user", "2 + 2?"}, {"assistant", " 4"}};
  EXPECT_EQ(Marked("chatml", chat),
            "<|im_start|>user\n2 + 2?<|im_end|>\n<|im_start|>assistant\n{ 4<|im_end|>}\n");
  EXPECT_EQ(Marked("llama3", chat),
            "<s><|start_header_id|>user<|end_header_id|>\n\n2 + 2?<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n{4<|eot_id|>}");
  EXPECT_EQ(Marked("mistral", chat), "<s> [INST] 2 + 2? [/INST]{  4</s>}");
  EXPECT_EQ(Marked("zephyr", chat), "<|user|>\n2 + 2?</s>\n<|assistant|>\n{ 4</s>}\n");
  EXPECT_TRUE(Marked("qwen", chat).starts_with("<|im_start|>system\nYou are Qwen"));
}

TEST(ChatTemplate, GenerationPromptsAndSystemMessages) {
  const std::vector<ChatMessage> chat = {{"system", "S"}, {"user", "U"}};
  EXPECT_EQ(Marked("chatml", chat, GenerationPrompt::kAdd),
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n"
            "<|im_start|>assistant\n");
  EXPECT_EQ(Marked("qwen", chat), Marked("chatml", chat));
  EXPECT_EQ(Marked("mistral", chat, GenerationPrompt::kAdd), "<s> [INST] S\n\nU [/INST]");
  EXPECT_EQ(RequireChatTemplate("llama3").end_of_turn(), "<|eot_id|>");
  EXPECT_EQ(RequireChatTemplate("zephyr").end_of_turn(), "") << "eos";
}

// A prompt is the beginning of the conversation that it asks for.
TEST(ChatTemplate, PromptsAreBeginnings) {
  for (const std::string& name : ChatTemplateNames()) {
    const std::string prompt = Marked(name, {{"user", "U"}}, GenerationPrompt::kAdd);
    EXPECT_TRUE(Marked(name, {{"user", "U"}, {"assistant", "A"}}).starts_with(prompt + "{"))
        << name;
  }
}

TEST(ChatTemplate, DetectsItsOwnJinja) {
  EXPECT_EQ(ChatTemplateNames(),
            (std::vector<std::string>{"chatml", "llama3", "qwen", "mistral", "zephyr"}))
      << "prepare --template lists them too";
  for (const std::string& name : ChatTemplateNames())
    EXPECT_EQ(DetectChatTemplate({{"default", RequireChatTemplate(name).Jinja()}})->name, name);
  EXPECT_FALSE(DetectChatTemplate({}));
  EXPECT_FALSE(DetectChatTemplate({{"default", "{{ messages }}"}}));
  EXPECT_FALSE(DetectChatTemplate({{"rag", RequireChatTemplate("chatml").Jinja()}}));
}

TEST(ChatTemplate, RefusesRoles) {
  const auto refuse = [](const char* name, const std::vector<ChatMessage>& messages,
                         const char* words) {
    EXPECT_HL_ERROR(
        RequireChatTemplate(name).Render(messages, GenerationPrompt::kOmit, "chats.jsonl:3: "),
        ExitCode::kData, "chats.jsonl:3: ", words);
  };
  refuse("chatml", {}, "the conversation has no messages");
  refuse("chatml", {{"user", ""}, {"tool", ""}},
         "message 2 has the role 'tool', which the template chatml does not have here. Use system, "
         "user or assistant.");
  refuse("mistral", {{"user", ""}, {"system", ""}},
         "message 2 has the role 'system', which the template mistral does not have here. Use "
         "system, user or assistant, and system only in the first message.");
  refuse("mistral", {{"system", ""}, {"user", ""}, {"user", ""}},
         "message 3 has the role 'user'. In the template mistral, user and assistant take turns, "
         "and the user begins. Use the role assistant here, or another template.");
  EXPECT_HL_ERROR(RequireChatTemplate("vicuna"), ExitCode::kUsage,
                  "'vicuna' is not a chat template. Use one of chatml, llama3, qwen");
}

TEST(ChatMessages, ReadsTheFormsOfOpenAiAndShareGpt) {
  const auto messages =
      ReadChatMessages(R"([{"role": "user", "content": "a\nb", "name": "x"}])", "");
  ASSERT_EQ(messages.size(), 1);
  EXPECT_EQ(messages[0].role, "user");
  EXPECT_EQ(messages[0].content, "a\nb");
  const auto refuse = [](const std::string& json, const char* words) {
    EXPECT_HL_ERROR(ReadChatMessages(json, "c:7: "), ExitCode::kData, "c:7: ", words,
                    R"(Use [{"role": "user", "content": "..."}, ...].)");
  };
  const auto shared = ReadChatMessages(
      R"([{"from": "system", "value": "s"}, {"from": "human", "value": "a"},
          {"from": "gpt", "value": "b", "weight": 1}])",
      "");
  ASSERT_EQ(shared.size(), 3);
  EXPECT_EQ(shared[0].role, "system");
  EXPECT_EQ(shared[1].role, "user");
  EXPECT_EQ(shared[2].role, "assistant");
  EXPECT_EQ(shared[2].content, "b");
  const auto parts = ReadChatMessages(
      R"([{"role": "user",
           "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}])",
      "");
  EXPECT_EQ(parts.at(0).content, "ab");
  refuse(R"([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])",
         "the field 'content' of message 1 is a JSON array, not a string");
  refuse(R"([{"role": "user", "content": []}])", "is a JSON array, not a string");
  refuse(R"([{"from": "human"}])", "message 1 has no field 'content'");
  refuse(R"([{"from": 1, "value": "a"}])", "the field 'role' of message 1 is a JSON number");
  refuse("{}", "the messages are a JSON object, not a list");
  refuse("[", "the messages are a JSON syntax error, not a list");
  refuse(R"(["a"])", "message 1 is a JSON string, not an object");
  refuse(R"([{"role": "user"}])", "message 1 has no field 'content'");
  refuse(R"([{"role": "user", "content": null}])",
         "the field 'content' of message 1 is a JSON null, not a string");
  refuse(std::string(100, '[') + std::string(100, ']'), "nested more than 64 deep");
}

// A token that contains text on both sides of a border belongs to the assistant.
TEST(EncodeChat, MarksTokens) {
  const auto bpe = test::MakeBpe(test::SmallBpeJson());
  const auto encode = [&](std::vector<ChatPiece> pieces) { return EncodeChat(*bpe, pieces); };
  using Kind = ChatPiece::Kind;
  const ChatTokens tokens = encode({{.kind = Kind::kBos},
                                    {.text = "<|end|>xa"},
                                    {.text = "bcd", .assistant = true},
                                    {.kind = Kind::kEos, .assistant = true},
                                    {.text = "y"}});
  EXPECT_EQ(bpe->special_ids().bos, -1) << "so it is left out";
  std::vector<int32_t> ids = bpe->Encode("xabcd");
  ids.insert(ids.begin(), test::kEnd);
  ids.push_back(test::kEnd);
  ids.push_back('y');
  EXPECT_EQ(tokens.ids, ids);
  std::vector<bool> assistant(ids.size(), true);
  assistant[0] = assistant[1] = false;
  assistant.back() = false;
  EXPECT_EQ(tokens.assistant, assistant) << "ab is one token, or abc";
}

// The definition: all text is encoded as one, and that before each border again.
ChatTokens EncodeAsOne(const Tokenizer& tokenizer, const std::vector<ChatPiece>& pieces) {
  std::string text;
  for (const ChatPiece& piece : pieces) text += piece.text;
  ChatTokens tokens = {.ids = tokenizer.Encode(text, SpecialTokens::kParse), .assistant = {}};
  tokens.assistant.resize(tokens.ids.size());
  const auto common = [&](size_t position) {
    const auto before = tokenizer.Encode(text.substr(0, position), SpecialTokens::kParse);
    const auto same = std::ranges::mismatch(tokens.ids, before);
    const auto num_same = static_cast<size_t>(same.in1 - tokens.ids.begin());
    const bool cuts = same.in2 != before.end() && position < text.size();
    return std::pair(num_same, std::min(num_same + (cuts ? 1 : 0), tokens.ids.size()));
  };
  size_t end = 0;
  for (const ChatPiece& piece : pieces) {
    const size_t begin = end;
    end += piece.text.size();
    if (!piece.assistant) continue;
    for (size_t i = common(begin).first; i < common(end).second; ++i) tokens.assistant[i] = true;
  }
  return tokens;
}

// Encodes random pieces of names, parts of names, white space and words.
void ExpectPartsAsOneText(const Tokenizer& tokenizer) {
  const std::vector<std::string> words = {
      "<|end|>", "<|pad|>", "<tool>", "<|en", "d|>",      "<|", " ",  "\n",    "hello", " hello",
      "abc",     "ab",      "c",      "</s>", "\xCC\x81", "1",  " 1", "<|end", "|>",    "</"};
  std::mt19937 random(1);
  const auto below = [&](size_t count) { return random() % count; };
  for (int round = 0; round < 3000; ++round) {
    std::vector<ChatPiece> pieces(1 + below(8));
    for (ChatPiece& piece : pieces) {
      piece.assistant = below(2) == 0;
      for (size_t i = below(5); i > 0; --i) piece.text += words[below(words.size())];
    }
    const ChatTokens tokens = EncodeChat(tokenizer, pieces);
    const ChatTokens expected = EncodeAsOne(tokenizer, pieces);
    ASSERT_EQ(tokens.ids, expected.ids) << round;
    ASSERT_EQ(tokens.assistant, expected.assistant) << round;
  }
}

TEST(EncodeChat, PartsAreEncodedAsOneText) {
  nlohmann::ordered_json json = test::SmallBpeJson(), strips = json;
  json["normalizer"] = {{"type", "NFC"}};
  // These tokens also match white space around them.
  strips["added_tokens"][1]["lstrip"] = true;
  strips["added_tokens"][0]["rstrip"] = true;
  strips["added_tokens"][2]["normalized"] = true;
  for (const auto& tokenizer : {test::MakeBpe(json), test::MakeBpe(strips), MakeByteTokenizer()})
    ExpectPartsAsOneText(*tokenizer);
}

TEST(EncodeChat, PartsOfSentencePieceAreEncodedAsOneText) {
  SKIP_WITHOUT_SENTENCEPIECE();
  const std::vector<std::string> lines = {"hello hello abc", "<|end|> <tool> 1 ab",
                                          "c 1 abc hello"};
  const std::string model = TrainSentencePiece(lines, 278);
  for (const PrefixSpace rule : {PrefixSpace::kModel, PrefixSpace::kAlways, PrefixSpace::kFirst})
    ExpectPartsAsOneText(*MakeSentencePieceTokenizer(model, rule));
}

// The text after bos does not begin the conversation.
TEST(EncodeChat, SpacesInFrontOfTextAreAddedOnce) {
  SKIP_WITHOUT_SENTENCEPIECE();
  const auto tokenizer = MakeSentencePieceTokenizer(
      interop::test::SmallSentencePiece(true).SerializeAsString(), PrefixSpace::kFirst);
  const ChatPiece bos = {.kind = ChatPiece::Kind::kBos}, text = {.text = "a"};
  const int a = 259, space = 265;
  EXPECT_EQ(EncodeChat(*tokenizer, {bos, text}).ids, (std::vector<int32_t>{1, a}));
  EXPECT_EQ(EncodeChat(*tokenizer, {text, bos, text}).ids, (std::vector<int32_t>{space, a, 1, a}));
}

TEST(EncodeChat, NamesWithoutToken) {
  const auto names = NamesWithoutToken(*MakeByteTokenizer(), RequireChatTemplate("chatml"));
  EXPECT_EQ(names, (std::vector<std::string>{"<|im_end|>", "<|im_start|>"}));
  EXPECT_TRUE(NamesWithoutToken(*MakeByteTokenizer(), RequireChatTemplate("zephyr")).empty());
}

}  // namespace
}  // namespace halflife::data
