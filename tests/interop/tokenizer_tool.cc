// The program that the comparisons with other programs run:
//   tokenizer_tool encode TOKENIZER IN OUT plain|parse|whole
//                                            each line of IN, a JSON string, becomes a line of OUT:
//                                            {"ids": [1, 2], "text": what Decode makes of them};
//                                            whole: from its beginning, with bos if texts have it
//   tokenizer_tool export TOKENIZER FOLDER   writes FOLDER's Hugging Face tokenizer files, and
//                                            prints {"vocab_size": n, "bos": id, "eos": ..., "pad":
//                                            ...}
//   tokenizer_tool chat TOKENIZER TEMPLATE IN OUT
//                                            each line of IN, a list of messages, becomes a line of
//                                            OUT: {"ids": [1, 2], "assistant": [0, 1],
//                                            "prompt": ids with the generation prompt}
//   tokenizer_tool jinja TEMPLATE            prints the Jinja form of a chat template
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "data/chat/chat_tokens.h"
#include "data/tokenizer_folder.h"
#include "interop/hf_tokenizer.h"

namespace {

using nlohmann::json;

int Encode(const halflife::data::Tokenizer& tokenizer, const char* in_path, const char* out_path,
           const std::string& mode) {
  using halflife::data::SpecialTokens;
  const auto special = mode == "plain" ? SpecialTokens::kPlain : SpecialTokens::kParse;
  std::ifstream in(in_path);
  std::ofstream out(out_path);
  for (std::string line; std::getline(in, line);) {
    const auto text = json::parse(line).get<std::string>();
    const std::vector<int32_t> ids =
        mode == "whole" ? tokenizer.EncodeText(text, special) : tokenizer.Encode(text, special);
    out << json{{"ids", ids}, {"text", tokenizer.Decode(ids)}}.dump() << "\n";
  }
  return out.flush() ? 0 : 1;
}

int Chat(const halflife::data::Tokenizer& tokenizer, const char* name, const char* in_path,
         const char* out_path) {
  using halflife::data::GenerationPrompt;
  const halflife::data::ChatTemplate chat = halflife::data::RequireChatTemplate(name);
  std::ifstream in(in_path);
  std::ofstream out(out_path);
  for (std::string line; std::getline(in, line);) {
    const auto messages = halflife::data::ReadChatMessages(line, "");
    const auto encode = [&](GenerationPrompt prompt) {
      return halflife::data::EncodeChat(tokenizer, chat.Render(messages, prompt));
    };
    const auto [ids, assistant] = encode(GenerationPrompt::kOmit);
    const std::vector<int> mask(assistant.begin(), assistant.end());
    out << json{{"ids", ids}, {"assistant", mask}, {"prompt", encode(GenerationPrompt::kAdd).ids}}
               .dump()
        << "\n";
  }
  return out.flush() ? 0 : 1;
}

int Export(const halflife::data::Tokenizer& tokenizer, const char* folder) {
  halflife::interop::WriteHfTokenizer(tokenizer, folder);
  const halflife::data::SpecialIds ids = tokenizer.special_ids();
  std::cout << json{{"vocab_size", tokenizer.vocab_size()},
                    {"bos", ids.bos},
                    {"eos", ids.eos},
                    {"pad", ids.pad}}
                   .dump()
            << "\n";
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::string command = argc > 2 ? argv[1] : "";
    if (command == "encode" && argc == 6) {
      return Encode(*halflife::data::OpenTokenizer(argv[2]), argv[3], argv[4], argv[5]);
    }
    if (command == "export" && argc == 4) {
      return Export(*halflife::data::OpenTokenizer(argv[2]), argv[3]);
    }
    if (command == "chat" && argc == 6)
      return Chat(*halflife::data::OpenTokenizer(argv[2]), argv[3], argv[4], argv[5]);
    if (command == "jinja" && argc == 3) {
      std::cout << halflife::data::RequireChatTemplate(argv[2]).Jinja();
      return 0;
    }
  } catch (const halflife::Error& error) {
    std::cerr << error.what() << "\n";
    return static_cast<int>(error.code());
  }
  return 2;
}
