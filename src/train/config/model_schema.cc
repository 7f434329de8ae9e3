#include "train/config/model_schema.h"

#include <google/protobuf/descriptor.h>
#include <halflife/model.pb.h>
#include <halflife/schema.pb.h>

#include "core/error.h"
#include "model/config/model_config.h"

namespace halflife::train {

namespace {

namespace pb = google::protobuf;
using Type = pb::FieldDescriptor::CppType;

// Throws Error kInternal if the message has no field of that name.
const pb::FieldDescriptor& FieldOf(const pb::Descriptor& message, const std::string& name) {
  const pb::FieldDescriptor* field = message.FindFieldByName(name);
  HL_CHECK(field != nullptr, "the schema's ", message.name(), " has no field ", name);
  return *field;
}

model::OptionValue Get(const pb::Message& message, const pb::FieldDescriptor& field) {
  const pb::Reflection& reflection = *message.GetReflection();
  switch (field.cpp_type()) {
    case Type::CPPTYPE_BOOL:
      return reflection.GetBool(message, &field);
    case Type::CPPTYPE_INT64:
      return reflection.GetInt64(message, &field);
    case Type::CPPTYPE_DOUBLE:
      return reflection.GetDouble(message, &field);
    case Type::CPPTYPE_STRING:
      return reflection.GetString(message, &field);
    default:
      HL_FAIL(ExitCode::kInternal, "no option has the type of field ", field.full_name());
  }
}

struct Setter {
  pb::Message& message;
  const pb::FieldDescriptor& field;
  const pb::Reflection& reflection = *message.GetReflection();
  void operator()(bool value) const { reflection.SetBool(&message, &field, value); }
  void operator()(int64_t value) const { reflection.SetInt64(&message, &field, value); }
  void operator()(double value) const { reflection.SetDouble(&message, &field, value); }
  void operator()(const std::string& value) const { reflection.SetString(&message, &field, value); }
};

void ReadPart(const pb::Message& choice, model::PartConfig& part);
void WritePart(const model::PartConfig& part, pb::Message& choice);

void ReadOptions(const pb::Message& message, model::PartOptions& options) {
  const pb::Reflection& reflection = *message.GetReflection();
  for (model::Option& option : options.Fields()) {
    const pb::FieldDescriptor& field = FieldOf(*message.GetDescriptor(), option.name);
    if (!reflection.HasField(message, &field)) continue;
    HL_CHECK(option.Set(Get(message, field)), "option ", option.name, " is not a ",
             field.type_name());
  }
  for (model::PartConfig* part : options.Parts()) {
    const pb::FieldDescriptor& field = FieldOf(*message.GetDescriptor(), part->kind().name);
    if (reflection.HasField(message, &field))
      ReadPart(reflection.GetMessage(message, &field), *part);
  }
  for (const model::OptionList& list : options.Lists()) {
    const pb::FieldDescriptor& field = FieldOf(*message.GetDescriptor(), list.name);
    const int count = reflection.FieldSize(message, &field);
    if (count > 0) list.clear();
    for (int i = 0; i < count; ++i)
      ReadOptions(reflection.GetRepeatedMessage(message, &field, i), list.add());
  }
}

void WriteOptions(model::PartOptions& options, pb::Message& message) {
  const pb::Reflection& reflection = *message.GetReflection();
  const auto field_of = [&](const std::string& name) -> const pb::FieldDescriptor& {
    return FieldOf(*message.GetDescriptor(), name);
  };
  for (const model::Option& option : options.Fields())
    std::visit(Setter{message, field_of(option.name)}, option.value());
  for (const model::PartConfig* part : options.Parts())
    WritePart(*part, *reflection.MutableMessage(&message, &field_of(part->kind().name)));
  for (const model::OptionList& list : options.Lists())
    for (size_t i = 0; i < list.size(); ++i)
      WriteOptions(list.at(i), *reflection.AddMessage(&message, &field_of(list.name)));
}

// Reads the choice of a part: a message with one oneof of variants.
void ReadPart(const pb::Message& choice, model::PartConfig& part) {
  const pb::Reflection& reflection = *choice.GetReflection();
  const pb::FieldDescriptor* variant =
      reflection.GetOneofFieldDescriptor(choice, choice.GetDescriptor()->oneof_decl(0));
  if (variant == nullptr) return;
  part = model::PartConfig(part.kind(), variant->name());
  ReadOptions(reflection.GetMessage(choice, variant), part.options());
}

void WritePart(const model::PartConfig& part, pb::Message& choice) {
  model::PartConfig copy = part;
  WriteOptions(copy.options(), *choice.GetReflection()->MutableMessage(
                                   &choice, &FieldOf(*choice.GetDescriptor(), part.name())));
}

model::LayerGroup ReadGroup(const proto::LayerGroup& from) {
  model::LayerGroup group;
  group.layers.assign(from.layers().begin(), from.layers().end());
  group.every = from.every();
  group.first = from.first();
  if (from.has_mixer()) ReadPart(from.mixer(), group.mixer.emplace());
  if (from.has_channel_mixer()) ReadPart(from.channel_mixer(), group.channel_mixer.emplace());
  if (from.has_block()) ReadPart(from.block(), group.block.emplace());
  return group;
}

void WriteGroup(const model::LayerGroup& group, proto::LayerGroup& to) {
  to.mutable_layers()->Assign(group.layers.begin(), group.layers.end());
  if (group.every > 0) to.set_every(group.every), to.set_first(group.first);
  if (group.mixer) WritePart(*group.mixer, *to.mutable_mixer());
  if (group.channel_mixer) WritePart(*group.channel_mixer, *to.mutable_channel_mixer());
  if (group.block) WritePart(*group.block, *to.mutable_block());
}

// Adds the help of all options, also of those inside lists: "parts", "parts.input_multiplier".
void AddHelp(model::PartOptions& defaults, const pb::Descriptor& message, const std::string& path,
             std::vector<OptionHelp>& all) {
  const auto help_of = [&](const std::string& name) {
    return FieldOf(message, name).options().GetExtension(proto::help);
  };
  for (const model::Option& option : defaults.Fields()) {
    all.push_back({.name = path + option.name,
                   .type = model::TypeName(option),
                   .usual = option.value(),
                   .meaning = help_of(option.name),
                   .choices = option.limits.choices});
  }
  for (const model::PartConfig* part : defaults.Parts()) {
    const std::string kind = part->kind().name;
    all.push_back({.name = path + kind,
                   .type = kind,
                   .usual = part->name(),
                   .meaning = help_of(kind),
                   .choices = {}});
  }
  for (const model::OptionList& list : defaults.Lists()) {
    std::vector<std::string> names;
    for (size_t i = 0; i < list.size(); ++i)
      for (const model::PartConfig* part : list.at(i).Parts()) names.push_back(part->name());
    all.push_back({.name = path + list.name,
                   .type = "list",
                   .usual = Join(names, ", "),
                   .meaning = help_of(list.name),
                   .choices = {}});
    AddHelp(list.add(), *FieldOf(message, list.name).message_type(), path + list.name + ".", all);
  }
}

VariantHelp HelpOf(const model::VariantInfo& variant, const pb::Descriptor& message) {
  VariantHelp help = {.name = variant.name,
                      .summary = message.options().GetExtension(proto::summary),
                      .equation = message.options().GetExtension(proto::equation),
                      .options = {}};
  AddHelp(*variant.defaults(), message, "", help.options);
  return help;
}

}  // namespace

void ReadModel(const proto::ModelConfig& message, model::ModelConfig& config) {
  if (message.has_vocab_size()) config.vocab_size = message.vocab_size();
  if (message.has_model_dim()) config.model_dim = message.model_dim();
  if (message.has_num_layers()) config.num_layers = message.num_layers();
  if (message.has_dropout()) config.dropout = message.dropout();
  if (message.has_initializer_range()) config.initializer_range = message.initializer_range();
  if (message.has_initializer()) config.initializer = message.initializer();
  const auto child = [&](const char* name) -> const pb::Message& {
    return message.GetReflection()->GetMessage(message, &FieldOf(*message.GetDescriptor(), name));
  };
  model::VisitParts(
      config, {.group = [&](const char* name,
                            model::PartOptions& options) { ReadOptions(child(name), options); },
               .part = [&](model::PartConfig& part) { ReadPart(child(part.kind().name), part); }});
  if (message.has_final_norm()) ReadPart(message.final_norm(), config.final_norm.emplace());
  for (const proto::LayerGroup& group : message.hybrid()) config.hybrid.push_back(ReadGroup(group));
}

void WriteModel(const model::ModelConfig& config, proto::ModelConfig& message) {
  message.set_vocab_size(config.vocab_size);
  message.set_model_dim(config.model_dim);
  message.set_num_layers(config.num_layers);
  message.set_dropout(config.dropout);
  message.set_initializer_range(config.initializer_range);
  message.set_initializer(config.initializer);
  const auto child = [&](const char* name) -> pb::Message& {
    return *message.GetReflection()->MutableMessage(&message,
                                                    &FieldOf(*message.GetDescriptor(), name));
  };
  model::ModelConfig copy = config;
  model::VisitParts(
      copy, {.group = [&](const char* name,
                          model::PartOptions& options) { WriteOptions(options, child(name)); },
             .part = [&](model::PartConfig& part) { WritePart(part, child(part.kind().name)); }});
  if (copy.final_norm) WritePart(*copy.final_norm, *message.mutable_final_norm());
  for (const model::LayerGroup& group : config.hybrid) WriteGroup(group, *message.add_hybrid());
}

std::vector<KindHelp> HelpOfParts() {
  std::vector<KindHelp> kinds;
  const auto add = [&](const model::PartConfig& part) {
    const model::PartKind& kind = part.kind();
    const pb::Descriptor& choice =
        *FieldOf(*proto::ModelConfig::descriptor(), kind.name).message_type();
    KindHelp help = {.name = kind.name, .usual = kind.usual, .variants = {}};
    for (const model::VariantInfo& variant : kind.variants())
      help.variants.push_back(HelpOf(variant, *FieldOf(choice, variant.name).message_type()));
    kinds.push_back(std::move(help));
  };
  model::ModelConfig config;
  model::VisitParts(config, {.group = [](const char*, model::PartOptions&) {}, .part = add});
  return kinds;
}

}  // namespace halflife::train
