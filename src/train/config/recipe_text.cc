#include "train/config/recipe_text.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/message.h>
#include <google/protobuf/text_format.h>

#include <regex>

#include "core/error.h"
#include "core/nearest.h"

namespace halflife::train {
namespace {

namespace pb = google::protobuf;

// Names that recipes had before models were made of parts.
struct FormerName {
  const char *message, *field, *today, *set;
};
constexpr FormerName kFormerNames[] = {
    {"ModelConfig", "mlp_dim", "channel_mixer { swiglu { width: 512 } }",
     "model.channel_mixer.swiglu.width=512"},
    {"ModelConfig", "mlp_ratio", "channel_mixer { swiglu { ratio: 4 } }",
     "model.channel_mixer.swiglu.ratio=4"},
    {"ModelConfig", "mlp_bias", "channel_mixer { swiglu { bias: true } }",
     "model.channel_mixer.swiglu.bias=true"},
    {"ModelConfig", "norm_eps", "norm { rms_norm { eps: 1e-6 } }", "model.norm.rms_norm.eps=1e-6"},
    {"ModelConfig", "tie_embeddings", "head { tied: true }", "model.head.tied=true"},
    {"MixerConfig", "name", "mixer { gla {} }", "model.mixer=gla"},
    {"MixerConfig", "options", "mixer { gla { num_heads: 4 } }", "model.mixer.gla.num_heads=4"},
    {"Retention", "rotary_base", "retention { rope_theta: 10000 }",
     "model.mixer.retention.rope_theta=10000"},
};

const FormerName* FindFormer(const std::string& message, const std::string& field) {
  for (const FormerName& former : kFormerNames)
    if (message == former.message && field == former.field) return &former;
  return nullptr;
}

std::vector<std::string> FieldNames(const pb::Descriptor& descriptor) {
  std::vector<std::string> names;
  for (int i = 0; i < descriptor.field_count(); ++i) names.push_back(descriptor.field(i)->name());
  return names;
}

// What helps with protobuf's "Message type "halflife.proto.X" has no field named "y"."
std::string HintFor(const std::string& message) {
  static const std::regex pattern(
      R"re(Message type "([\w.]*?)(\w+)" has no field named "(\w+)")re");
  std::smatch match;
  if (!std::regex_search(message, match, pattern)) return "";
  const std::string type = match[2], field = match[3];
  if (const FormerName* former = FindFormer(type, field))
    return Concat(" It is now written ", former->today);
  const pb::Descriptor* descriptor =
      pb::DescriptorPool::generated_pool()->FindMessageTypeByName(match[1].str() + type);
  if (descriptor == nullptr) return "";
  const auto is_of = [&](const char* other) {
    const pb::Descriptor* const file =
        pb::DescriptorPool::generated_pool()->FindMessageTypeByName(match[1].str() + other);
    return file != nullptr && file->FindFieldByName(field) != nullptr;
  };
  if (type == "RunConfig" && is_of("Sweep"))
    return " That is a sweep's: `halflife sweep --config` takes its file";
  if (type == "Sweep" && is_of("RunConfig"))
    return " That is a recipe's: `halflife train --config` takes its file, and a sweep names it";
  const std::vector<std::string> known = FieldNames(*descriptor);
  return Concat(" It has ", known.empty() ? "none" : Join(known, ", "), DidYouMean(field, known));
}

// protobuf's own words, with the file and 1-based line and column that editors understand.
class ErrorCollector : public pb::io::ErrorCollector {
 public:
  explicit ErrorCollector(std::string name) : name_(std::move(name)) {}
  void AddError(int line, pb::io::ColumnNumber column, const std::string& message) override {
    if (!text_.empty()) text_ += "\n";
    text_ += line < 0 ? Concat(name_, ": ", message)
                      : Concat(name_, ":", line + 1, ":", column + 1, ": ", message);
    text_ += HintFor(message);
  }
  const std::string& text() const { return text_; }

 private:
  std::string name_, text_;
};

// Runs `parse(parser)`, which returns whether it worked.
template <typename Parse>
void WithErrors(const std::string& name, const Parse& parse) {
  ErrorCollector errors(name);
  pb::TextFormat::Parser parser;
  parser.RecordErrorsTo(&errors);
  HL_CHECK_AS(ExitCode::kUsage, parse(parser), errors.text(),
              "\n(`halflife recipe --explain` prints the options; the schema is proto/halflife/)");
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

// The message of the choice of a part: its one oneof. Null for other messages.
const pb::OneofDescriptor* VariantsOf(const pb::Descriptor& descriptor) {
  return descriptor.real_oneof_decl_count() == 1 ? descriptor.oneof_decl(0) : nullptr;
}

// One `--set path=value`, taken a name at a time from the root to the field.
class Override {
 public:
  Override(const std::string& text, pb::Message& root) : text_(text), message_(&root) {
    const size_t equals = text.find('=');
    HL_CHECK_AS(ExitCode::kUsage, equals != std::string::npos && equals > 0, "--set '", text,
                "' is not path=value, e.g. --set optimizer.lr=3e-4");
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
    const FormerName* former = FindFormer(descriptor.name(), name);
    Check(field != nullptr || former == nullptr, "'", name, "' is now written --set ",
          former == nullptr ? "" : former->set);
    const std::vector<std::string> known = FieldNames(descriptor);
    Check(field != nullptr, "'", name, "' is no field of ", descriptor.name(), "; it has ",
          Join(known, ", "), DidYouMean(name, known),
          VariantsOf(descriptor) == nullptr ? ""
                                            : Concat("; options stand below them, e.g. ", Outer(),
                                                     ".", known.front(), ".", name));
    return *field;
  }

  // The path without its last name.
  std::string Outer() const { return path_.substr(0, path_.rfind('.')); }

  void Descend(const pb::FieldDescriptor& field) {
    Check(!field.is_repeated(), "'", field.name(),
          "' is a list, and only a whole one can be set: ", kListExample);
    Check(field.cpp_type() == pb::FieldDescriptor::CPPTYPE_MESSAGE, "'", field.name(),
          "' has no fields");
    const pb::Reflection& reflection = *message_->GetReflection();
    if (const pb::OneofDescriptor* variants = VariantsOf(*message_->GetDescriptor())) {
      const pb::FieldDescriptor* chosen = reflection.GetOneofFieldDescriptor(*message_, variants);
      const size_t end = path_.find("." + field.name() + ".");
      Check(chosen == nullptr || chosen == &field, "the recipe has ",
            chosen == nullptr ? "" : chosen->name(), " there; --set ", path_.substr(0, end), "=",
            field.name(), " before it would take ", field.name(), " with its defaults");
    }
    message_ = reflection.MutableMessage(message_, &field);
  }

  void Assign(const pb::FieldDescriptor& field) {
    const pb::Reflection& reflection = *message_->GetReflection();
    const bool is_message = field.cpp_type() == pb::FieldDescriptor::CPPTYPE_MESSAGE;
    if (field.is_repeated() || (is_message && value_.starts_with("{"))) {
      Check(!field.is_repeated() || value_.starts_with("["), "'", field.name(),
            "' is a list; write ", kListExample);
      reflection.ClearField(message_, &field);
      return Merge(field, value_);
    }
    if (!is_message) return Merge(field, NeedsQuotes(field, value_) ? Quoted(value_) : value_);
    const pb::Descriptor& group = *field.message_type();
    Check(VariantsOf(group) != nullptr, "'", field.name(),
          "' is a group; set one of its fields: ", Join(FieldNames(group), ", "));
    const pb::FieldDescriptor* variant = group.FindFieldByName(value_);
    const std::vector<std::string> known = FieldNames(group);
    Check(variant != nullptr, "unknown ", field.name(), " '", value_,
          "'; known: ", Join(known, ", "), DidYouMean(value_, known));
    pb::Message* choice = reflection.MutableMessage(message_, &field);
    choice->Clear();
    choice->GetReflection()->MutableMessage(choice, variant);
  }

  // `value` in the text format.
  void Merge(const pb::FieldDescriptor& field, const std::string& value) {
    WithErrors("--set " + text_, [&](pb::TextFormat::Parser& parser) {
      return parser.MergeFromString(Concat(field.name(), ": ", value), message_);
    });
  }

  static constexpr char kListExample[] =
      "--set 'model.hybrid=[{ layers: [1] mixer { softmax {} } }]', or =[] for none";

  const std::string& text_;
  std::string path_, value_;
  pb::Message* message_;  // that the names so far lead to
};

}  // namespace

void ParseRecipe(const std::string& text, const std::string& name, pb::Message& message) {
  WithErrors(
      name, [&](pb::TextFormat::Parser& parser) { return parser.ParseFromString(text, &message); });
}

void ApplyOverride(const std::string& assignment, pb::Message& message) {
  Override(assignment, message).Apply();
}

}  // namespace halflife::train
