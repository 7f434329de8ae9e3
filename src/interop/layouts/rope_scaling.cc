// The rotary positions of the softmax classes of transformers: the base of the frequencies and
// their scaling for long texts. They are the object `rope_parameters`, or in older folders
// `rope_theta` and the object `rope_scaling`, whose `rope_type` is called `type`.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "interop/layouts/layouts.h"
#include "model/positions/rotary_variants.h"

namespace halflife::interop {
namespace {

using nlohmann::ordered_json;

constexpr double kUsualTheta = 10000;

struct Rope {
  double theta = kUsualTheta, part = 1;
  model::PositionsConfig positions;
  bool operator==(const Rope& other) const = default;
};

// halflife's position methods that are a rope_type of transformers.
struct Scaling {
  const char* ours;
  const char* theirs;
};
constexpr Scaling kScalings[] = {
    {"none", "default"}, {"interpolated", "linear"}, {"llama3", "llama3"}, {"yarn", "yarn"}};

// YaRN's factor of cos and sin if the config has both scales (DeepSeek's form): m(mscale) /
// m(mscale_all_dim) with m(k) = 0.1 k ln(factor) + 1. Returns 0 if it has not, which means m(1).
double ReadMscales(ConfigReader& rope, double factor) {
  const double scale = rope.Double("mscale", 0), all = rope.Double("mscale_all_dim", 0);
  if (scale == 0 || all == 0) return 0;
  const double log = 0.1 * std::log(std::max(1.0, factor));
  return (scale * log + 1) / (all * log + 1);
}

model::PositionsConfig ReadYarn(ConfigReader& rope, double factor, int64_t length, double theta,
                                int64_t head_dim) {
  model::YarnConfig ramp = {.factor = factor, .length = length};
  // 0 means the default, too.
  if (const double fast = rope.Double("beta_fast", 0); fast != 0) ramp.fast = fast;
  if (const double slow = rope.Double("beta_slow", 0); slow != 0) ramp.slow = slow;
  ramp.truncate = rope.Bool("truncate", true);
  const double mscales = ReadMscales(rope, factor);
  const double attention_factor = rope.Double("attention_factor", mscales);
  rope.Require(!rope.Has("attention_factor") || attention_factor > 0, "attention_factor is ",
               attention_factor, ". Use a number above 0, or remove the key.");
  // The class has one value of the ramp too few for an odd number of channels.
  rope.Require(head_dim % 2 == 0, "yarn rotates ", head_dim,
               " channels of each head. Use a partial_rotary_factor that rotates an even number.");
  if (theta > 1 && ramp.fast >= ramp.slow && ramp.slow > 0) {
    const model::YarnRamp pairs = model::YarnRampOf(head_dim, theta, ramp);
    rope.Require(pairs.first <= pairs.last, "original_max_position_embeddings is ", length,
                 ", so the ramp of yarn would end before it begins. Use the training length "
                 "in tokens, a beta_fast of 32 and a beta_slow of 1.");
  }
  return model::PositionsConfig("yarn", {{"factor", factor},
                                         {"length", length},
                                         {"fast", ramp.fast},
                                         {"slow", ramp.slow},
                                         {"truncate", ramp.truncate},
                                         {"attention_factor", attention_factor}});
}

model::PositionsConfig ReadLlama3(ConfigReader& rope, double factor, int64_t length) {
  const auto turns = [&](const char* key, double usual) {
    rope.Require(rope.Has(key), key, " is missing. Add it (Llama 3.1 has ", usual, ").");
    return rope.Double(key, usual);
  };
  const double slow = turns("low_freq_factor", 1), fast = turns("high_freq_factor", 4);
  rope.Require(slow > 0 && fast > slow, "high_freq_factor is ", fast, " and low_freq_factor ", slow,
               ". Use a high_freq_factor above the low_freq_factor, and both above 0.");
  return model::PositionsConfig(
      "llama3", {{"factor", factor}, {"length", length}, {"fast", fast}, {"slow", slow}});
}

// Reads the scaling of a rope_type other than "default".
model::PositionsConfig ReadScaling(ConfigReader& rope, const std::string& type, double theta,
                                   const RopeSizes& sizes) {
  const bool is_linear = type == "linear";
  const int64_t most = std::max<int64_t>(1, sizes.max_positions),
                length = is_linear ? most : rope.Int("original_max_position_embeddings", most);
  const double ratio = static_cast<double>(most) / static_cast<double>(length);
  rope.Require(rope.Has("factor") || (type == "yarn" && rope.IsNull("factor")),
               "factor is missing. Set it to the longest text length divided by the training "
               "length.");
  const double factor = rope.Double("factor", ratio);  // null: the ratio
  rope.Require(is_linear ? factor > 0 : factor >= 1, "factor is ", factor, ". Use a number ",
               is_linear ? "above 0." : "of at least 1.");
  if (is_linear) return model::PositionsConfig("interpolated", {{"factor", factor}});
  return type == "llama3" ? ReadLlama3(rope, factor, length)
                          : ReadYarn(rope, factor, length, theta, sizes.head_dim);
}

// Returns partial_rotary_factor, or `absent` if there is none.
double ReadPart(ConfigReader& reader, const RopeSizes& sizes, double absent) {
  const double part = reader.Double("partial_rotary_factor", absent);
  if (sizes.usual_part == 0) {
    reader.Require(part == 1, "partial_rotary_factor is ", part,
                   ". Use a model that rotates whole heads (partial_rotary_factor 1).");
    return 1;
  }
  const bool rotates = RotatedChannels(sizes.head_dim, part) > 0 || sizes.ignores_outer_part;
  const bool fits = part > 0 && part <= 1 && rotates;
  reader.Require(fits, "partial_rotary_factor is ", part, " with heads of ", sizes.head_dim,
                 " channels. Use a number in (0, 1] that rotates at least one channel.");
  return fits ? part : 1;
}

void RequireOneTypeOfLayer(ConfigReader& rope, const nlohmann::json& object) {
  for (const auto& [key, value] : object.items())
    rope.Require(!value.is_object(), key,
                 " is an object of its own. Use a model whose layers rotate alike.");
}

// Reads the object `key`, if there is one. `absent` has the values of keys that it lacks.
Rope ReadObject(ConfigReader& reader, const char* key, const Rope& absent, const RopeSizes& sizes) {
  Rope rope = absent;
  const nlohmann::json* object = reader.Member(key);
  if (object == nullptr || object->empty()) return rope;
  reader.Require(object->is_object(), key,
                 " is not an object. Use one, such as {\"rope_type\": \"default\"}.");
  if (!object->is_object()) return rope;
  ConfigReader inner(*object, key);
  RequireOneTypeOfLayer(inner, *object);
  rope.part = ReadPart(inner, sizes, absent.part);
  rope.theta = inner.Double("rope_theta", absent.theta);
  // Sections of rotations by the place in an image, which are equal for text.
  if (sizes.usual_part > 0) inner.Ignore({"mrope_section", "mrope_interleaved"});
  inner.Require(!inner.IsNull("rope_type"), "rope_type is null. Use a name, such as \"default\".");
  const std::string old_type = inner.String("type", "default");
  const std::string type = inner.String("rope_type", old_type);
  const bool by_length = type == "dynamic" || type == "longrope";
  const bool known = std::ranges::find(kScalings, type, &Scaling::theirs) != std::end(kScalings);
  inner.Require(known, "rope_type is '", type, "'",
                by_length ? ", whose frequencies depend on the length of the text" : "",
                ". Use a model with the rope_type default, linear, llama3 or yarn.");
  const RopeSizes rotated = {.head_dim = RotatedChannels(sizes.head_dim, rope.part),
                             .max_positions = sizes.max_positions};
  if (known && type != "default") rope.positions = ReadScaling(inner, type, rope.theta, rotated);
  reader.Absorb(inner);
  return rope;
}

}  // namespace

std::vector<std::string> RopeScalings() {
  std::vector<std::string> names;
  for (const Scaling& scaling : kScalings) names.emplace_back(scaling.ours);
  return names;
}

int64_t RotatedChannels(int64_t head_dim, double part) {
  return static_cast<int64_t>(static_cast<double>(head_dim) * part);
}

void AddYarnObstacle(const model::ModelConfig& config, const model::MixerConfig& attention,
                     std::vector<std::string>& lines) {
  const model::PositionsConfig& yarn = config.positions;
  const auto theta = attention.Get<double>("rope_theta");
  if (yarn.name() != "yarn" || theta <= 1) return;
  const int64_t rotated = RotatedChannels(attention.Get<int64_t>("head_dim"),
                                          attention.Get<double>("partial_rotary_factor"));
  const model::YarnRamp ramp = model::YarnRampOf(rotated, theta,
                                                 {.length = yarn.Get<int64_t>("length"),
                                                  .fast = yarn.Get<double>("fast"),
                                                  .slow = yarn.Get<double>("slow"),
                                                  .truncate = yarn.Get<bool>("truncate")});
  if (ramp.first > ramp.last)
    lines.emplace_back(
        "the ramp of yarn ends before it begins, and the class then computes other frequencies. "
        "Set length to the training length, fast to 32 and slow to 1");
  if (rotated % 2 != 0)
    lines.push_back(Concat("yarn rotates ", rotated,
                           " channels of each head, and the class then computes other "
                           "frequencies. Set partial_rotary_factor so that it rotates an even "
                           "number"));
}

void ReadRope(ConfigReader& reader, const RopeSizes& sizes, model::MixerConfig& attention,
              model::PositionsConfig& positions) {
  const bool is_null = !sizes.ignores_outer_part && reader.IsNull("partial_rotary_factor");
  // In transformers, null removes the class's default, so that whole heads rotate.
  const double usual_part = sizes.usual_part > 0 && !is_null ? sizes.usual_part : 1;
  if (sizes.ignores_outer_part) reader.Ignore({"partial_rotary_factor"});
  const Rope absent = {
      .theta = reader.Double("rope_theta", kUsualTheta),
      .part = sizes.ignores_outer_part ? usual_part : ReadPart(reader, sizes, usual_part)};
  const auto is_set = [&](const char* key) {
    const nlohmann::json* object = reader.Member(key);
    return object != nullptr && !object->empty();  // as in Python, an empty object is false
  };
  const bool is_new = is_set("rope_parameters"), is_old = is_set("rope_scaling");
  const Rope parameters = ReadObject(reader, "rope_parameters", absent, sizes),
             scaling = ReadObject(reader, "rope_scaling", absent, sizes);
  // Versions of transformers differ in which of them they use.
  reader.Require(!is_new || !is_old || parameters == scaling,
                 "rope_parameters and rope_scaling differ. Remove one of them.");
  const Rope& rope = is_new ? parameters : scaling;
  reader.Require(rope.theta > 1, "rope_theta is ", rope.theta, ". Use a number above 1.");
  // Some classes give this key precedence over that of the object.
  reader.Require(rope.positions.name() == "none" || !reader.Has("original_max_position_embeddings"),
                 "original_max_position_embeddings is outside the object of the rotation. Move it "
                 "into rope_parameters.");
  attention.Set("partial_rotary_factor", rope.part);
  // A head may be too narrow for the part that rotates.
  if (RotatedChannels(sizes.head_dim, rope.part) == 0) return attention.Set("rope_theta", 0.0);
  attention.Set("rope_theta", rope.theta);
  positions = rope.positions;
}

void WriteRope(const model::MixerConfig& attention, const model::PositionsConfig& positions,
               bool has_part, ordered_json& json) {
  const auto given = attention.Get<double>("rope_theta");
  const double theta = given > 0 ? given : kUsualTheta;
  const auto* scaling = std::ranges::find(kScalings, positions.name(), &Scaling::ours);
  ordered_json values = {{"rope_type", scaling->theirs}};
  if (has_part) values["partial_rotary_factor"] = attention.Get<double>("partial_rotary_factor");
  if (positions.name() != "none") values["factor"] = positions.Get<double>("factor");
  if (positions.name() == "llama3") {
    values["low_freq_factor"] = positions.Get<double>("slow");
    values["high_freq_factor"] = positions.Get<double>("fast");
  } else if (positions.name() == "yarn") {
    values["beta_fast"] = positions.Get<double>("fast");
    values["beta_slow"] = positions.Get<double>("slow");
    values["truncate"] = positions.Get<bool>("truncate");
    if (const double factor = positions.Get<double>("attention_factor"); factor > 0)
      values["attention_factor"] = factor;
  }
  if (positions.Has("length"))
    values["original_max_position_embeddings"] = positions.Get<int64_t>("length");
  json["rope_parameters"] = values;
  json["rope_parameters"]["rope_theta"] = theta;
  // The keys of older versions.
  json["rope_theta"] = theta;
  if (has_part) json["partial_rotary_factor"] = attention.Get<double>("partial_rotary_factor");
  json["rope_scaling"] = nullptr;
  if (positions.name() != "none") json["rope_scaling"] = values;
}

}  // namespace halflife::interop
