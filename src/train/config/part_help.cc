#include "train/config/part_help.h"

#include <halflife/model.pb.h>
#include <halflife/schema.pb.h>

#include "model/config/model_config.h"
#include "train/config/schema_field.h"

namespace halflife::train {
namespace {

namespace pb = google::protobuf;

VariantHelp HelpOf(const model::VariantInfo& variant, const pb::Descriptor& message) {
  VariantHelp help = {.name = variant.name,
                      .summary = message.options().GetExtension(proto::summary),
                      .equation = message.options().GetExtension(proto::equation),
                      .options = {}};
  const std::unique_ptr<model::PartOptions> defaults = variant.defaults();
  for (const model::Option& option : defaults->Fields()) {
    help.options.push_back(
        {.name = option.name,
         .type = model::TypeName(option),
         .usual = option.value(),
         .meaning = FieldOf(message, option.name).options().GetExtension(proto::help),
         .choices = option.limits.choices});
  }
  return help;
}

}  // namespace

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
