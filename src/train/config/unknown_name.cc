#include "train/config/parse_errors.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>

#include "core/concat.h"
#include "core/nearest.h"

namespace halflife::train {
namespace {

namespace pb = google::protobuf;

// Names of recipes from before models consisted of parts.
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

constexpr char kRecipe[] = "RunConfig", kSweep[] = "Sweep";

std::string FormerAnswer(const UnknownName& unknown) {
  for (const FormerName& former : kFormerNames)
    if (unknown.block.name() == former.message && unknown.name == former.field)
      return unknown.form == RecipeForm::kSet ? Concat("It is now written --set ", former.set)
                                              : Concat("It is now written ", former.today);
  return "";
}

// Answers if the name is a field of a sweep in a recipe, or the other way round.
std::string OtherFileAnswer(const UnknownName& unknown) {
  const auto is_field_of = [&](const char* other) {
    const std::string package = unknown.block.file()->package();
    const pb::Descriptor* message =
        pb::DescriptorPool::generated_pool()->FindMessageTypeByName(Concat(package, ".", other));
    return message != nullptr && message->FindFieldByName(unknown.name) != nullptr;
  };
  if (unknown.block.name() == kRecipe && is_field_of(kSweep))
    return "It is a field of a sweep: `halflife sweep --config` reads its file.";
  if (unknown.block.name() == kSweep && is_field_of(kRecipe))
    return "It is a field of a recipe: `halflife train --config` reads its file, and a sweep names "
           "that file.";
  return "";
}

std::string ForeignAnswer(const UnknownName& unknown) {
  if (unknown.root.GetDescriptor()->name() != kRecipe) return "";
  const ForeignName* foreign = FindForeignName(unknown.path, unknown.name);
  if (foreign == nullptr) return "";
  const std::string place = foreign->place, last = place.substr(place.rfind('.') + 1);
  const std::string here = PathBelow(unknown.path, last);
  if (place != here && unknown.block.FindFieldByName(last) != nullptr)
    return Concat("Use ", WrittenField(here, foreign->example, unknown.form), ".");
  return AnswerTo(*foreign, unknown.form);
}

// Appends the paths of all fields called `name`. Of a part's variants, only one is searched: the
// chosen one or, if none is chosen, the first that has such a field.
void FindPaths(const pb::Message& message, const std::string& name, const std::string& path,
               std::vector<std::string>& paths) {
  const pb::Descriptor& descriptor = *message.GetDescriptor();
  const pb::Reflection& reflection = *message.GetReflection();
  const pb::OneofDescriptor* variants = VariantsOf(descriptor);
  const pb::FieldDescriptor* chosen =
      variants == nullptr ? nullptr : reflection.GetOneofFieldDescriptor(message, variants);
  const size_t found_before = paths.size();
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const pb::FieldDescriptor& field = *descriptor.field(i);
    if (field.is_repeated()) continue;
    const std::string below = PathBelow(path, field.name());
    if (field.name() == name) {
      paths.push_back(below);
    } else if (field.cpp_type() == pb::FieldDescriptor::CPPTYPE_MESSAGE) {
      const bool is_other_variant = (chosen != nullptr && chosen != &field) ||
                                    (variants != nullptr && paths.size() > found_before);
      if (!is_other_variant) FindPaths(reflection.GetMessage(message, &field), name, below, paths);
    }
  }
}

const pb::FieldDescriptor* FieldAt(const pb::Descriptor& root, const std::string& path) {
  const size_t dot = path.find('.');
  const pb::FieldDescriptor* field = root.FindFieldByName(path.substr(0, dot));
  return field == nullptr || dot == std::string::npos
             ? field
             : FieldAt(*field->message_type(), path.substr(dot + 1));
}

std::string OtherBlockAnswer(const UnknownName& unknown) {
  constexpr size_t kMaxPaths = 3;
  std::vector<std::string> paths;
  FindPaths(unknown.root, unknown.name, "", paths);
  std::ranges::stable_sort(paths, {},
                           [](const std::string& path) { return std::ranges::count(path, '.'); });
  paths.resize(std::min(paths.size(), kMaxPaths));
  if (paths.empty()) return "";
  return Concat(
      "Use ",
      Join(paths, " or ",
           [&](const std::string& path) {
             const pb::FieldDescriptor& field = *FieldAt(*unknown.root.GetDescriptor(), path);
             const bool is_block = field.cpp_type() == pb::FieldDescriptor::CPPTYPE_MESSAGE;
             return WrittenField(path, is_block ? "{ ... }" : "VALUE", unknown.form);
           }),
      ".");
}

std::string OwnerText(const UnknownName& unknown) {
  if (!unknown.path.empty())
    return Concat(VariantsOf(unknown.block) == nullptr ? "a field of " : "a variant of ",
                  unknown.path);
  return unknown.block.name() == kSweep ? "a field of a sweep" : "a field of a recipe";
}

// Returns the answer for a known mistake. Empty if only the list of known names can help.
std::string AnswerInPlaceOf(const UnknownName& unknown) {
  for (const auto answer : {FormerAnswer, ForeignAnswer, OtherFileAnswer, OtherBlockAnswer})
    if (std::string sentences = answer(unknown); !sentences.empty()) return sentences;
  return "";
}

// Returns whether the last name of a path is more informative. For example, `trainer` is vague and
// `max_steps` below it is not. A former name, `rwkv6` or a misspelt name is clear by itself.
bool PrefersLast(const UnknownName& unknown, const std::vector<std::string>& known) {
  if (unknown.last.empty() || !FormerAnswer(unknown).empty()) return false;
  const ForeignName* foreign = FindForeignName(unknown.path, unknown.name);
  return foreign == nullptr ? NearestNames(unknown.name, known).empty() : !foreign->is_missing();
}

}  // namespace

std::string DescribeUnknownName(const UnknownName& unknown) {
  const std::string text = Concat("'", unknown.name, "' is not ", OwnerText(unknown), ". ");
  const std::vector<std::string> known = FieldNames(unknown.block);
  if (PrefersLast(unknown, known)) {
    UnknownName last = unknown;
    last.name = unknown.last;
    if (const std::string sentences = AnswerInPlaceOf(last); !sentences.empty())
      return text + sentences;
  }
  if (const std::string sentences = AnswerInPlaceOf(unknown); !sentences.empty())
    return text + sentences;
  return Concat(text, "It has ", known.empty() ? "none" : Join(known, ", "),
                DidYouMean(unknown.name, known));
}

std::string PathBelow(const std::string& path, const std::string& name) {
  return path.empty() ? name : Concat(path, ".", name);
}

std::vector<std::string> FieldNames(const pb::Descriptor& message) {
  std::vector<std::string> names;
  for (int i = 0; i < message.field_count(); ++i) names.push_back(message.field(i)->name());
  return names;
}

const pb::OneofDescriptor* VariantsOf(const pb::Descriptor& message) {
  return message.real_oneof_decl_count() == 1 ? message.oneof_decl(0) : nullptr;
}

}  // namespace halflife::train
