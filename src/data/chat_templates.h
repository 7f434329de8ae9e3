// The chat templates that come with a tokenizer: Jinja source that converts the messages of a chat
// into a prompt. They are kept as they are, so that an exported model has the templates of the
// imported one. No template is run.
//
//   const ChatTemplates templates = ReadChatTemplates("Qwen2-0.5B-Instruct/");
//   WriteChatTemplates(templates, "export/");
//
// The template "default" is the file chat_template.jinja, and any other is
// additional_chat_templates/NAME.jinja. This is how transformers writes them.
#pragma once

#include <filesystem>
#include <map>
#include <string>

namespace halflife::data {

using ChatTemplates = std::map<std::string, std::string>;  // source by name

// Reads the files above. Without any, reads `chat_template` of tokenizer_config.json, which is a
// template or a list of named ones. Error kData for a `chat_template` of another form, a name that
// is not usable as a file name, or a template of more than 16 MiB.
ChatTemplates ReadChatTemplates(const std::filesystem::path& folder);

// `folder` must exist. Throws Error kData on failure.
void WriteChatTemplates(const ChatTemplates& templates, const std::filesystem::path& folder);

}  // namespace halflife::data
