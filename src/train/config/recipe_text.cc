#include "train/config/recipe_text.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/message.h>
#include <google/protobuf/text_format.h>

#include <memory>
#include <optional>

#include "core/error.h"
#include "train/config/parse_errors.h"

namespace halflife::train {
namespace {

namespace pb = google::protobuf;

// Keeps the first error of a parser. Later errors are usually consequences of it.
class FirstError : public pb::io::ErrorCollector {
 public:
  void AddError(int line, pb::io::ColumnNumber column, const std::string& message) override {
    if (!error_) error_ = {.line = line, .column = column, .words = message};
  }
  const std::optional<ParserError>& error() const { return error_; }

 private:
  std::optional<ParserError> error_;
};

// Runs `parse(parser)`, which returns whether it succeeded. The error message begins with `name`.
template <typename Parse>
void WithErrors(const std::string& name, const ParsedText& parsed, const Parse& parse) {
  FirstError errors;
  pb::TextFormat::Parser parser;
  parser.RecordErrorsTo(&errors);
  if (parse(parser)) return;
  HL_FAIL(ExitCode::kUsage, name, ExplainParserError(parsed, errors.error().value()),
          "\n(`halflife recipe --explain` lists the fields; their schema is in proto/halflife/)");
}

bool NeedsQuotes(const pb::FieldDescriptor& field, const std::string& value) {
  return field.cpp_type() == pb::FieldDescriptor::CPPTYPE_STRING &&
         (value.empty() || value.front() != '"');
}

std::string Quoted(const std::string& value) {
  std::string text = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') text += '\\';
    text += c;
  }
  return text + "\"";
}

// Applies one `--set path=value`, following the names from the root to the field.
class Override {
 public:
  Override(const std::string& text, pb::Message& root) : text_(text), root_(root), message_(&root) {
    const size_t equals = text.find('=');
    HL_CHECK_AS(ExitCode::kUsage, equals != std::string::npos && equals > 0, "--set '", text,
                "' is not path=value. Write for example --set optimizer.lr=3e-4.");
    path_ = text.substr(0, equals);
    value_ = text.substr(equals + 1);
  }

  void Apply() {
    size_t begin = 0;
    while (true) {
      const size_t dot = path_.find('.', begin);
      const std::string name = path_.substr(begin, dot == std::string::npos ? dot : dot - begin);
      const pb::FieldDescriptor& field = Find(name);
      if (dot == std::string::npos) return Assign(field);
      Descend(field);
      begin = dot + 1;
    }
  }

 private:
  template <typename... Pieces>
  void Check(bool condition, const Pieces&... pieces) const {
    HL_CHECK_AS(ExitCode::kUsage, condition, "--set ", path_, ": ", pieces...);
  }

  const pb::FieldDescriptor& Find(const std::string& name) const {
    const pb::Descriptor& descriptor = *message_->GetDescriptor();
    const pb::FieldDescriptor* field = descriptor.FindFieldByName(name);
    Check(field != nullptr,
          field != nullptr ? "" : DescribeUnknown(descriptor, found_, name, LastName()));
    return *field;
  }

  // For example: --set 'eval.set=[{ name: ... }]', or =[] for none
  std::string ListExample(const pb::FieldDescriptor& list) const {
    const bool is_message = list.cpp_type() == pb::FieldDescriptor::CPPTYPE_MESSAGE;
    const bool is_string = list.cpp_type() == pb::FieldDescriptor::CPPTYPE_STRING;
    return Concat("--set '", PathBelow(found_, list.name()), "=[",
                  is_message  ? Concat("{ ", list.message_type()->field(0)->name(), ": ... }")
                  : is_string ? "\"...\""
                              : "1, 2",
                  "]', or =[] for none");
  }

  std::string LastName() const { return path_.substr(path_.rfind('.') + 1); }

  std::string DescribeUnknown(const pb::Descriptor& block, const std::string& path,
                              const std::string& name, const std::string& last) const {
    return DescribeUnknownName({.root = root_,
                                .block = block,
                                .path = path,
                                .name = name,
                                .last = last,
                                .form = RecipeForm::kSet});
  }

  void Descend(const pb::FieldDescriptor& field) {
    Check(!field.is_repeated(), "'", field.name(),
          "' is a list, and only a whole list can be set: ", ListExample(field));
    Check(field.cpp_type() == pb::FieldDescriptor::CPPTYPE_MESSAGE, "'", field.name(),
          "' has no fields");
    const pb::Reflection& reflection = *message_->GetReflection();
    if (const pb::OneofDescriptor* variants = VariantsOf(*message_->GetDescriptor())) {
      const pb::FieldDescriptor* chosen = reflection.GetOneofFieldDescriptor(*message_, variants);
      const size_t end = path_.find("." + field.name() + ".");
      Check(chosen == nullptr || chosen == &field, "the recipe has ",
            chosen == nullptr ? "" : chosen->name(), " there. Add --set ", path_.substr(0, end),
            "=", field.name(), " before it to select ", field.name(), " with its defaults.");
    }
    message_ = reflection.MutableMessage(message_, &field);
    found_ = PathBelow(found_, field.name());
  }

  void Assign(const pb::FieldDescriptor& field) {
    const pb::Reflection& reflection = *message_->GetReflection();
    const bool is_message = field.cpp_type() == pb::FieldDescriptor::CPPTYPE_MESSAGE;
    if (field.is_repeated() || (is_message && value_.starts_with("{"))) {
      Check(!field.is_repeated() || value_.starts_with("["), "'", field.name(),
            "' is a list. Write ", ListExample(field));
      reflection.ClearField(message_, &field);
      return Merge(field, value_);
    }
    if (!is_message) return Merge(field, NeedsQuotes(field, value_) ? Quoted(value_) : value_);
    const pb::Descriptor& group = *field.message_type();
    const ForeignName* foreign = FindForeignName(path_, value_);
    Check(VariantsOf(group) != nullptr, "'", field.name(),
          "' is a group. Set one of its fields: ", Join(FieldNames(group), ", "),
          foreign != nullptr && foreign->is_missing()
              ? Concat(". About '", value_, "': ", AnswerTo(*foreign, RecipeForm::kSet))
              : "");
    const pb::FieldDescriptor* variant = group.FindFieldByName(value_);
    Check(variant != nullptr, variant != nullptr ? "" : DescribeUnknown(group, path_, value_, ""));
    pb::Message* choice = reflection.MutableMessage(message_, &field);
    choice->Clear();
    choice->GetReflection()->MutableMessage(choice, variant);
  }

  // Merges `value` in the text format.
  void Merge(const pb::FieldDescriptor& field, const std::string& value) {
    const std::string text = Concat(field.name(), ": ", value);
    WithErrors(
        Concat("--set ", text_, ": "),
        {.text = text,
         .message = *message_->GetDescriptor(),
         .root = root_,
         .path = found_,
         .form = RecipeForm::kSet},
        [&](pb::TextFormat::Parser& parser) { return parser.MergeFromString(text, message_); });
  }

  const std::string& text_;
  const pb::Message& root_;
  std::string path_, value_;
  pb::Message* message_;  // The message that the names so far lead to.
  std::string found_;     // The path of message_.
};

// Empties the lists of `message` that a text sets. `hybrid: []` leaves no other trace.
void ClearGivenLists(const pb::TextFormat::ParseInfoTree& given, pb::Message& message) {
  const pb::Descriptor& descriptor = *message.GetDescriptor();
  const pb::Reflection& reflection = *message.GetReflection();
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const pb::FieldDescriptor* field = descriptor.field(i);
    if (field->is_repeated()) {
      if (given.GetLocation(field, 0).line >= 0) reflection.ClearField(&message, field);
    } else if (field->message_type() != nullptr && reflection.HasField(message, field)) {
      if (const pb::TextFormat::ParseInfoTree* below = given.GetTreeForNested(field, -1))
        ClearGivenLists(*below, *reflection.MutableMessage(&message, field));
    }
  }
}

}  // namespace

void MergeRecipe(const std::string& text, const std::string& name, pb::Message& message) {
  const std::unique_ptr<pb::Message> changes(message.New());
  pb::TextFormat::ParseInfoTree given;
  WithErrors(Concat(name, ":"),
             {.text = text,
              .message = *message.GetDescriptor(),
              .root = *changes,
              .path = "",
              .form = RecipeForm::kFile},
             [&](pb::TextFormat::Parser& parser) {
               parser.WriteLocationsTo(&given);
               return parser.ParseFromString(text, changes.get());
             });
  ClearGivenLists(given, message);
  message.MergeFrom(*changes);
}

void ApplyOverride(const std::string& assignment, pb::Message& message) {
  Override(assignment, message).Apply();
}

}  // namespace halflife::train
