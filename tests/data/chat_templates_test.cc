// Chat templates are copied with a tokenizer, from a Hugging Face folder to datasets and runs.
#include "data/tokenizer.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "data/manifest.h"
#include "data/small_bpe.h"
#include "data/small_datasets.h"
#include "data/tokenizer_folder.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace halflife::data {
namespace {

namespace fs = std::filesystem;
using test::ReadText;
using test::WriteText;

class ChatTemplatesTest : public testing::Test {
 protected:
  void WriteBpe(const std::string& tokenizer_config) const {
    WriteText(dir_ / "tokenizer.json", test::SmallBpeJson().dump());
    WriteText(dir_ / "tokenizer_config.json", tokenizer_config);
  }
  halflife::test::TempDir dir_;
};

TEST_F(ChatTemplatesTest, FromTokenizerConfig) {
  EXPECT_TRUE(ReadChatTemplates(dir_.path()).empty());
  WriteText(dir_ / "tokenizer_config.json", R"({"chat_template": null})");
  EXPECT_TRUE(ReadChatTemplates(dir_.path()).empty());
  WriteText(dir_ / "tokenizer_config.json", R"({"chat_template": "{{ m }}"})");
  EXPECT_EQ(ReadChatTemplates(dir_.path()), (ChatTemplates{{"default", "{{ m }}"}}));
  WriteText(dir_ / "tokenizer_config.json",
            R"({"chat_template": [{"name": "default", "template": "d"},
                                  {"name": "tool_use", "template": "t"}]})");
  EXPECT_EQ(ReadChatTemplates(dir_.path()), (ChatTemplates{{"default", "d"}, {"tool_use", "t"}}));
}

TEST_F(ChatTemplatesTest, FilesOverruleTokenizerConfig) {
  WriteText(dir_ / "tokenizer_config.json", R"({"chat_template": "old"})");
  WriteChatTemplates({{"default", "new\n"}, {"rag", "r"}}, dir_.path());
  EXPECT_EQ(ReadText(dir_ / "chat_template.jinja"), "new\n");
  EXPECT_EQ(ReadText(dir_ / "additional_chat_templates/rag.jinja"), "r");
  EXPECT_EQ(ReadChatTemplates(dir_.path()), (ChatTemplates{{"default", "new\n"}, {"rag", "r"}}));
}

TEST_F(ChatTemplatesTest, RefusesWhatCannotBeKept) {
  const auto refuse = [&](const char* config, const char* words) {
    WriteText(dir_ / "tokenizer_config.json", config);
    EXPECT_HL_ERROR(ReadChatTemplates(dir_.path()), ExitCode::kData, "tokenizer_config.json",
                    words);
  };
  refuse(R"({"chat_template": 3})", "neither a string nor a list");
  refuse(R"({"chat_template": [{"name": "a"}]})", "neither a string nor a list");
  refuse(R"({"chat_template": [{"name": "../../a", "template": ""}]})",
         "the chat template '../../a' cannot be a file. Use a name of at most 100 letters");
}

// From a Hugging Face folder into a dataset, and from there into a run.
TEST_F(ChatTemplatesTest, GoWithTheTokenizer) {
  const ChatTemplates templates = {{"default", "{% for m in messages %}"}, {"tool_use", "t"}};
  WriteBpe(R"({"eos_token": "<|end|>",
               "chat_template": [{"name": "default", "template": "{% for m in messages %}"},
                                 {"name": "tool_use", "template": "t"}]})");
  for (const fs::path& opened : {dir_.path(), dir_ / "tokenizer.json"})
    EXPECT_EQ(OpenTokenizer(opened.string())->chat_templates(), templates) << opened;
  const auto tokenizer = OpenTokenizer(dir_.path().string());
  fs::create_directory(dir_ / "data");
  Manifest manifest;
  SaveTokenizer(*tokenizer, dir_ / "data", manifest);
  std::vector<std::string> names;
  for (const FileRecord& file : manifest.tokenizer_files) names.push_back(file.name);
  EXPECT_EQ(names, (std::vector<std::string>{"additional_chat_templates/tool_use.jinja",
                                             "chat_template.jinja", "kind.txt", "tokenizer.json",
                                             "tokenizer_config.json"}));
  EXPECT_EQ(LoadTokenizer(dir_ / "data/tokenizer")->chat_templates(), templates);
}

}  // namespace
}  // namespace halflife::data
