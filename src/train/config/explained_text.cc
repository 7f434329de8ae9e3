#include "train/config/explained_text.h"

#include <google/protobuf/text_format.h>
#include <halflife/run_config.pb.h>
#include <halflife/schema.pb.h>

#include <sstream>
#include <vector>

#include "core/error.h"

namespace halflife::train {
namespace {

namespace pb = google::protobuf;

constexpr size_t kWidth = 100;

// Appends the help as comment lines of at most kWidth columns.
void PrintComment(const std::string& help, const std::string& indent, std::string& text) {
  std::string line = indent + "#";
  std::istringstream words(help);
  for (std::string word; words >> word;) {
    if (line.size() + 1 + word.size() > kWidth) {
      text += line + "\n";
      line = indent + "#";
    }
    line += " " + word;
  }
  text += line + "\n";
}

void PrintFields(const pb::Message& message, const std::string& indent, std::string& text);

void PrintValue(const pb::Message& message, const pb::FieldDescriptor& field, int index,
                const std::string& indent, std::string& text) {
  const pb::Reflection& values = *message.GetReflection();
  if (field.cpp_type() == pb::FieldDescriptor::CPPTYPE_MESSAGE) {
    text += indent + field.name() + " {\n";
    PrintFields(index < 0 ? values.GetMessage(message, &field)
                          : values.GetRepeatedMessage(message, &field, index),
                indent + "  ", text);
    text += indent + "}\n";
    return;
  }
  std::string value;
  pb::TextFormat::PrintFieldValueToString(message, &field, index, &value);
  const std::string line = Concat(indent, field.name(), ": ", value);
  const std::string& help = field.options().GetExtension(proto::help);
  const bool fits = line.size() + 4 + help.size() <= kWidth;
  if (!help.empty() && !fits) PrintComment(help, indent, text);
  text += line + (!help.empty() && fits ? "  # " + help : "") + "\n";
}

void PrintFields(const pb::Message& message, const std::string& indent, std::string& text) {
  const pb::Reflection& values = *message.GetReflection();
  std::vector<const pb::FieldDescriptor*> fields;
  values.ListFields(message, &fields);
  for (const pb::FieldDescriptor* const field : fields) {
    const int count = field->is_repeated() ? values.FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i)
      PrintValue(message, *field, field->is_repeated() ? i : -1, indent, text);
  }
}

}  // namespace

std::string ExplainedText(const RunConfig& config) {
  proto::RunConfig message;
  HL_CHECK(pb::TextFormat::ParseFromString(ToText(config), &message));
  std::string text;
  PrintFields(message, "", text);
  return text;
}

}  // namespace halflife::train
