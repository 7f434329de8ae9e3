#include "train/config/run_config.h"

#include <google/protobuf/text_format.h>
#include <halflife/run_config.pb.h>
#include <halflife/schema.pb.h>

#include <charconv>
#include <cstdio>
#include <functional>
#include <set>
#include <sstream>
#include <type_traits>
#include <variant>
#include <vector>

#include "core/error.h"
#include "core/files.h"
#include "core/human.h"
#include "train/config/model_schema.h"
#include "train/config/recipe_text.h"

namespace halflife::train {
namespace {

namespace pb = google::protobuf;

constexpr char kAlgorithm[] = "optimizer.algorithm";

// One list of fields serves both directions. `direction(has, get, set, value)` copies from the
// message to the struct or back.
struct ReadFields {
  template <typename Message, typename Has, typename Get, typename Set, typename Value>
  void operator()(Message& message, Has has, Get get, Set, Value& value) const {
    if (has(message)) value = static_cast<Value>(get(message));
  }
};
struct WriteFields {
  template <typename Message, typename Has, typename Get, typename Set, typename Value>
  void operator()(Message& message, Has, Get, Set set, Value& value) const {
    set(message, value);
  }
};

#define HL_FIELD(message, field, value)                       \
  direction(                                                  \
      message, [](auto& from) { return from.has_##field(); }, \
      [](auto& from) { return from.field(); },                \
      [](auto& to, const auto& set) { to.set_##field(set); }, value)

template <typename Direction>
void VisitLoop(const Direction& direction, proto::TrainConfig& m, LoopConfig& c) {
  HL_FIELD(m, steps, c.steps);
  HL_FIELD(m, global_batch, c.global_batch);
  HL_FIELD(m, micro_batch, c.micro_batch);
  HL_FIELD(m, seed, c.seed);
  HL_FIELD(m, z_loss, c.z_loss);
  HL_FIELD(m, precision, c.precision);
  HL_FIELD(m, device, c.device);
  HL_FIELD(m, threads, c.threads);
  HL_FIELD(m, on_nonfinite, c.on_nonfinite);
  HL_FIELD(m, max_skips, c.max_skips);
  HL_FIELD(m, log_every, c.log_every);
  HL_FIELD(m, time_limit_s, c.time_limit_s);
  HL_FIELD(m, log_samples, c.log_samples);
  HL_FIELD(m, max_epochs, c.max_epochs);
  HL_FIELD(m, stop_at_accuracy, c.stop_at_accuracy);
  HL_FIELD(m, recompute, c.recompute);
  HL_FIELD(m, cuda_graphs, c.cuda_graphs);
  HL_FIELD(m, patience, c.patience);
  HL_FIELD(m, spike_sigmas, c.spike_sigmas);
  HL_FIELD((*m.mutable_fp8()), min_width, c.fp8.min_width);
  HL_FIELD((*m.mutable_preference()), loss, c.preference.loss);
  HL_FIELD((*m.mutable_preference()), beta, c.preference.beta);
  HL_FIELD(m, max_rollbacks, c.max_rollbacks);
  HL_FIELD(m, rollback_spikes, c.rollback_spikes);
  HL_FIELD(m, rollback_window, c.rollback_window);
}

template <typename Direction>
void VisitOptimizer(const Direction& direction, proto::RunConfig& m, RunConfig& c) {
  proto::OptimizerConfig& o = *m.mutable_optimizer();
  HL_FIELD(o, lr, c.optimizer.lr);
  HL_FIELD(o, beta1, c.optimizer.adamw.beta1);
  HL_FIELD(o, beta2, c.optimizer.adamw.beta2);
  HL_FIELD(o, eps, c.optimizer.adamw.eps);
  HL_FIELD(o, weight_decay, c.optimizer.adamw.weight_decay);
  HL_FIELD(o, clip_norm, c.optimizer.clip_norm);
  HL_FIELD(o, decay_all, c.optimizer.decay_all);
  HL_FIELD(o, ema_decay, c.optimizer.ema_decay);
  proto::ScheduleConfig& s = *m.mutable_schedule();
  HL_FIELD(s, kind, c.schedule.kind);
  HL_FIELD(s, warmup_steps, c.schedule.warmup_steps);
  HL_FIELD(s, decay_steps, c.schedule.decay_steps);
  HL_FIELD(s, final_lr_ratio, c.schedule.final_lr_ratio);
  HL_FIELD(s, per_epoch, c.schedule.per_epoch);
  HL_FIELD(s, decay_shape, c.schedule.decay_shape);
}

template <typename Direction>
void VisitPhase(const Direction& direction, proto::SchedulePhase& m, PhaseConfig& c) {
  HL_FIELD(m, name, c.name);
  HL_FIELD(m, steps, c.steps);
  HL_FIELD(m, share, c.share);
  HL_FIELD(m, shape, c.shape);
}

template <typename Direction>
void VisitSet(const Direction& direction, proto::ValidationSet& m, ValidationSetConfig& c) {
  HL_FIELD(m, name, c.name);
  HL_FIELD(m, path, c.path);
  HL_FIELD(m, split, c.split);
  HL_FIELD(m, windows, c.windows);
}

template <typename Direction>
void VisitSource(const Direction& direction, proto::DataSource& m, DataSource& c) {
  HL_FIELD(m, name, c.name);
  HL_FIELD(m, path, c.path);
  HL_FIELD(m, weight, c.weight);
}

template <typename Direction>
void VisitWeight(const Direction& direction, proto::WeightChange& m, WeightChange& c) {
  HL_FIELD(m, step, c.step);
  HL_FIELD(m, weight, c.weight);
}

template <typename Direction>
void Visit(const Direction& direction, proto::RunConfig& m, RunConfig& c) {
  HL_FIELD((*m.mutable_data()), path, c.data.path);
  HL_FIELD((*m.mutable_data()), seq_len, c.data.seq_len);
  HL_FIELD((*m.mutable_data()), prefetch, c.data.prefetch);
  HL_FIELD((*m.mutable_data()), epoch_end, c.data.epoch_end);
  HL_FIELD((*m.mutable_data()), positions, c.data.positions.kind);
  HL_FIELD((*m.mutable_data()), positions_length, c.data.positions.length);
  HL_FIELD((*m.mutable_data()), positions_chunks, c.data.positions.chunks);
  HL_FIELD((*m.mutable_data()), reset_at_documents, c.data.reset_at_documents);
  VisitOptimizer(direction, m, c);
  VisitLoop(direction, *m.mutable_train(), c.train);
  HL_FIELD((*m.mutable_eval()), every, c.eval.every);
  HL_FIELD((*m.mutable_eval()), windows, c.eval.windows);
  HL_FIELD((*m.mutable_eval()), sample_prompt, c.eval.sample_prompt);
  HL_FIELD((*m.mutable_eval()), sample_tokens, c.eval.sample_tokens);
  HL_FIELD((*m.mutable_eval()), every_epochs, c.eval.every_epochs);
  HL_FIELD((*m.mutable_eval()), split, c.eval.split);
  proto::CkptConfig& k = *m.mutable_ckpt();
  HL_FIELD(k, every, c.ckpt.every);
  HL_FIELD(k, keep_last, c.ckpt.store.retention.keep_last);
  HL_FIELD(k, keep_every, c.ckpt.store.retention.keep_every);
  HL_FIELD(k, keep_best, c.ckpt.store.retention.keep_best);
  HL_FIELD(k, on_error, c.ckpt.on_error);
  HL_FIELD(k, timeout_s, c.ckpt.store.timeout_s);
  HL_FIELD(k, background, c.ckpt.background);
  proto::ParallelConfig& p = *m.mutable_parallel();
  HL_FIELD(p, zero_stage, c.parallel.zero_stage);
  HL_FIELD(p, shard, c.parallel.shard);
  HL_FIELD(p, prefetch, c.parallel.prefetch);
  HL_FIELD(p, grad_reduce, c.parallel.grad_reduce);
  HL_FIELD(p, sp, c.parallel.sp);
  HL_FIELD(p, slices, c.parallel.slices);
  HL_FIELD(p, exchange, c.parallel.exchange);
  HL_FIELD(p, first_bucket_bytes, c.parallel.first_bucket_bytes);
  HL_FIELD(p, bucket_bytes, c.parallel.bucket_bytes);
  HL_FIELD((*m.mutable_comm()), timeout_s, c.comm_timeout_s);
  HL_FIELD((*m.mutable_lora()), rank, c.lora.rank);
  HL_FIELD((*m.mutable_lora()), alpha, c.lora.alpha);
  HL_FIELD((*m.mutable_lora()), targets, c.lora.targets);
  HL_FIELD((*m.mutable_log()), level, c.log.level);
  HL_FIELD((*m.mutable_log()), tensorboard, c.log.tensorboard);
}

#undef HL_FIELD

const pb::FieldDescriptor& FieldNamed(const pb::Message& message, const std::string& name) {
  const pb::FieldDescriptor* const field = message.GetDescriptor()->FindFieldByName(name);
  HL_CHECK(field != nullptr, "the schema's ", message.GetDescriptor()->name(), " has no field ",
           name);
  return *field;
}

// Reads an optimizer's own config. Its fields are matched with the schema's by name, so a new
// optimizer needs no change here.
void ReadAlgorithm(const proto::OptimizerChoice& message, optim::OptimizerChoice& choice) {
  const pb::Reflection& reflection = *message.GetReflection();
  const pb::FieldDescriptor* const chosen =
      reflection.GetOneofFieldDescriptor(message, message.GetDescriptor()->oneof_decl(0));
  if (chosen == nullptr) return;
  choice = optim::OptimizerChoice(chosen->name());
  const pb::Message& own = reflection.GetMessage(message, chosen);
  const pb::Reflection& values = *own.GetReflection();
  for (const optim::Option& option : choice.config().Fields()) {
    const pb::FieldDescriptor& field = FieldNamed(own, option.name);
    if (!values.HasField(own, &field)) continue;
    std::visit(
        [&](auto* place) {
          using Value = std::remove_pointer_t<decltype(place)>;
          if constexpr (std::is_same_v<Value, bool>) *place = values.GetBool(own, &field);
          if constexpr (std::is_same_v<Value, int64_t>) *place = values.GetInt64(own, &field);
          if constexpr (std::is_same_v<Value, double>) *place = values.GetDouble(own, &field);
        },
        option.place);
  }
}

void WriteAlgorithm(optim::OptimizerChoice choice, proto::OptimizerChoice& message) {
  pb::Message& own =
      *message.GetReflection()->MutableMessage(&message, &FieldNamed(message, choice.name()));
  const pb::Reflection& values = *own.GetReflection();
  for (const optim::Option& option : choice.config().Fields()) {
    const pb::FieldDescriptor& field = FieldNamed(own, option.name);
    std::visit(
        [&](const auto* place) {
          using Value = std::remove_cv_t<std::remove_pointer_t<decltype(place)>>;
          if constexpr (std::is_same_v<Value, bool>) values.SetBool(&own, &field, *place);
          if constexpr (std::is_same_v<Value, int64_t>) values.SetInt64(&own, &field, *place);
          if constexpr (std::is_same_v<Value, double>) values.SetDouble(&own, &field, *place);
        },
        option.place);
  }
}

void ReadGroups(const proto::OptimizerConfig& message, std::vector<ParameterGroup>& groups) {
  for (const proto::ParameterGroup& given : message.group()) {
    ParameterGroup& group = groups.emplace_back();
    group.match = given.match();
    if (given.has_lr_scale()) group.lr_scale = given.lr_scale();
    if (given.has_weight_decay()) group.weight_decay = given.weight_decay();
    group.frozen = given.frozen();
  }
}

void WriteGroups(const std::vector<ParameterGroup>& groups, proto::OptimizerConfig& message) {
  for (const ParameterGroup& group : groups) {
    proto::ParameterGroup& written = *message.add_group();
    written.set_match(group.match);
    written.set_lr_scale(group.lr_scale);
    if (group.weight_decay) written.set_weight_decay(*group.weight_decay);
    written.set_frozen(group.frozen);
  }
}

void ReadPhases(proto::ScheduleConfig& message, ScheduleConfig& schedule) {
  for (proto::SchedulePhase& phase : *message.mutable_phase()) {
    PhaseConfig& to = schedule.phases.emplace_back();
    VisitPhase(ReadFields{}, phase, to);
    if (phase.has_from()) to.from = phase.from();
    if (phase.has_to()) to.to = phase.to();
  }
  if (!schedule.phases.empty() && !message.has_kind()) schedule.kind = "phases";
}

void WritePhases(std::vector<PhaseConfig>& phases, proto::ScheduleConfig& message) {
  for (PhaseConfig& phase : phases) {
    proto::SchedulePhase& to = *message.add_phase();
    VisitPhase(WriteFields{}, to, phase);
    if (phase.from) to.set_from(*phase.from);
    if (phase.to) to.set_to(*phase.to);
  }
}

void ReadLists(proto::RunConfig& message, RunConfig& config) {
  ReadPhases(*message.mutable_schedule(), config.schedule);
  for (proto::ValidationSet& set : *message.mutable_eval()->mutable_set())
    VisitSet(ReadFields{}, set, config.eval.sets.emplace_back());
  for (proto::DataSource& source : *message.mutable_data()->mutable_source()) {
    DataSource& to = config.data.sources.emplace_back();
    VisitSource(ReadFields{}, source, to);
    for (proto::WeightChange& change : *source.mutable_weight_at())
      VisitWeight(ReadFields{}, change, to.weight_at.emplace_back());
  }
}

void WriteLists(RunConfig& config, proto::RunConfig& message) {
  WritePhases(config.schedule.phases, *message.mutable_schedule());
  for (ValidationSetConfig& set : config.eval.sets)
    VisitSet(WriteFields{}, *message.mutable_eval()->add_set(), set);
  for (DataSource& source : config.data.sources) {
    proto::DataSource& to = *message.mutable_data()->add_source();
    VisitSource(WriteFields{}, to, source);
    for (WeightChange& change : source.weight_at)
      VisitWeight(WriteFields{}, *to.add_weight_at(), change);
  }
}

proto::RunConfig ToMessage(const RunConfig& config) {
  proto::RunConfig message;
  RunConfig copy = config;
  Visit(WriteFields{}, message, copy);
  WriteLists(copy, message);
  WriteModel(config.model, *message.mutable_model());
  WriteAlgorithm(config.optimizer.algorithm, *message.mutable_optimizer()->mutable_algorithm());
  WriteGroups(config.optimizer.groups, *message.mutable_optimizer());
  return message;
}

// Formats a number with the 17 digits that identify each double, as checkpoints store it.
std::string ExactText(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

// Returns the text of a field that holds a value, or of one entry of a list.
std::string TextOfLeaf(const pb::Message& message, const pb::FieldDescriptor& field, int index) {
  const pb::Reflection& reflection = *message.GetReflection();
  if (field.cpp_type() == pb::FieldDescriptor::CPPTYPE_STRING && index < 0)
    return reflection.GetString(message, &field);
  std::string text;
  pb::TextFormat::PrintFieldValueToString(message, &field, index, &text);
  return text;
}

using LeafVisitor = std::function<void(const std::string& name, const pb::Message& message,
                                       const pb::FieldDescriptor& field, int index)>;

// Visits every value that is set, with its path. Entries of lists have their number in the path:
// "model.hybrid.0.layers.1".
void VisitLeaves(const pb::Message& message, const std::string& prefix,
                 const LeafVisitor& visitor) {
  const pb::Reflection& reflection = *message.GetReflection();
  std::vector<const pb::FieldDescriptor*> present;
  reflection.ListFields(message, &present);
  for (const pb::FieldDescriptor* field : present) {
    const bool is_message = field->cpp_type() == pb::FieldDescriptor::CPPTYPE_MESSAGE;
    const int count = field->is_repeated() ? reflection.FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      const int index = field->is_repeated() ? i : -1;
      const std::string name =
          prefix + field->name() + (field->is_repeated() ? Concat(".", i) : "");
      if (is_message) {
        VisitLeaves(field->is_repeated() ? reflection.GetRepeatedMessage(message, field, i)
                                         : reflection.GetMessage(message, field),
                    name + ".", visitor);
      } else {
        visitor(name, message, *field, index);
      }
    }
  }
}

// Throws an error if train.steps was set and has no effect because of max_epochs. The config of a
// finished run contains both numbers, so a recipe may too; but a user who sets steps later expects
// them to take effect. `given` says where steps were set.
void RequireStepsThatCount(const proto::RunConfig& message, const std::string& given,
                           int64_t steps) {
  HL_CHECK_AS(ExitCode::kUsage, message.train().max_epochs() == 0, given, "train.steps=", steps,
              " would be ignored: train.max_epochs ", message.train().max_epochs(),
              " decides how long the run is. Use --set train.max_epochs=0",
              message.schedule().per_epoch() ? " and --set schedule.per_epoch=false" : "",
              " to make train.steps count.");
}

void RequireOverridesThatCount(const proto::RunConfig& message,
                               const std::vector<std::string>& overrides) {
  for (const std::string& override_text : overrides) {
    if (!override_text.starts_with("train")) continue;
    proto::RunConfig alone;
    ApplyOverride(override_text, alone);
    if (alone.train().has_steps()) RequireStepsThatCount(message, "--set ", alone.train().steps());
  }
}

struct RecipeText {
  std::string name, text;
};

// Throws an error if a later recipe, which is a file of changes, sets train.steps without effect.
void RequireChangesThatCount(const proto::RunConfig& message,
                             const std::vector<RecipeText>& recipes) {
  for (size_t i = 1; i < recipes.size(); ++i) {
    proto::RunConfig alone;
    MergeRecipe(recipes[i].text, recipes[i].name, alone);
    if (alone.train().has_steps() && !alone.train().has_max_epochs())
      RequireStepsThatCount(message, recipes[i].name + ": ", alone.train().steps());
  }
}

RunConfig MergeAll(const std::vector<RecipeText>& recipes,
                   const std::vector<std::string>& overrides) {
  proto::RunConfig message;
  for (const RecipeText& recipe : recipes) MergeRecipe(recipe.text, recipe.name, message);
  for (const std::string& override_text : overrides) ApplyOverride(override_text, message);
  RequireChangesThatCount(message, recipes);
  RequireOverridesThatCount(message, overrides);
  RunConfig config;
  config.model.vocab_size = 0;
  Visit(ReadFields{}, message, config);
  ReadLists(message, config);
  ReadModel(message.model(), config.model);
  ReadAlgorithm(message.optimizer().algorithm(), config.optimizer.algorithm);
  ReadGroups(message.optimizer(), config.optimizer.groups);
  return config;
}

}  // namespace

double DataSource::WeightAfter(int64_t num_steps) const {
  double current = weight;
  for (const WeightChange& change : weight_at)
    if (change.step <= num_steps) current = change.weight;
  return current;
}

std::vector<double> DataConfig::WeightsAfter(int64_t num_steps) const {
  std::vector<double> weights;
  for (const DataSource& source : sources) weights.push_back(source.WeightAfter(num_steps));
  return weights;
}

std::vector<int64_t> DataConfig::WeightSteps() const {
  std::set<int64_t> steps;
  for (const DataSource& source : sources)
    for (const WeightChange& change : source.weight_at)
      if (change.step > 0) steps.insert(change.step);
  return {steps.begin(), steps.end()};
}

std::string DataConfig::SourcesText() const {
  return Join(sources, ", ", [](const DataSource& source) {
    const std::string changes = Join(source.weight_at, ", ", [](const WeightChange& change) {
      return Concat(ShortestText(change.weight), " from step ", change.step);
    });
    return Concat(source.name, " ", ShortestText(source.weight),
                  changes.empty() ? "" : Concat(" (", changes, ")"));
  });
}

RunConfig ParseRunConfig(const std::string& text, const std::string& name_for_errors,
                         const std::vector<std::string>& overrides) {
  return MergeAll({{.name = name_for_errors, .text = text}}, overrides);
}

RunConfig LoadRunConfig(const std::vector<std::filesystem::path>& files,
                        const std::vector<std::string>& overrides) {
  constexpr uint64_t kMaxRecipeBytes = 16 << 20;
  std::vector<RecipeText> recipes;
  for (const std::filesystem::path& file : files) {
    std::error_code error;
    HL_CHECK_AS(ExitCode::kUsage, std::filesystem::exists(file, error) || error,
                "there is no recipe ", file.string(),
                ". Use the name of a file, for example launch/recipes/quickstart.textproto.");
    recipes.push_back(
        {.name = file.string(), .text = ReadFile(file, ExitCode::kUsage, kMaxRecipeBytes)});
  }
  return MergeAll(recipes, overrides);
}

RunConfig LoadRunConfig(const std::filesystem::path& file,
                        const std::vector<std::string>& overrides) {
  return LoadRunConfig(std::vector<std::filesystem::path>{file}, overrides);
}

std::string ToText(const RunConfig& config) {
  std::string text;
  HL_CHECK(pb::TextFormat::PrintToString(ToMessage(config), &text));
  return text;
}

std::map<std::string, std::string> FlatFields(const RunConfig& config) {
  std::map<std::string, std::string> fields;
  const proto::RunConfig message = ToMessage(config);
  VisitLeaves(
      message, "",
      [&](const std::string& name, const pb::Message& owner, const pb::FieldDescriptor& field,
          int index) { fields[name] = TextOfLeaf(owner, field, index); });
  model::ModelConfig copy = config.model;
  model::VisitParts(copy, {.group = [](const char*, model::PartOptions&) {},
                           .part =
                               [&](model::PartConfig& part) {
                                 fields[Concat("model.", part.kind().name)] = part.name();
                               }});
  fields[kAlgorithm] = config.optimizer.algorithm.name();
  return fields;
}

std::map<std::string, std::string> TrajectoryFields(const RunConfig& config) {
  std::map<std::string, std::string> fields;
  proto::RunConfig message = ToMessage(config);
  message.clear_model();  // A checkpoint compares the model in the form of model::ToJson.
  VisitLeaves(message, "",
              [&](const std::string& name, const pb::Message& owner,
                  const pb::FieldDescriptor& field, int index) {
                if (field.options().GetExtension(proto::resume) != proto::COMPARED) return;
                fields[name] = field.cpp_type() == pb::FieldDescriptor::CPPTYPE_DOUBLE
                                   ? ExactText(owner.GetReflection()->GetDouble(owner, &field))
                                   : TextOfLeaf(owner, field, index);
              });
  fields[kAlgorithm] = config.optimizer.algorithm.name();
  if (!config.schedule.phases.empty()) fields["schedule.phase"] = config.schedule.PhasesText();
  return fields;
}

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

int ParallelConfig::given_shard() const {
  int number = 0;
  const auto [end, error] = std::from_chars(shard.data(), shard.data() + shard.size(), number);
  return error == std::errc() && end == shard.data() + shard.size() ? number : 0;
}

int ParallelConfig::shard_ranks(int world_size) const {
  if (zero_stage == 0 || shard == "world") return world_size;
  if (const int given = given_shard(); given > 0) return given;
  return resolved_shard > 0 ? resolved_shard : world_size;
}

int64_t ParallelConfig::bucket_bytes_of(int world_size, int64_t gradient_bytes) const {
  constexpr int64_t kMaxOfParts = 256 << 20;
  if (bucket_bytes > 0) return bucket_bytes;
  const int64_t bytes = dist::AutoBucketBytes(world_size, gradient_bytes);
  return zero_stage < 2 ? bytes : std::min(bytes, kMaxOfParts);
}

std::string ExplainedText(const RunConfig& config) {
  proto::RunConfig message;
  HL_CHECK(pb::TextFormat::ParseFromString(ToText(config), &message));
  std::string text;
  PrintFields(message, "", text);
  return text;
}

}  // namespace halflife::train
