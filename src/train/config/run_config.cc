#include "train/config/run_config.h"

#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/text_format.h>

#include <halflife/run_config.pb.h>

#include "core/error.h"
#include "core/files.h"
#include "core/log.h"
#include "core/nearest.h"

namespace halflife::train {
namespace {

namespace pb = google::protobuf;

// One list of fields serves both directions: `direction(has, get, set, value)` copies message ->
// struct or back.
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

void ReadMixer(const proto::MixerConfig& from, model::MixerConfig& to) {
  if (from.has_name()) to.name = from.name();
  for (const auto& [key, value] : from.options()) to.options[key] = value;
}

void WriteMixer(const model::MixerConfig& from, proto::MixerConfig& to) {
  to.set_name(from.name);
  for (const auto& [key, value] : from.options) (*to.mutable_options())[key] = value;
}

template <typename Direction>
void VisitModel(const Direction& direction, proto::ModelConfig& m, model::ModelConfig& c) {
  HL_FIELD(m, vocab_size, c.vocab_size);
  HL_FIELD(m, model_dim, c.model_dim);
  HL_FIELD(m, num_layers, c.num_layers);
  HL_FIELD(m, mlp_dim, c.mlp_dim);
  HL_FIELD(m, mlp_ratio, c.mlp_ratio);
  HL_FIELD(m, norm_eps, c.norm_eps);
  HL_FIELD(m, tie_embeddings, c.tie_embeddings);
  HL_FIELD(m, dropout, c.dropout);
  HL_FIELD(m, initializer_range, c.initializer_range);
  HL_FIELD(m, mlp_bias, c.mlp_bias);
}

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
}

template <typename Direction>
void VisitOptimizer(const Direction& direction, proto::RunConfig& m, RunConfig& c) {
  proto::OptimizerConfig& o = *m.mutable_optimizer();
  HL_FIELD(o, lr, c.optimizer.lr);
  HL_FIELD(o, beta1, c.optimizer.beta1);
  HL_FIELD(o, beta2, c.optimizer.beta2);
  HL_FIELD(o, eps, c.optimizer.eps);
  HL_FIELD(o, weight_decay, c.optimizer.weight_decay);
  HL_FIELD(o, clip_norm, c.optimizer.clip_norm);
  proto::ScheduleConfig& s = *m.mutable_schedule();
  HL_FIELD(s, kind, c.schedule.kind);
  HL_FIELD(s, warmup_steps, c.schedule.warmup_steps);
  HL_FIELD(s, decay_steps, c.schedule.decay_steps);
  HL_FIELD(s, final_lr_ratio, c.schedule.final_lr_ratio);
}

template <typename Direction>
void Visit(const Direction& direction, proto::RunConfig& m, RunConfig& c) {
  HL_FIELD((*m.mutable_data()), path, c.data.path);
  HL_FIELD((*m.mutable_data()), seq_len, c.data.seq_len);
  HL_FIELD((*m.mutable_data()), prefetch, c.data.prefetch);
  VisitModel(direction, *m.mutable_model(), c.model);
  VisitOptimizer(direction, m, c);
  VisitLoop(direction, *m.mutable_train(), c.train);
  HL_FIELD((*m.mutable_eval()), every, c.eval.every);
  HL_FIELD((*m.mutable_eval()), windows, c.eval.windows);
  HL_FIELD((*m.mutable_eval()), sample_prompt, c.eval.sample_prompt);
  HL_FIELD((*m.mutable_eval()), sample_tokens, c.eval.sample_tokens);
  proto::CkptConfig& k = *m.mutable_ckpt();
  HL_FIELD(k, every, c.ckpt.every);
  HL_FIELD(k, keep_last, c.ckpt.store.keep_last);
  HL_FIELD(k, keep_every, c.ckpt.store.keep_every);
  HL_FIELD(k, keep_best, c.ckpt.store.keep_best);
  HL_FIELD(k, on_error, c.ckpt.on_error);
  HL_FIELD(k, timeout_s, c.ckpt.store.timeout_s);
  proto::ParallelConfig& p = *m.mutable_parallel();
  HL_FIELD(p, zero_stage, c.parallel.zero_stage);
  HL_FIELD(p, sp, c.parallel.sp);
  HL_FIELD(p, first_bucket_bytes, c.parallel.first_bucket_bytes);
  HL_FIELD(p, bucket_bytes, c.parallel.bucket_bytes);
  HL_FIELD((*m.mutable_comm()), timeout_s, c.comm_timeout_s);
  HL_FIELD((*m.mutable_log()), level, c.log.level);
  HL_FIELD((*m.mutable_log()), tensorboard, c.log.tensorboard);
}

#undef HL_FIELD

// protobuf's own words, with the file and 1-based line and column that editors understand.
class ErrorCollector : public pb::io::ErrorCollector {
 public:
  explicit ErrorCollector(std::string name) : name_(std::move(name)) {}
  void AddError(int line, pb::io::ColumnNumber column, const std::string& message) override {
    if (!text_.empty()) text_ += "\n";
    text_ += line < 0 ? Concat(name_, ": ", message)
                      : Concat(name_, ":", line + 1, ":", column + 1, ": ", message);
  }
  const std::string& text() const { return text_; }

 private:
  std::string name_, text_;
};

void MergeText(const std::string& text, const std::string& name, pb::Message& message) {
  ErrorCollector errors(name);
  pb::TextFormat::Parser parser;
  parser.RecordErrorsTo(&errors);
  const bool ok = parser.MergeFromString(text, &message);
  HL_CHECK_AS(ExitCode::kUsage, ok, errors.text(),
              "\n(the names and types are in proto/halflife/run_config.proto)");
}

std::vector<std::string> FieldNames(const pb::Descriptor& descriptor) {
  std::vector<std::string> names;
  for (int i = 0; i < descriptor.field_count(); ++i) names.push_back(descriptor.field(i)->name());
  return names;
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

// optimizer.lr=3e-4 -> `optimizer { lr: 3e-4 }`; model.mixer.options.num_heads=4 -> an entry of the
// map. A map entry replaces one of the same key, as a later scalar replaces an earlier one.
void ApplyOverride(const std::string& text, pb::Message& root) {
  const size_t equals = text.find('=');
  HL_CHECK_AS(ExitCode::kUsage, equals != std::string::npos && equals > 0, "--set '", text,
              "' is not path=value, e.g. --set optimizer.lr=3e-4");
  const std::string path = text.substr(0, equals), value = text.substr(equals + 1);
  std::string opening, closing;
  const pb::Descriptor* descriptor = root.GetDescriptor();
  size_t begin = 0;
  while (true) {
    const size_t dot = path.find('.', begin);
    const std::string name = path.substr(begin, dot == std::string::npos ? dot : dot - begin);
    const pb::FieldDescriptor* field = descriptor->FindFieldByName(name);
    HL_CHECK_AS(ExitCode::kUsage, field != nullptr, "--set ", path, ": '", name,
                "' is no field of ", descriptor->name(), "; it has ",
                Join(FieldNames(*descriptor), ", "), DidYouMean(name, FieldNames(*descriptor)));
    const bool last = dot == std::string::npos;
    HL_CHECK_AS(ExitCode::kUsage, field->is_map() || !field->is_repeated(), "--set ", path, ": '",
                name, "' is a list, which --set cannot change; write it in the recipe, e.g. ",
                "hybrid { layers: [1] mixer { name: \"softmax\" } }");
    if (field->is_map() && !last) {
      const std::string entry =
          Concat(name, " { key: ", Quoted(path.substr(dot + 1)), " value: ", Quoted(value), " }");
      return MergeText(opening + entry + closing, "--set " + text, root);
    }
    const bool is_message = field->cpp_type() == pb::FieldDescriptor::CPPTYPE_MESSAGE;
    if (last) {
      HL_CHECK_AS(
          ExitCode::kUsage, !is_message, "--set ", path, ": '", name,
          "' is a group; set one of its fields: ", Join(FieldNames(*field->message_type()), ", "));
      const std::string rhs = NeedsQuotes(*field, value) ? Quoted(value) : value;
      return MergeText(opening + name + ": " + rhs + closing, "--set " + text, root);
    }
    HL_CHECK_AS(ExitCode::kUsage, is_message, "--set ", path, ": '", name, "' has no fields");
    opening += name + " { ";
    closing += " }";
    descriptor = field->message_type();
    begin = dot + 1;
  }
}

proto::RunConfig ToMessage(const RunConfig& config) {
  proto::RunConfig message;
  RunConfig copy = config;
  Visit(WriteFields{}, message, copy);
  WriteMixer(config.model.mixer, *message.mutable_model()->mutable_mixer());
  for (const model::HybridLayers& group : config.model.hybrid) {
    proto::HybridLayers& layers = *message.mutable_model()->add_hybrid();
    layers.mutable_layers()->Assign(group.layers.begin(), group.layers.end());
    WriteMixer(group.mixer, *layers.mutable_mixer());
  }
  return message;
}

// Maps are left out.
void Flatten(const pb::Message& message, const std::string& prefix,
             std::map<std::string, std::string>& fields) {
  const pb::Reflection& reflection = *message.GetReflection();
  std::vector<const pb::FieldDescriptor*> present;
  reflection.ListFields(message, &present);
  for (const pb::FieldDescriptor* field : present) {
    const std::string name = prefix + field->name();
    if (field->is_repeated()) continue;
    if (field->cpp_type() == pb::FieldDescriptor::CPPTYPE_MESSAGE) {
      Flatten(reflection.GetMessage(message, field), name + ".", fields);
    } else if (field->cpp_type() == pb::FieldDescriptor::CPPTYPE_STRING) {
      fields[name] = reflection.GetString(message, field);
    } else {
      pb::TextFormat::PrintFieldValueToString(message, field, -1, &fields[name]);
    }
  }
}

}  // namespace

RunConfig ParseRunConfig(const std::string& text, const std::string& name_for_errors,
                         const std::vector<std::string>& overrides) {
  proto::RunConfig message;
  MergeText(text, name_for_errors, message);
  for (const std::string& override_text : overrides) ApplyOverride(override_text, message);
  RunConfig config;
  config.model.vocab_size = 0;
  Visit(ReadFields{}, message, config);
  ReadMixer(message.model().mixer(), config.model.mixer);
  for (const proto::HybridLayers& group : message.model().hybrid()) {
    model::HybridLayers& layers = config.model.hybrid.emplace_back();
    layers.layers.assign(group.layers().begin(), group.layers().end());
    HL_CHECK_AS(ExitCode::kUsage, group.mixer().has_name(), name_for_errors,
                ": model.hybrid for layers ", Join(layers.layers, ", "),
                " names no mixer; add e.g. mixer { name: \"softmax\" }");
    ReadMixer(group.mixer(), layers.mixer);
  }
  return config;
}

RunConfig LoadRunConfig(const std::filesystem::path& file,
                        const std::vector<std::string>& overrides) {
  constexpr uint64_t kMaxRecipeBytes = 16 << 20;
  return ParseRunConfig(ReadFile(file, ExitCode::kUsage, kMaxRecipeBytes), file.string(),
                        overrides);
}

std::string ToText(const RunConfig& config) {
  std::string text;
  HL_CHECK(pb::TextFormat::PrintToString(ToMessage(config), &text));
  return text;
}

std::map<std::string, std::string> FlatFields(const RunConfig& config) {
  std::map<std::string, std::string> fields;
  Flatten(ToMessage(config), "", fields);
  for (const auto& [key, value] : config.model.mixer.options) {
    fields["model.mixer.options." + key] = value;
  }
  return fields;
}

std::map<std::string, std::string> TrajectoryFields(const RunConfig& c) {
  const auto number = [](double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.17g", value);
    return std::string(text);
  };
  return {{"data.seq_len", Concat(c.data.seq_len)},
          {"optimizer.lr", number(c.optimizer.lr)},
          {"optimizer.beta1", number(c.optimizer.beta1)},
          {"optimizer.beta2", number(c.optimizer.beta2)},
          {"optimizer.eps", number(c.optimizer.eps)},
          {"optimizer.weight_decay", number(c.optimizer.weight_decay)},
          {"optimizer.clip_norm", number(c.optimizer.clip_norm)},
          {"schedule.kind", c.schedule.kind},
          {"schedule.warmup_steps", Concat(c.schedule.warmup_steps)},
          {"schedule.decay_steps", Concat(c.schedule.decay_steps)},
          {"schedule.final_lr_ratio", number(c.schedule.final_lr_ratio)},
          {"train.steps", Concat(c.train.steps)},
          {"train.global_batch", Concat(c.train.global_batch)},
          {"train.seed", Concat(c.train.seed)},
          {"train.z_loss", number(c.train.z_loss)},
          {"train.precision", c.train.precision},
          {"train.on_nonfinite", c.train.on_nonfinite}};
}

}  // namespace halflife::train
