// The schema, the structs and their defaults agree, and every field declares whether it changes a
// run's trajectory.
#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <halflife/run_config.pb.h>

#include "model/mixers/parallel.h"
#include "train/config/run_config.h"

namespace halflife::train {
namespace {

namespace pb = google::protobuf;
using LeafVisitor = std::function<void(const std::string& path, const pb::FieldDescriptor& field)>;

// Visits every field that holds a value, in every variant of every part. A part inside a part of
// its own kind is visited only outside it.
void VisitLeaves(const pb::Descriptor& message, const std::string& prefix,
                 const LeafVisitor& visitor, std::set<const pb::Descriptor*> open = {}) {
  if (!open.insert(&message).second) return;
  for (int i = 0; i < message.field_count(); ++i) {
    const pb::FieldDescriptor& field = *message.field(i);
    const std::string path = prefix + field.name();
    if (field.cpp_type() == pb::FieldDescriptor::CPPTYPE_MESSAGE) {
      VisitLeaves(*field.message_type(), path + (field.is_repeated() ? ".0." : "."), visitor, open);
    } else {
      visitor(path, field);
    }
  }
}
const pb::Descriptor& Root() { return *proto::RunConfig::descriptor(); }

TEST(Schema, EveryFieldSaysWhetherResumeComparesItAndWhatItIs) {
  int count = 0;
  VisitLeaves(Root(), "", [&](const std::string& path, const pb::FieldDescriptor& field) {
    ++count;
    const bool is_of_model = path.starts_with("model.");
    EXPECT_EQ(field.options().GetExtension(proto::resume) == proto::UNTAGGED, is_of_model)
        << path << (is_of_model ? ": a checkpoint compares all of the model" : ": add (resume)");
    EXPECT_FALSE(field.options().GetExtension(proto::help).empty()) << path;
  });
  EXPECT_GT(count, 80);
}

// For every variant of every part, the struct has the message's fields in the same order and with
// the same types.
TEST(Schema, StructsOfPartsAndMessagesAgree) {
  const std::map<std::string, pb::FieldDescriptor::CppType> kTypes = {
      {"bool", pb::FieldDescriptor::CPPTYPE_BOOL},
      {"int", pb::FieldDescriptor::CPPTYPE_INT64},
      {"number", pb::FieldDescriptor::CPPTYPE_DOUBLE},
      {"word", pb::FieldDescriptor::CPPTYPE_STRING}};
  const std::function<void(const pb::Descriptor&, model::PartOptions&)> agree =
      [&](const pb::Descriptor& message, model::PartOptions& options) {
        const std::vector<model::Option> fields = options.Fields();
        // Parts and lists inside the options are messages.
        std::set<std::string> messages, inside;
        for (const model::PartConfig* part : options.Parts()) inside.insert(part->kind().name);
        for (const model::OptionList& list : options.Lists()) {
          inside.insert(list.name);
          const pb::FieldDescriptor* field = message.FindFieldByName(list.name);
          ASSERT_NE(field, nullptr) << list.name;
          EXPECT_TRUE(field->is_repeated()) << field->full_name();
          agree(*field->message_type(), list.add());
        }
        std::vector<const pb::FieldDescriptor*> plain;
        for (int i = 0; i < message.field_count(); ++i) {
          const pb::FieldDescriptor& field = *message.field(i);
          if (field.message_type() == nullptr) {
            plain.push_back(&field);
          } else {
            messages.insert(field.name());
            EXPECT_FALSE(field.options().GetExtension(proto::help).empty()) << field.full_name();
          }
        }
        EXPECT_EQ(messages, inside) << message.name();
        ASSERT_EQ(plain.size(), fields.size()) << message.name();
        for (size_t i = 0; i < fields.size(); ++i) {
          const pb::FieldDescriptor& field = *plain[i];
          EXPECT_EQ(field.name(), fields[i].name) << message.name();
          EXPECT_EQ(field.cpp_type(), kTypes.at(model::TypeName(fields[i]))) << field.full_name();
          EXPECT_TRUE(field.has_presence()) << field.full_name();
        }
      };
  const pb::Descriptor& model_message = *proto::ModelConfig::descriptor();
  model::ModelConfig config;
  model::VisitParts(
      config,
      {.group =
           [&](const char* name, model::PartOptions& options) {
             agree(*model_message.FindFieldByName(name)->message_type(), options);
           },
       .part =
           [&](model::PartConfig& part) {
             const pb::OneofDescriptor& variants =
                 *model_message.FindFieldByName(part.kind().name)->message_type()->oneof_decl(0);
             std::set<std::string> names;
             for (int i = 0; i < variants.field_count(); ++i) {
               const pb::FieldDescriptor& variant = *variants.field(i);
               names.insert(variant.name());
               model::PartConfig chosen(part.kind(), variant.name());
               agree(*variant.message_type(), chosen.options());
               EXPECT_FALSE(variant.message_type()->options().GetExtension(proto::summary).empty())
                   << variant.name();
             }
             const std::vector<std::string> known = model::NamesOf(part.kind());
             EXPECT_EQ(names, std::set<std::string>(known.begin(), known.end()));
           }});
}

// A list in the options of a part: absent, given, and replaced by --set.
TEST(Schema, ListsOfPartsAreReadAndWritten) {
  const auto parts_of = [](const RunConfig& config) {
    std::vector<std::string> parts;
    for (const model::ParallelPart& part : model::PartsOfParallel(config.model.mixer))
      parts.push_back(Concat(part.mixer.name(), " ", part.input_multiplier));
    return parts;
  };
  using Parts = std::vector<std::string>;
  EXPECT_EQ(parts_of(ParseRunConfig("model { mixer { parallel {} } }", "", {})),
            (Parts{"mamba2 1", "softmax 1"}));
  const RunConfig given = ParseRunConfig(
      "model { mixer { parallel { parts { mixer { gla { num_heads: 2 } } input_multiplier: 0.5 } "
      "parts { mixer { softmax { num_heads: 8 } } } } } }",
      "", {});
  EXPECT_EQ(parts_of(given), (Parts{"gla 0.5", "softmax 1"}));
  const RunConfig back = ParseRunConfig(ToText(given), "", {});
  EXPECT_TRUE(back.model.mixer == given.model.mixer);
  EXPECT_EQ(FlatFields(given).at("model.mixer.parallel.parts.0.mixer.gla.num_heads"), "2");
  EXPECT_EQ(parts_of(ParseRunConfig(ToText(given), "",
                                    {"model.mixer={ parallel { parts { mixer { d2d {} } } } }"})),
            Parts{"d2d 1"});
}

// The same for the own config of every optimizer.
TEST(Schema, ConfigsOfOptimizersAndMessagesAgree) {
  const pb::OneofDescriptor& variants = *proto::OptimizerChoice::descriptor()->oneof_decl(0);
  constexpr pb::FieldDescriptor::CppType kTypes[] = {pb::FieldDescriptor::CPPTYPE_BOOL,
                                                     pb::FieldDescriptor::CPPTYPE_INT64,
                                                     pb::FieldDescriptor::CPPTYPE_DOUBLE};
  std::set<std::string> names, known;
  for (const optim::OptimizerKind& kind : optim::OptimizerKinds()) known.insert(kind.name);
  for (int i = 0; i < variants.field_count(); ++i) {
    const pb::FieldDescriptor& variant = *variants.field(i);
    names.insert(variant.name());
    const pb::Descriptor& message = *variant.message_type();
    EXPECT_FALSE(message.options().GetExtension(proto::summary).empty()) << variant.name();
    optim::OptimizerChoice choice(variant.name());
    const std::vector<optim::Option> fields = choice.config().Fields();
    ASSERT_EQ(message.field_count(), static_cast<int>(fields.size())) << message.name();
    for (size_t j = 0; j < fields.size(); ++j) {
      const pb::FieldDescriptor& field = *message.field(static_cast<int>(j));
      EXPECT_EQ(field.name(), fields[j].name) << message.name();
      EXPECT_EQ(field.cpp_type(), kTypes[fields[j].place.index()]) << field.full_name();
      EXPECT_TRUE(field.has_presence()) << field.full_name();
    }
  }
  EXPECT_EQ(names, known);
}

// A field that is missing in the structs would not be written to the run folder, so a resumed run
// would silently use its default.
TEST(Schema, EveryFieldIsWrittenAndReadBack) {
  std::set<std::string> expected;
  VisitLeaves(Root(), "", [&](const std::string& path, const pb::FieldDescriptor&) {
    if (!path.starts_with("model.") && !path.starts_with("optimizer.algorithm."))
      expected.insert(path);
  });
  std::set<std::string> written;
  for (const auto& [path, value] : FlatFields({})) written.insert(path);
  // Lists are empty by default. An entry is written with all of its fields.
  const RunConfig lists = ParseRunConfig(
      "eval { set {} } data { source { weight_at {} } } optimizer { group { weight_decay: 0 } } "
      "schedule { phase { from: 0 to: 0 } }",
      "", {});
  for (const auto& [path, value] : FlatFields(ParseRunConfig(ToText(lists), "", {})))
    written.insert(path);
  for (const std::string& path : expected) EXPECT_TRUE(written.contains(path)) << path;

  // Sets each field to a value that is not its default and expects to read it back.
  VisitLeaves(Root(), "", [&](const std::string& path, const pb::FieldDescriptor& field) {
    if (field.is_repeated() || path.find(".0.") != std::string::npos) return;  // Inside a list.
    const bool is_of_choice =
        path.starts_with("model.") || path.starts_with("optimizer.algorithm.");
    const std::string before = is_of_choice ? "" : FlatFields({}).at(path);
    std::string value;
    switch (field.cpp_type()) {
      case pb::FieldDescriptor::CPPTYPE_BOOL:
        value = before == "true" ? "false" : "true";
        break;
      case pb::FieldDescriptor::CPPTYPE_STRING:
        value = "other";
        break;
      default:
        value = "3";
        break;
    }
    if (value == before) value = "5";
    const RunConfig config = ParseRunConfig("", "", {path + "=" + value});
    EXPECT_EQ(FlatFields(config).at(path), value) << path;
  });
}

}  // namespace
}  // namespace halflife::train
